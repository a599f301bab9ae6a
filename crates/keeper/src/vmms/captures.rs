//! The server's requests that concern captures of VMs.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use skep_api::{ErrorCode, Failure, TemplateId, VmId};
use skep_keeper_protocol::{AfterCapture, StorePurpose, TemplateStatus};
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{
    CapturedFiles, Error, capacity,
    capture::{Capture, CaptureSource, PendingCapture},
    vmm::LaunchSource,
};

/// Captures at the same time. Each takes memory, and the server drops it after a fork or when it is stored.
const MAX_CAPTURES: usize = 64;

/// The captures of the server, by their ids.
pub(super) type Captures = HashMap<TemplateId, CaptureSlot>;

pub(super) enum CaptureSlot {
    Pending(PendingCapture),
    /// The copy is being made.
    Busy,
    Complete(Arc<Capture>),
}

impl Vmms {
    pub(super) async fn prepare_capture(
        self: &Arc<Self>,
        vm: VmId,
        capture: TemplateId,
        then: AfterCapture,
    ) -> Result<OwnedFd, Error> {
        self.capture_source(vm)?;
        self.add_capture(capture)?;
        let this = Arc::clone(self);
        let preparing = spawn_blocking(move || {
            let (pending, state) = PendingCapture::create(vm, then)?;
            if then == AfterCapture::RunsOn {
                pending.precopy(&this.capture_source(vm)?, |bytes| this.admit_copy(bytes, then))?;
            }
            Ok((pending, state))
        });
        let prepared = preparing.await.map_err(|error| Error::io("capture")(std::io::Error::other(error)));
        let (pending, state) =
            prepared.and_then(|prepared| prepared).inspect_err(|_| self.drop_capture(capture))?;
        self.fill(capture, CaptureSlot::Pending(pending));
        Ok(state)
    }

    /// Puts a capture into its place, unless it was dropped meanwhile.
    fn fill(&self, capture: TemplateId, slot: CaptureSlot) {
        let replaced = match self.captures().get_mut(&capture) {
            Some(held) => std::mem::replace(held, slot),
            None => slot,
        };
        // Without the lock: the kernel frees hundreds of megabytes.
        drop(replaced);
    }

    fn add_capture(&self, capture: TemplateId) -> Result<(), Error> {
        let mut captures = self.captures();
        if captures.len() >= MAX_CAPTURES {
            let message = format!("{MAX_CAPTURES} VMs are being copied already; try again");
            return Err(Failure::new(ErrorCode::NoCapacity, message).into());
        }
        if captures.contains_key(&capture) {
            let message = format!("there is a capture {capture} already");
            return Err(Failure::new(ErrorCode::Internal, message).into());
        }
        captures.insert(capture, CaptureSlot::Busy);
        Ok(())
    }

    pub(super) async fn capture(self: &Arc<Self>, capture: TemplateId) -> Result<(), Error> {
        let pending = match self.captures().get_mut(&capture) {
            Some(slot @ CaptureSlot::Pending(_)) => std::mem::replace(slot, CaptureSlot::Busy),
            _ => return Err(unknown_capture(capture)),
        };
        let CaptureSlot::Pending(pending) = pending else { return Err(unknown_capture(capture)) };
        let this = Arc::clone(self);
        let copying = spawn_blocking(move || this.complete_capture(pending));
        let copied = copying.await.map_err(|error| Error::io("capture")(std::io::Error::other(error)));
        let copy = copied.and_then(|copied| copied).inspect_err(|_| self.drop_capture(capture))?;
        self.fill(capture, CaptureSlot::Complete(Arc::new(copy)));
        Ok(())
    }

    fn complete_capture(&self, pending: PendingCapture) -> Result<Capture, Error> {
        let source = self.capture_source(pending.vm)?;
        let then = pending.then;
        pending.complete(&source, &self.data_dir.disk_layers(), |bytes| self.admit_copy(bytes, then))
    }

    /// Checks that the machine has memory for a copy of this size, and space on its disk.
    fn admit_copy(&self, bytes: u64, then: AfterCapture) -> Result<(), Error> {
        let mut memory = self.memory()?;
        if then == AfterCapture::Ends && memory.admits_pause(bytes) {
            return capacity::check_disk_now(&self.data_dir);
        }
        memory.available_bytes = memory.available_bytes.saturating_sub(bytes);
        capacity::check_now(&self.data_dir, &memory)
    }

    pub(super) async fn store_capture(
        self: &Arc<Self>,
        id: TemplateId,
        purpose: StorePurpose,
    ) -> Result<TemplateStatus, Error> {
        let Some(LaunchSource::Capture(capture)) = self.complete_captures(id) else {
            return Err(unknown_capture(id));
        };
        let this = Arc::clone(self);
        let storing = spawn_blocking(move || {
            let files = CapturedFiles {
                origin: capture.origin.template,
                origin_key: &capture.origin.key,
                purpose,
                state: &capture.state,
                delta: &capture.delta.data,
                pages: &capture.delta.pages,
                layer: &capture.layer,
            };
            this.swarm.templates.store(id, files)
        });
        let stored = storing.await.map_err(|error| Error::io("capture")(std::io::Error::other(error)))?;
        Ok(stored?)
    }

    pub(super) fn drop_capture(&self, capture: TemplateId) {
        let dropped = self.captures().remove(&capture);
        // Without the lock: the kernel frees hundreds of megabytes.
        drop(dropped);
    }

    /// Drops the captures of a server that has ended.
    pub(crate) fn drop_all_captures(&self) {
        let dropped = std::mem::take(&mut *self.captures());
        drop(dropped);
    }

    /// Ends the reservations of a server that has ended: it may not have recorded which VMs they were for. The next server
    /// reserves the addresses of the VMs that are on disk on record, before it boots any.
    pub(crate) async fn end_all_reservations(&self) {
        if let Err(error) = self.network.end_all_reservations().await {
            tracing::error!(%error, "addresses stay reserved: {error}");
        }
    }

    /// What a VM is launched from: a capture with this id, or else a template.
    pub(super) fn launch_source(&self, id: TemplateId) -> LaunchSource {
        self.complete_captures(id).unwrap_or(LaunchSource::Template(id))
    }

    /// What captures take, in bytes.
    pub(super) fn captures_bytes(&self) -> u64 {
        let bytes = |slot: &CaptureSlot| match slot {
            CaptureSlot::Complete(capture) => capture.delta.memory_bytes(),
            CaptureSlot::Pending(pending) => pending.memory_bytes(),
            CaptureSlot::Busy => 0,
        };
        self.captures().values().map(bytes).sum()
    }

    fn complete_captures(&self, id: TemplateId) -> Option<LaunchSource> {
        match self.captures().get(&id) {
            Some(CaptureSlot::Complete(capture)) => Some(LaunchSource::Capture(Arc::clone(capture))),
            _ => None,
        }
    }

    fn capture_source(&self, vm: VmId) -> Result<CaptureSource, Error> {
        let slots = self.slots();
        let Some(Slot::Running(resources)) = slots.get(&vm) else { return Err(Error::UnknownVm(vm)) };
        resources.capture_source()?.ok_or(Error::Ended(vm))
    }
}

fn unknown_capture(capture: TemplateId) -> Error {
    Failure::new(ErrorCode::Internal, format!("the keeper has no capture {capture}")).into()
}
