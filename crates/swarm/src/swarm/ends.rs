//! Ends of VMs by requests and by tickets.

use std::time::Duration;

use futures_util::future::join_all;
use skep_api::{
    AccountId, ErrorCode, VmId,
    swarm::{EndReason, Vm},
};
use skep_store::VmWithoutAttempt;
use tokio::time::timeout;

use super::Swarm;
use crate::Error;

/// How long a command may continue after its ticket is finished.
const COMMAND_EXIT_GRACE: Duration = Duration::from_secs(5);

impl Swarm {
    /// Ends all VMs of the account. Returns how many this call ended.
    pub async fn cleanup(&self, account: &AccountId, request_id: &str) -> Result<u32, Error> {
        let vms = self.registry().of(*account);
        let ends = join_all(vms.iter().map(|handle| handle.end(EndReason::Cleanup, Some(request_id)))).await;
        let mut terminated = 0;
        for end in ends {
            match end {
                Ok(true) => terminated += 1,
                // The VM ended by itself or by another call.
                Ok(false) => {}
                Err(error) if error.code() == ErrorCode::UnknownVm => {}
                Err(error) => return Err(error),
            }
        }
        Ok(terminated)
    }

    /// Ends one VM and returns its record.
    ///
    /// # Errors
    /// Unknown VM.
    pub async fn end(&self, account: &AccountId, vm: VmId, request_id: &str) -> Result<Vm, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        handle.end(EndReason::Deleted, Some(request_id)).await?;
        Ok(handle.record())
    }

    /// Ends a VM because its attempt at a ticket has ended, if it still runs. If the ticket is finished, the command of
    /// the boot gets some seconds to exit first, since it may have finished the ticket itself.
    ///
    /// # Errors
    /// The keeper or the store is not available.
    pub async fn end_after_attempt(&self, ended: VmWithoutAttempt) -> Result<(), Error> {
        let VmWithoutAttempt { account, vm, finished } = ended;
        let Ok(handle) = self.registry().by_id(account, vm) else { return Ok(()) };
        if finished {
            let _ = timeout(COMMAND_EXIT_GRACE, handle.command_over()).await;
        }
        match handle.end(EndReason::TicketEnded, None).await {
            Err(error) if error.code() != ErrorCode::UnknownVm => Err(error),
            _ => Ok(()),
        }
    }
}
