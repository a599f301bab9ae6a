//! An operation is a value: it runs here, or travels into a VM and runs there by the same code.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

/// A request that a workspace can run, wherever that workspace is.
pub trait Operation: Serialize + DeserializeOwned + Send + Sync {
    /// The name on the channel, unique among operations.
    const NAME: &'static str;
    /// Whether it starts programs. On the server such an operation is never done by the server's own process.
    const STARTS_PROGRAMS: bool = false;
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send;

    /// How long its answer may take before the guest counts as silent.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60)
    }
}
