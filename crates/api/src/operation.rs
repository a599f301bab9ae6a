//! Operations on a workspace: requests that run on the server, or are sent into a VM and run there by the same code.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The helper processes beside the server that start programs for callers. Each kind is confined to what its programs
/// need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelperKind {
    /// Runs commands of callers, which may be arbitrary programs.
    Commands,
    /// Runs git, without executing files of callers.
    Git,
}

/// A request that a workspace can run, on the server or in a VM.
pub trait Operation: Serialize + DeserializeOwned + Send + Sync {
    /// The name of the operation between server and guest agent, unique among all operations.
    const NAME: &'static str;
    /// The helper that runs the operation on the server, if it starts programs. `None`: it runs in the server's own
    /// process.
    const HELPER: Option<HelperKind> = None;
    /// The answer of the operation.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// How long the answer may take before the guest counts as unresponsive.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// The maximum size of the answer to this request.
    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::SHORT
    }

    /// Whether a program of the operation adds to the files of the workspace, so that the disk space of its account limits it.
    fn adds_files(&self) -> AddsFiles {
        AddsFiles::Never
    }
}

/// Whether a program adds to the files of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddsFiles {
    /// It reads, or removes something, with which callers make room.
    Never,
    /// It adds something in some cases, and is needed where no room is left: a push, with which callers keep their work
    /// elsewhere.
    Perhaps,
    /// It needs room.
    Always,
}

impl AddsFiles {
    /// [`Self::Always`], unless this is one of the cases in which nothing is added.
    pub(crate) fn unless(adds_nothing: bool) -> Self {
        if adds_nothing { Self::Never } else { Self::Always }
    }
}

/// The maximum size of an answer. The sender may be hostile: a guest, or a program that took over the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimit {
    /// The maximum length of the JSON, in bytes.
    pub bytes: usize,
    /// The maximum number of array elements and object fields together. It limits memory, since a short value needs
    /// much more memory than JSON.
    pub values: usize,
}

impl AnswerLimit {
    /// For an answer about a single thing: paths, names and numbers.
    pub const SHORT: Self = Self { bytes: 64 << 10, values: 4 << 10 };
    /// For an answer with a list of results. Such answers end at 16 MiB of JSON, and a value takes more than eight
    /// bytes on average.
    pub const GATHERED: Self = Self { bytes: (16 << 20) + Self::SHORT.bytes, values: 2 << 20 };

    /// For a short answer with a text of `bytes` in addition.
    #[must_use]
    pub fn with_text(bytes: u64) -> Self {
        // A control character takes six bytes in JSON.
        let bytes = usize::try_from(bytes.saturating_mul(6)).unwrap_or(usize::MAX);
        Self { bytes: Self::SHORT.bytes.saturating_add(bytes), ..Self::SHORT }
    }

    /// For an answer with a list of `elements`, each of `values_each` values.
    #[must_use]
    pub fn of_elements(elements: u32, values_each: u32) -> Self {
        let values = u64::from(elements).saturating_mul(values_each.into());
        let values = usize::try_from(values).unwrap_or(usize::MAX).saturating_add(Self::SHORT.values);
        Self { values, ..Self::GATHERED }
    }
}
