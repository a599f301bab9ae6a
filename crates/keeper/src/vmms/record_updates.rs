//! State of a VM that changes while it runs. It is written to the VM's record first, so that the next keeper knows it.

use std::{net::Ipv4Addr, sync::Arc};

use skep_api::{
    VmId,
    egress::{EgressPolicy, EgressReport},
};
use skep_keeper_protocol::EgressTotals;
use skep_network::Port;
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
        let port = self.port_of(vm)?;
        self.change_record(vm, |record| record.reaches_api = true).await?;
        Ok(self.network.admit(port).await?)
    }

    /// Sets what a VM may connect to. When it answers, the egress process and the packet filter apply it.
    pub(super) async fn set_egress(self: &Arc<Self>, vm: VmId, policy: EgressPolicy) -> Result<(), Error> {
        let port = self.port_of(vm)?;
        match &self.egress {
            Some(egress) => egress.set(port.ip, policy.clone()).await?,
            None if policy == EgressPolicy::None => return Ok(()),
            None => return Err(Error::NoEgress("it has no egress process; check `egress` in its settings")),
        }
        self.network.set_egress(port, policy != EgressPolicy::None).await?;
        self.change_record(vm, |record| record.egress = policy).await
    }

    pub(super) async fn egress_report(&self, vm: VmId) -> Result<EgressReport, Error> {
        let port = self.port_of(vm)?;
        match &self.egress {
            Some(egress) => egress.report(port.ip).await,
            None => Ok(EgressReport::default()),
        }
    }

    pub(super) async fn egress_totals(&self) -> Result<EgressTotals, Error> {
        match &self.egress {
            Some(egress) => egress.totals().await,
            None => Ok(EgressTotals::default()),
        }
    }

    pub(super) async fn forget_egress(&self, ip: Ipv4Addr) {
        if let Some(egress) = &self.egress {
            egress.forget(ip).await;
        }
    }

    fn port_of(&self, vm: VmId) -> Result<Port, Error> {
        match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => belongings.port.clone().ok_or(Error::UnknownVm(vm)),
            _ => Err(Error::UnknownVm(vm)),
        }
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
