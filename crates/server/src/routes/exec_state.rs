//! What the routes of commands depend on.

use std::sync::Arc;

use skep_store::Store;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::{operation_runner::OperationRunner, swarm_handle::SwarmHandle};

#[derive(Clone)]
pub(crate) struct ExecState {
    /// The swarm, or the reason why there is none.
    pub vms: SwarmHandle,
    pub runner: OperationRunner,
    /// Used to check that the key of a streaming caller is still valid.
    pub store: Arc<dyn Store>,
    /// True when the server is about to close the remaining connections.
    pub closing: watch::Receiver<bool>,
    /// Tracks the WebSockets, for which the server waits at shutdown.
    pub sessions: TaskTracker,
}
