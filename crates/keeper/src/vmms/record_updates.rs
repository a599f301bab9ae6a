//! State of a VM that changes while it runs. It is written to the VM's record first, so that the next keeper knows it.

use std::{
    net::Ipv4Addr,
    sync::{Arc, PoisonError},
};

use skep_api::{
    VmId,
    egress::{EgressPolicy, EgressReport},
};
use skep_keeper_protocol::{EgressTotals, VmEgress};
use skep_network::Port;
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{Error, egress::Egress, records::Record};

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

    /// Sets what a VM may connect to. When it answers, the egress process and the packet filter apply it. A policy that is on
    /// record already is applied already.
    ///
    /// # Errors
    /// The policy cannot be recorded or applied. The policy from before is on record and applies then.
    pub(super) async fn set_egress(self: &Arc<Self>, vm: VmId, egress: VmEgress) -> Result<(), Error> {
        let port = self.port_of(vm)?;
        let before = self.egress_on_record(vm)?;
        let is_none = egress.policy == EgressPolicy::None;
        if egress == before || (is_none && before.policy == EgressPolicy::None) {
            return Ok(());
        }
        let Some(process) = &self.egress else {
            return if is_none || egress.policy == before.policy {
                // The next keeper may have an egress process, and applies what is on record.
                self.record_egress(vm, egress).await
            } else {
                Err(Error::NoEgress("it has no egress process; check `egress` in its settings"))
            };
        };
        self.record_egress(vm, egress.clone()).await?;
        let applied = self.apply_egress(process, port, egress, before.clone()).await;
        if applied.is_err()
            && let Err(error) = self.record_egress(vm, before).await
            && !matches!(error, Error::UnknownVm(_))
        {
            tracing::error!(%vm, %error, "the record of VM {vm} has an egress policy that is not applied: {error}");
        }
        applied
    }

    /// Sets a policy in the egress process and the packet filter.
    ///
    /// # Errors
    /// The egress process or the packet filter does not apply the policy. The egress process has the one from before then.
    async fn apply_egress(
        &self,
        process: &Egress,
        port: Port,
        egress: VmEgress,
        before: VmEgress,
    ) -> Result<(), Error> {
        let (ip, redirected) = (port.ip, egress.policy != EgressPolicy::None);
        process.set(ip, egress).await?;
        let Err(refused) = self.network.set_egress(port, redirected).await else { return Ok(()) };
        // The address of a VM that has ended may belong to another VM next.
        if !matches!(refused, skep_network::Error::PortRemoved(_))
            && let Err(error) = process.set(ip, before).await
        {
            tracing::error!(%ip, %error, "the VM at {ip} has an egress policy that was refused: {error}");
        }
        Err(refused.into())
    }

    fn egress_on_record(&self, vm: VmId) -> Result<VmEgress, Error> {
        match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => {
                belongings.record.as_ref().map(Record::egress).ok_or(Error::UnknownVm(vm))
            }
            _ => Err(Error::UnknownVm(vm)),
        }
    }

    async fn record_egress(self: &Arc<Self>, vm: VmId, egress: VmEgress) -> Result<(), Error> {
        self.change_record(vm, |record| record.set_egress(egress)).await
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
        change: impl FnOnce(&mut Record) + Send + 'static,
    ) -> Result<(), Error> {
        let this = Arc::clone(self);
        let changing = spawn_blocking(move || this.write_change(vm, change));
        changing.await.map_err(|error| Error::io("record of a VM")(std::io::Error::other(error)))?
    }

    fn write_change(&self, vm: VmId, change: impl FnOnce(&mut Record)) -> Result<(), Error> {
        // Changes run one at a time: each reads the record that the previous one wrote, and all write through the same temporary file.
        let _turn = self.record_changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record = match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => belongings.record.clone().ok_or(Error::UnknownVm(vm))?,
            _ => return Err(Error::UnknownVm(vm)),
        };
        change(&mut record);
        self.records.write(&record)?;
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
