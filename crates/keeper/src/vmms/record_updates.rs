//! State of a VM that changes while it runs. It is written to the VM's record first, so that the next keeper knows it.

use std::sync::Arc;

use skep_api::VmId;
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{Error, records::Record};

impl Vmms {
    /// Marks a VM as committed, so that it outlives this server. Fails if its template is damaged: the VM may have read
    /// corrupt data.
    pub(super) async fn commit(self: &Arc<Self>, vm: VmId) -> Result<(), Error> {
        let origin = match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => belongings.origin(),
            _ => return Err(Error::UnknownVm(vm)),
        };
        self.check_origin(origin).await?;
        self.change_record(vm, |record| record.committed = true).await
    }

    pub(super) async fn admit_to_api(self: &Arc<Self>, vm: VmId) -> Result<(), Error> {
        let port = match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => belongings.port.clone().ok_or(Error::UnknownVm(vm))?,
            _ => return Err(Error::UnknownVm(vm)),
        };
        self.change_record(vm, |record| record.reaches_api = true).await?;
        Ok(self.network.admit(port).await?)
    }

    async fn change_record(
        self: &Arc<Self>,
        vm: VmId,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), Error> {
        let mut record = match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => belongings.record.clone().ok_or(Error::UnknownVm(vm))?,
            _ => return Err(Error::UnknownVm(vm)),
        };
        change(&mut record);
        let (this, written) = (Arc::clone(self), record.clone());
        let writing = spawn_blocking(move || this.records.write(&written));
        writing.await.map_err(|error| Error::io("record of a VM")(std::io::Error::other(error)))??;
        if let Some(Slot::Running(belongings)) = self.slots().get_mut(&vm)
            && let Some(kept) = &mut belongings.record
        {
            *kept = record;
            return Ok(());
        }
        // The VM was ended meanwhile. Its record was removed before or after the write above, so it is removed again.
        self.records.remove(vm)?;
        Err(Error::UnknownVm(vm))
    }
}
