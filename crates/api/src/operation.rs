//! An operation is a value: it runs here, or travels into a VM and runs there by the same code.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The processes beside the server that start programs for callers. Each kind is confined to what its programs need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelperKind {
    /// Starts what callers name, programs of their own too.
    Commands,
    /// Starts git. No file of a caller is executed there.
    Git,
}

/// A request that a workspace can run, wherever that workspace is.
pub trait Operation: Serialize + DeserializeOwned + Send + Sync {
    /// The name on the channel, unique among operations.
    const NAME: &'static str;
    /// The helper that does it on the server, since it starts programs. `None`: the server's own process does it.
    const HELPER: Option<HelperKind> = None;
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// How long its answer may take before the guest counts as silent.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// How long its answer may be, by what was asked.
    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::SHORT
    }
}

/// How long an answer may be. Whatever makes it may be hostile: a guest, or a program that took over the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimit {
    /// Bytes of JSON.
    pub bytes: usize,
    /// Elements of its lists and fields of its objects together. A short one in memory is many times as long as in JSON.
    pub values: usize,
}

impl AnswerLimit {
    /// Of an answer about one thing: paths, names and numbers.
    pub const SHORT: Self = Self { bytes: 64 << 10, values: 4 << 10 };
    /// Of an answer that gathers what it finds: that ends at 16 MiB of JSON, and each value takes more than eight bytes on average.
    pub const GATHERED: Self = Self { bytes: (16 << 20) + Self::SHORT.bytes, values: 2 << 20 };

    /// Of a short answer that has so many bytes of text besides.
    #[must_use]
    pub fn with_text(bytes: u64) -> Self {
        // A control character takes six bytes in JSON.
        let bytes = usize::try_from(bytes.saturating_mul(6)).unwrap_or(usize::MAX);
        Self { bytes: Self::SHORT.bytes.saturating_add(bytes), ..Self::SHORT }
    }

    /// Of an answer that gathers so many elements, of so many values each.
    #[must_use]
    pub fn of_elements(elements: u32, values_each: u32) -> Self {
        let values = u64::from(elements).saturating_mul(values_each.into());
        let values = usize::try_from(values).unwrap_or(usize::MAX).saturating_add(Self::SHORT.values);
        Self { values, ..Self::GATHERED }
    }
}
