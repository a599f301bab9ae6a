//! A VM whose processors are stopped, and whose memory stays with its VMM.

use std::{future::pending, sync::Arc, time::Duration};

use skep_api::{VmId, swarm::PausedBy};
use skep_channel::Guest;
use skep_engine::Machine;
use skep_keeper_protocol::ServerEnd;
use tokio::{
    net::UnixStream,
    time::{Instant, timeout_at},
};

use super::{Running, Unchanged};
use crate::{
    Error, hand_out,
    loss::{self, Step},
};

/// Time limit of the connection to the agent of a VM that was adopted while it was paused.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of the first attempt. It leaves more to the second one, because a slow VM needs that time.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Paused {
    pub(super) machine: Arc<dyn Machine>,
    pub(super) by: PausedBy,
    agent: Agent,
}

/// The agent, which answers a new connection only when its VM runs.
enum Agent {
    /// The connection from before the pause, with the calls that stand still on it.
    Connected(Guest),
    /// The stream to an agent that this server has not talked to. `None` after a resume that failed. The VMM serves one
    /// stream at a time, so there is no other one meanwhile.
    Unconnected(Option<UnixStream>),
}

impl Paused {
    pub(super) fn connected(machine: Arc<dyn Machine>, guest: Guest, by: PausedBy) -> Self {
        Self { machine, by, agent: Agent::Connected(guest) }
    }

    /// A VM that another server paused.
    pub(crate) fn adopted(machine: Arc<dyn Machine>, agent: UnixStream, by: PausedBy) -> Self {
        Self { machine, by, agent: Agent::Unconnected(Some(agent)) }
    }

    /// Waits until the connection to the agent is lost.
    pub(super) async fn agent_closed(&self) {
        match &self.agent {
            Agent::Connected(guest) => guest.closed().await,
            Agent::Unconnected(_) => pending().await,
        }
    }

    /// Starts the processors and sets the clock of the guest, which stood still.
    ///
    /// # Errors
    /// The VMM or the guest did not answer or refused. The processors stand still then.
    pub(crate) async fn resume(mut self, keeper: &ServerEnd, vm: VmId) -> Result<Running, Unchanged<Self>> {
        match self.start(keeper, vm).await {
            Ok(guest) => Ok(Running { machine: self.machine, guest }),
            Err(error) => {
                if let Err(error) = self.machine.pause().await {
                    tracing::warn!(%vm, %error, "VM {vm} was not resumed, but may run: {error}");
                }
                Err((self, error))
            }
        }
    }

    async fn start(&mut self, keeper: &ServerEnd, vm: VmId) -> Result<Guest, Error> {
        self.machine.resume().await?;
        tracing::debug!(%vm, "the processors of VM {vm} are started");
        let guest = match &mut self.agent {
            Agent::Connected(guest) => guest.clone(),
            Agent::Unconnected(stream) => {
                let guest = connect_to_adopted(stream.take(), keeper, vm).await?;
                self.agent = Agent::Connected(guest.clone());
                guest
            }
        };
        hand_out::set_clock(&guest).await?;
        Ok(guest)
    }
}

/// Connects to the agent, on this stream or a new one. A second attempt has a new stream, as in an adoption:
/// `adopt/attempt.rs` has the reasons.
async fn connect_to_adopted(
    stream: Option<UnixStream>,
    keeper: &ServerEnd,
    vm: VmId,
) -> Result<Guest, Error> {
    // Both limits count from now.
    let begun = Instant::now();
    let first = async {
        let stream = match stream {
            Some(stream) => stream,
            None => keeper.attach(vm).await?.agent,
        };
        connect(stream).await
    };
    match within(begun, FIRST_ATTEMPT_TIMEOUT, first).await {
        Err(error) if error.new_streams_may_help() => {
            let message = loss::message(Step::Agent, &error);
            tracing::warn!(%vm, %error, "VM {vm}, which an earlier server paused, is attached again: {message}");
            let second = async { connect(keeper.attach(vm).await?.agent).await };
            within(begun, CONNECT_TIMEOUT, second).await
        }
        outcome => outcome,
    }
}

async fn connect(stream: UnixStream) -> Result<Guest, Error> {
    let guest = Guest::connect(stream, CONNECT_TIMEOUT).await?;
    guest.check_protocol().await?;
    Ok(guest)
}

async fn within<T>(
    begun: Instant,
    limit: Duration,
    outcome: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout_at(begun + limit, outcome).await.map_err(|_| skep_channel::Error::Timeout(limit))?
}
