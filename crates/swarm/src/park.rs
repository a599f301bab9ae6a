//! A VM that waits for somebody: restored, warm, stopped.

use std::{collections::BTreeMap, time::Instant};

use skep_keeper_protocol::ServerEnd;

use crate::{
    Error,
    hand_out::hand_out,
    restore::{Restored, Restorer},
    round_ms,
};
use skep_api::{
    VmId,
    exec::{RunCommand, Stdin},
    swarm::{BootReceipt, BootSource},
};

/// How often the way of a command is walked. Each time an emulator translates less; after these the next is hardly faster.
const ROUNDS: usize = 4;
/// How long a shell may take that does nothing, in a guest that runs it for the first time.
const REHEARSAL_MS: u64 = 30_000;

/// A VM that waits for somebody. Nobody ever used it.
pub(crate) struct Parked {
    pub(crate) vm: Restored,
}

impl Parked {
    /// Restores a VM and parks it. Nothing is left where that fails.
    pub(crate) async fn make(restorer: &Restorer, template: &str) -> Result<Self, Error> {
        let id = VmId::generate();
        let vm = restorer.restore(id, template, None).await?;
        match rehearse(&vm).await {
            Ok(()) => Ok(Self { vm }),
            Err(error) => {
                tracing::warn!(vm = %id, %error, "VM {id} could not be parked");
                restorer.clear_away(id).await;
                Err(error)
            }
        }
    }

    /// Its id.
    pub(crate) fn id(&self) -> VmId {
        self.vm.launched.vm
    }

    /// Lets it run on as somebody's, and has it outlive this server. It has that person's variables then, so it is handed
    /// out or ended, never parked again.
    pub(crate) async fn hand_out(
        &self,
        keeper: &ServerEnd,
        env: &BTreeMap<String, String>,
        arrived: Instant,
    ) -> Result<BootReceipt, Error> {
        // At once: what was sent to a stopped VM is there when it runs.
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

/// Walks the way of a hand-out and of a first command, so that an emulator has translated it, and stops the processors.
async fn rehearse(vm: &Restored) -> Result<(), Error> {
    hand_out(&vm.guest, &BTreeMap::new()).await?;
    let command = RunCommand {
        command: "true".to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: REHEARSAL_MS,
    };
    for _ in 0..ROUNDS {
        vm.guest.call(&command).await?;
    }
    // The shell of the next command is started ahead, too.
    vm.guest.rest().await?;
    Ok(vm.machine.pause().await?)
}
