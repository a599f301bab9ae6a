//! A VM of the pool: restored, warmed up and paused.

use std::{collections::BTreeMap, time::Instant};

use skep_keeper_protocol::ServerEnd;

use crate::{
    Error,
    hand_out::hand_out,
    restore::{Environment, Restored, Restorer},
    round_ms,
};
use skep_api::{
    TemplateId, VmId,
    exec::{RunCommand, Stdin},
    swarm::{BootReceipt, BootSource},
};

/// How often the warm-up command is run. An emulator translates less code each time; further rounds hardly help.
const WARM_UP_ROUNDS: usize = 4;
/// Time limit of the warm-up command, including the first start of a shell.
const WARM_UP_TIMEOUT_MS: u64 = 30_000;

/// A paused VM that no caller has used yet.
pub(crate) struct ParkedVm {
    pub(crate) vm: Restored,
}

impl ParkedVm {
    /// Restores and parks a VM. Nothing is left behind after an error.
    pub(crate) async fn create(restorer: &Restorer, template: TemplateId) -> Result<Self, Error> {
        let id = VmId::generate();
        let vm = restorer.restore(id, template, Environment::Unowned).await?;
        match warm_up(&vm).await {
            Ok(()) => Ok(Self { vm }),
            Err(error) => {
                tracing::warn!(vm = %id, %error, "VM {id} could not be parked");
                restorer.end_unrecorded(id).await;
                Err(error)
            }
        }
    }

    pub(crate) fn id(&self) -> VmId {
        self.vm.launched.vm
    }

    /// Resumes the VM with the caller's environment variables and commits it, so that it outlives this server. Because
    /// it has the variables, it is never parked again, even after an error.
    pub(crate) async fn hand_out(
        &self,
        keeper: &ServerEnd,
        env: &BTreeMap<String, String>,
        arrived: Instant,
    ) -> Result<BootReceipt, Error> {
        // Concurrently: data sent to a paused VM is delivered when it runs.
        let (resumed, report, committed) =
            tokio::join!(self.vm.machine.resume(), hand_out(&self.vm.guest, env), keeper.commit(self.id()));
        resumed?;
        committed?;
        let report = report?;
        Ok(BootReceipt {
            source: BootSource::Pool,
            restore_ms: round_ms(self.vm.restore),
            identity_ms: round_ms(self.vm.identity),
            ready_ms: round_ms(arrived.elapsed()),
            reseeded: report.reseeded && self.vm.report.reseeded,
            clock_step_ms: report.clock_step_ms,
        })
    }
}

/// Runs the code paths of a hand-out and of a first command, so that an emulator has translated them, and pauses the
/// VM.
async fn warm_up(vm: &Restored) -> Result<(), Error> {
    hand_out(&vm.guest, &BTreeMap::new()).await?;
    let command = RunCommand {
        command: "true".to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: WARM_UP_TIMEOUT_MS,
    };
    for _ in 0..WARM_UP_ROUNDS {
        vm.guest.call(&command).await?;
    }
    // Work that these commands left, such as the removal of their control groups, would delay the first command of the owner.
    vm.guest.rest().await?;
    Ok(vm.machine.pause().await?)
}
