//! An attempt to take over a VM that an earlier server left.
//!
//! An adoption makes two, and so does the resume of a VM that was adopted while it was paused: a new stream of the agent
//! may stay silent although the VM works. The guest's kernel reports the end of the old stream and the start of the
//! new one apart from the bytes. On several processors an agent may read and echo the marker before it sees the old
//! stream end. It then takes this for the end of the new stream, and waits for another marker. Likewise, QEMU holds back
//! all output of the agent on a new stream if it noticed the end of the old one by a write while the guest's buffers were
//! full. A further stream ends both conditions.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use skep_api::{ErrorCode, VmId};
use skep_channel::Guest;
use skep_engine::Machine;
use skep_keeper_protocol::AttachedVm;
use skep_store::Pause;
use tokio::{
    net::UnixStream,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{
    Error,
    console::ConsoleLog,
    hand_out,
    loss::Step,
    restore::Restorer,
    vm::{Live, Paused, Running},
};

/// Why a VM was not taken over.
#[derive(Debug)]
pub(super) struct AdoptionError {
    /// The step that failed.
    pub(super) step: Step,
    pub(super) error: Error,
}

/// What a server has of a VM that it took over.
pub(super) struct AdoptedVm {
    pub(super) pidfd: OwnedFd,
    pub(super) console: ConsoleLog,
    pub(super) state: Live,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// When the adoption began.
    begun: Instant,
    /// Time limit, from the beginning of the adoption.
    limit: Duration,
    is_first: bool,
}

impl Attempt {
    /// The first attempt of an adoption, which begins now.
    pub(super) fn first(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit, is_first: true }
    }

    /// The second attempt. `limit` includes the time of the first one.
    pub(super) fn again(self, limit: Duration) -> Self {
        Self { limit, is_first: false, ..self }
    }

    /// Performs a step, and names it in the error.
    pub(super) async fn step<T, E: Into<Error>>(
        self,
        step: Step,
        outcome: impl Future<Output = Result<T, E>>,
    ) -> Result<T, AdoptionError> {
        let outcome: Result<T, Error> = match timeout_at(self.begun + self.limit, outcome).await {
            Ok(outcome) => outcome.map_err(Into::into),
            Err(_) => Err(skep_channel::Error::Timeout(self.limit).into()),
        };
        outcome.map_err(|error| AdoptionError { step, error })
    }

    /// Attaches to a VM and puts it into the state on record. Checks that the guest of a VM that runs answers, in a
    /// protocol that this release speaks. After an error all streams are closed: the VMM accepts those of the next attempt
    /// then, and the marker on the agent's begins another connection.
    pub(super) async fn reach(
        self,
        restorer: &Restorer,
        vm: VmId,
        pause: Option<Pause>,
    ) -> Result<AdoptedVm, AdoptionError> {
        let attached = self.step(Step::Keeper, restorer.keeper.attach(vm)).await?;
        let AttachedVm { pidfd, monitor, agent, console: output, .. } = attached;
        let machine: Arc<dyn Machine> =
            self.step(Step::Monitor, restorer.driver.attach(monitor)).await?.into();
        let console = ConsoleLog::default();
        // After an error the set ends the task: the VMM serves one stream of the console at a time.
        let mut follower = JoinSet::new();
        follower.spawn(console.clone().follow(output));
        let state = self.match_record(machine, agent, pause).await?;
        follower.detach_all();
        Ok(AdoptedVm { pidfd, console, state })
    }

    async fn match_record(
        self,
        machine: Arc<dyn Machine>,
        agent: UnixStream,
        pause: Option<Pause>,
    ) -> Result<Live, AdoptionError> {
        let runs = self.step(Step::Monitor, machine.is_running()).await?;
        if let Some(pause) = pause {
            // The earlier server ended while it resumed the VM.
            if runs {
                self.step(Step::Monitor, machine.pause()).await?;
            }
            return Ok(Live::Paused(Paused::adopted(machine, agent, pause.by)));
        }
        // The earlier server ended while it paused the VM.
        if !runs {
            self.step(Step::Monitor, machine.resume()).await?;
        }
        let guest = self.step(Step::Agent, Guest::connect(agent, self.limit)).await?;
        self.step(Step::Protocol, guest.check_protocol()).await?;
        // The clock of a VM that stood still is late. The first attempt may have started it.
        if !runs || !self.is_first {
            self.step(Step::Clock, hand_out::set_clock(&guest)).await?;
        }
        self.step(Step::Thaw, thaw(&guest)).await?;
        Ok(Live::Running(Running { machine, guest }))
    }
}

/// Lets the programs of a VM run that an earlier server froze for a copy before it ended.
async fn thaw(guest: &Guest) -> Result<(), skep_channel::Error> {
    match guest.thaw(None).await {
        // An agent of an earlier release has never frozen any.
        Err(skep_channel::Error::Refused(failure)) if failure.code == ErrorCode::UnknownRoute => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_error_names_the_step_that_did_not_end_in_time() {
        let attempt = Attempt::first(Duration::from_secs(30));
        attempt.step(Step::Keeper, async { Ok::<_, Error>(()) }).await.unwrap();
        let late = attempt.step(Step::Monitor, pending::<Result<(), Error>>()).await.unwrap_err();
        assert_eq!(late.step, Step::Monitor);
        assert_eq!(crate::loss::message(late.step, &late.error), "its process did not answer within 30 s");
        assert!(late.error.new_streams_may_help());
        // The limit is that of all steps together.
        let late = attempt.step(Step::Thaw, pending::<Result<(), Error>>()).await.unwrap_err();
        assert_eq!(late.step, Step::Thaw);
        let second = attempt.again(Duration::from_secs(50));
        let late = second.step(Step::Agent, pending::<Result<(), Error>>()).await.unwrap_err();
        assert_eq!(
            crate::loss::message(late.step, &late.error),
            "its guest agent did not answer within 50 s"
        );
    }
}
