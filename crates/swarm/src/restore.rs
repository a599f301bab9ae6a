//! A VM out of a snapshot: launched, loaded, under an identity of its own.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use skep_api::{ErrorCode, VmId};
use skep_channel::{Guest, IdentityReport};
use skep_engine::{Driver, Machine};
use skep_keeper_protocol::{Launched, LaunchedVm, ServerEnd};

use crate::{Error, console::ConsoleLog, hand_out, identity};

/// A guest takes a tenth of a second; on a machine where everything is asked for at once, many.
const GUEST_PATIENCE: Duration = Duration::from_secs(60);

/// How much of the console of a VM that did not come up goes to the log, in bytes.
const SAID_BYTES: usize = 2 << 10;

/// What restores VMs.
pub(crate) struct Restorer {
    pub(crate) keeper: ServerEnd,
    pub(crate) driver: Arc<dyn Driver>,
}

/// A VM that runs under its own identity, and that nobody was told of.
pub(crate) struct Restored {
    pub(crate) launched: Launched,
    pub(crate) pidfd: OwnedFd,
    pub(crate) console: ConsoleLog,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) guest: Guest,
    pub(crate) report: IdentityReport,
    /// Loading the snapshot until its processors ran.
    pub(crate) restore: Duration,
    /// The handshake that gave it its identity.
    pub(crate) identity: Duration,
}

impl Restorer {
    /// Restores a VM. Without `env` it is nobody's: it takes no command before it is handed out. Nothing is left where it
    /// fails.
    pub(crate) async fn restore(
        &self,
        id: VmId,
        template: &str,
        env: Option<&BTreeMap<String, String>>,
    ) -> Result<Restored, Error> {
        let outcome = match self.keeper.launch(id, template).await {
            Ok(launched) => bring_up(&*self.driver, launched, env).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(vm = %id, %error, "VM {id} did not come up");
            // Also where the launch failed: it may have failed here, on what the keeper handed over.
            self.clear_away(id).await;
        }
        outcome
    }

    /// Ends a VM that nobody was told of.
    pub(crate) async fn clear_away(&self, id: VmId) {
        if let Err(error) = self.keeper.end(id).await
            && error.code() != ErrorCode::UnknownVm
        {
            tracing::error!(vm = %id, %error, "what is left of VM {id} could not be cleared away");
        }
    }
}

async fn bring_up(
    driver: &dyn Driver,
    vm: LaunchedVm,
    env: Option<&BTreeMap<String, String>>,
) -> Result<Restored, Error> {
    let LaunchedVm { launched, pidfd, monitor, agent, console: stream, state } = vm;
    let console = ConsoleLog::default();
    tokio::spawn(console.clone().follow(stream));
    let risen = async {
        let begun = Instant::now();
        let machine = driver.restore(monitor, state.into()).await?;
        let restore = begun.elapsed();
        let begun = Instant::now();
        let guest = Guest::connect(agent, GUEST_PATIENCE).await?;
        let identity = identity::new(&launched, env);
        let mut report = guest.take_identity(&identity).await?;
        report.proves(&identity)?;
        if let Some(env) = env
            && begun.elapsed() > hand_out::OLD
        {
            // It carried the time, which grew old on the way.
            report.clock_step_ms += hand_out::hand_out(&guest, env).await?.clock_step_ms;
        }
        Ok::<_, Error>((machine, guest, report, restore, begun.elapsed()))
    };
    match risen.await {
        Ok((machine, guest, report, restore, identity)) => {
            Ok(Restored { launched, pidfd, console, machine, guest, report, restore, identity })
        }
        Err(error) => {
            let said = console.end(SAID_BYTES);
            if !said.is_empty() {
                tracing::warn!(vm = %launched.vm, console = %said, "what VM {} said last", launched.vm);
            }
            Err(error)
        }
    }
}
