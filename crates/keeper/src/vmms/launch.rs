//! The launch of a VM, and the check that its template is undamaged.

use std::{net::Ipv4Addr, os::fd::OwnedFd, sync::Arc};

use skep_api::{ErrorCode, TemplateId, VmId};
use skep_keeper_protocol::Launched;
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{Error, capacity, vmm::VmResources};

impl Vmms {
    pub(super) async fn launch(
        self: &Arc<Self>,
        vm: VmId,
        template: TemplateId,
        ip: Option<Ipv4Addr>,
    ) -> Result<(Launched, Vec<OwnedFd>), Error> {
        capacity::check_now(&self.data_dir, &self.memory_after_admissions()?)?;
        self.reserve(vm)?;
        let mut belongings = VmResources::default();
        let built = self.build(vm, template, ip, &mut belongings).await;
        let origin = belongings.origin();
        let launched = match built {
            Ok(launched) => launched,
            Err(error) => {
                self.kill_uncommitted_if_damaged(origin.as_ref(), &error);
                self.clear(vm, belongings).await?;
                return Err(error);
            }
        };
        self.slots().insert(vm, Slot::Running(Box::new(belongings)));
        // Checked again: a check that found damage in the meantime did not see this VM in the table.
        if let Err(error) = self.check_origin(origin).await {
            self.end(vm).await?;
            return Err(error);
        }
        Ok(launched)
    }

    /// Checks that the template that a VM was restored from is undamaged.
    pub(super) async fn check_origin(
        self: &Arc<Self>,
        origin: Option<(TemplateId, u64)>,
    ) -> Result<(), Error> {
        let Some((template, edition)) = origin else { return Ok(()) };
        let this = Arc::clone(self);
        let checking = spawn_blocking(move || this.swarm.templates.check(template, edition));
        let checked = checking.await.map_err(|error| Error::io("template")(std::io::Error::other(error)))?;
        checked.map_err(|failure| {
            let error = failure.into();
            self.kill_uncommitted_if_damaged(origin.as_ref(), &error);
            error
        })
    }

    /// If the error says that the template is damaged, kills the uncommitted VMMs of this and earlier editions. They
    /// stay in the table until the server notices and requests their end. Committed VMs keep running.
    fn kill_uncommitted_if_damaged(&self, origin: Option<&(TemplateId, u64)>, error: &Error) {
        let Some((template, damaged)) = origin.filter(|_| error.code() == ErrorCode::TemplateDamaged) else {
            return;
        };
        let is_meant = |(other, edition): (TemplateId, u64)| other == *template && edition <= *damaged;
        for (vm, held) in self.slots().iter() {
            if let Slot::Running(belongings) = held
                && !belongings.committed()
                && belongings.origin().is_some_and(is_meant)
                && let Err(error) = belongings.kill()
            {
                tracing::error!(%vm, %error, "VM {vm} of a damaged template does not end: {error}");
            }
        }
    }

    /// Adds a busy slot to the table.
    fn reserve(&self, vm: VmId) -> Result<(), Error> {
        let mut held = self.slots();
        if held.contains_key(&vm) {
            return Err(Error::VmExists(vm));
        }
        // The server counts too, but the keeper does not rely on it.
        if held.len() >= self.capacity.max_vms as usize {
            return Err(Error::VmLimitReached(self.capacity.max_vms));
        }
        held.insert(vm, Slot::Busy);
        Ok(())
    }

    async fn build(
        self: &Arc<Self>,
        vm: VmId,
        template: TemplateId,
        ip: Option<Ipv4Addr>,
        belongings: &mut VmResources,
    ) -> Result<(Launched, Vec<OwnedFd>), Error> {
        // The semaphore is never closed, so this never fails.
        let _permit = self.launches.acquire().await;
        let uid = *belongings.uid.insert(self.uids().take()?);
        let tap = match ip {
            Some(ip) => self.network.add_tap_at(ip).await?,
            None => self.network.add_tap().await?,
        };
        belongings.port = Some(tap.port.clone());
        let this = Arc::clone(self);
        let mut taken = std::mem::take(belongings);
        let started = spawn_blocking(move || {
            let outcome = taken.start(&this.site(), vm, uid, tap, &this.launch_source(template));
            (taken, outcome)
        });
        let (taken, outcome) =
            started.await.map_err(|error| Error::io("launch")(std::io::Error::other(error)))?;
        *belongings = taken;
        let descriptors = outcome?;
        let description = belongings.describe().ok_or(Error::UnknownVm(vm))?;
        Ok((description.launched, descriptors.into()))
    }
}
