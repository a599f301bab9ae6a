//! Restores a VM from a snapshot: launches the VMM, loads the state and gives the guest its identity.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use skep_api::{ErrorCode, TemplateId, VmId};
use skep_channel::{Guest, IdentityReport};
use skep_engine::{Driver, Machine};
use skep_keeper_protocol::{Launched, LaunchedVm, OutOfMemory, ServerEnd};

use crate::{Error, console::ConsoleLog, hand_out, identity};

/// A guest usually answers within 0.1 s, but may take many seconds on an overloaded machine.
const GUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of the console of a VM that failed to start is logged, in bytes.
const CONSOLE_TAIL_BYTES: usize = 2 << 10;

pub(crate) struct Restorer {
    pub(crate) keeper: ServerEnd,
    pub(crate) driver: Arc<dyn Driver>,
}

/// A VM that runs with its own identity and is not recorded yet.
pub(crate) struct Restored {
    pub(crate) launched: Launched,
    pub(crate) pidfd: OwnedFd,
    pub(crate) console: ConsoleLog,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) guest: Guest,
    pub(crate) report: IdentityReport,
    /// Time from the start of loading until the processors ran.
    pub(crate) restore: Duration,
    /// Duration of the identity handshake.
    pub(crate) identity: Duration,
}

/// The environment variables of the commands in a VM.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Environment<'a> {
    /// The VM has no owner, and accepts no commands until it is handed out.
    Unowned,
    Given(&'a BTreeMap<String, String>),
    /// Those of the VM that this one is a copy of, and these.
    KeptWith(&'a BTreeMap<String, String>),
}

impl<'a> Environment<'a> {
    pub(crate) fn given(self) -> Option<&'a BTreeMap<String, String>> {
        match self {
            Self::Unowned => None,
            Self::Given(env) | Self::KeptWith(env) => Some(env),
        }
    }
}

impl Restorer {
    /// Restores a VM from a template or a capture. Nothing is left behind after an error.
    pub(crate) async fn restore(
        &self,
        id: VmId,
        template: TemplateId,
        environment: Environment<'_>,
    ) -> Result<Restored, Error> {
        let outcome = match self.keeper.launch(id, template, None).await {
            Ok(launched) => {
                tracing::debug!(vm = %id, "VM {id} is launched for a boot");
                bring_up(&*self.driver, launched, environment).await
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(vm = %id, %error, "VM {id} did not come up");
            // The VM is ended after a failed launch too: its VMM may run, and only the answer of the keeper may be lost.
            self.end_unrecorded(id).await;
        }
        outcome
    }

    /// Ends a VM that has no task. Returns why, if it had ended because memory ran out. Errors are logged.
    pub(crate) async fn end_unrecorded(&self, id: VmId) -> Option<OutOfMemory> {
        self.keeper.end(id).await.unwrap_or_else(|error| {
            if error.code() != ErrorCode::UnknownVm {
                tracing::error!(vm = %id, %error, "VM {id} could not be removed");
            }
            None
        })
    }
}

/// Gives a guest its identity, and the time. `begun`: when the connection to it began.
pub(crate) async fn give_identity(
    guest: &Guest,
    launched: &Launched,
    environment: Environment<'_>,
    begun: Instant,
) -> Result<IdentityReport, Error> {
    let identity = identity::new(launched, environment);
    let mut report = guest.set_identity(&identity).await?;
    report.verify(&identity)?;
    // Variables of a hand-out replace all others, so that the clock alone is set where some are kept.
    if let Environment::KeptWith(_) = environment
        && begun.elapsed() > hand_out::MAX_TIME_DELAY
    {
        hand_out::set_clock(guest).await?;
    } else if let Some(env) = environment.given()
        && begun.elapsed() > hand_out::MAX_TIME_DELAY
    {
        // The time in the identity message is too old, so the clock is set again.
        report.clock_step_ms += hand_out::hand_out(guest, env).await?.clock_step_ms;
    }
    Ok(report)
}

async fn bring_up(
    driver: &dyn Driver,
    vm: LaunchedVm,
    environment: Environment<'_>,
) -> Result<Restored, Error> {
    let LaunchedVm { launched, pidfd, monitor, agent, console: stream, state } = vm;
    let console = ConsoleLog::default();
    tokio::spawn(console.clone().follow(stream));
    let started = async {
        let begun = Instant::now();
        let machine = driver.restore(monitor, state.into()).await?;
        let restore = begun.elapsed();
        let begun = Instant::now();
        let guest = Guest::connect(agent, GUEST_TIMEOUT).await?;
        let report = give_identity(&guest, &launched, environment, begun).await?;
        Ok::<_, Error>((machine, guest, report, restore, begun.elapsed()))
    };
    match started.await {
        Ok((machine, guest, report, restore, identity)) => {
            Ok(Restored { launched, pidfd, console, machine, guest, report, restore, identity })
        }
        Err(error) => {
            let console_tail = console.tail(CONSOLE_TAIL_BYTES);
            if !console_tail.is_empty() {
                tracing::warn!(vm = %launched.vm, console = %console_tail, "last output of VM {}", launched.vm);
            }
            Err(error)
        }
    }
}
