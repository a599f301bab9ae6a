//! The server's requests that concern captures of VMs.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use skep_api::{ErrorCode, Failure, TemplateId, VmId};
use skep_keeper_protocol::{AfterCapture, MAX_CAPTURES, StorePurpose, TemplateStatus};
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{
    CapturedFiles, Error, FileId, capacity,
    capture::{Capture, CaptureSource, PendingCapture},
    memory::MemoryAdmission,
    vmm::LaunchSource,
};

/// The captures of the server, by their ids.
pub(super) type Captures = HashMap<TemplateId, CaptureSlot>;

pub(super) enum CaptureSlot {
    Pending(PendingCapture),
    /// A copy is being made. It took `bytes` when that began.
    Busy {
        bytes: u64,
    },
    Complete(Arc<Capture>),
}

impl CaptureSlot {
    /// Takes the pending capture, which is completed elsewhere. `None` if there is none.
    fn take_pending(&mut self) -> Option<PendingCapture> {
        let Self::Pending(pending) = self else { return None };
        let bytes = pending.memory_bytes();
        match std::mem::replace(self, Self::Busy { bytes }) {
            Self::Pending(pending) => Some(pending),
            Self::Busy { .. } | Self::Complete(_) => None,
        }
    }

    /// What it takes, in bytes.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Pending(pending) => pending.memory_bytes(),
            Self::Busy { bytes } => *bytes,
            Self::Complete(capture) => capture.delta.memory_bytes(),
        }
    }
}

impl Vmms {
    pub(super) async fn prepare_capture(
        self: &Arc<Self>,
        vm: VmId,
        capture: TemplateId,
        then: AfterCapture,
    ) -> Result<OwnedFd, Error> {
        self.check_names_no_template(capture)?;
        self.capture_source(vm)?;
        self.add_capture(capture)?;
        let this = Arc::clone(self);
        let preparing = spawn_blocking(move || {
            this.check_engine()?;
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

    /// Checks that a capture has an id of its own: VMs of a template with the same id would be launched from the capture.
    fn check_names_no_template(&self, capture: TemplateId) -> Result<(), Error> {
        if self.swarm.templates.status(capture).is_none() {
            return Ok(());
        }
        let message = format!("a capture cannot have the id {capture}, which is that of a template");
        Err(Failure::new(ErrorCode::Internal, message).into())
    }

    /// Checks that no other version of the engine is installed than the one that VMs run by. It could not load what they save,
    /// and would be used after the next start of skep.
    fn check_engine(&self) -> Result<(), Error> {
        match self.swarm.launcher.check_version() {
            Err(skep_engine::Error::VersionChanged { was, is }) => {
                let message = format!(
                    "the machine's {was} was updated to {is}, which cannot load the memory of a VM that runs already, so this VM is \
                     neither copied nor paused to disk, and stays as it is; pause it to memory, or restart skep (`systemctl restart \
                     skep`): the VM continues, and a snapshot or a pause to disk then keeps its files alone"
                );
                Err(Failure::new(ErrorCode::TemplateNotReady, message).into())
            }
            // A program that is missing may be installed again in the same version, and saved memory does not need it now.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Puts a capture into its place, unless it was dropped meanwhile.
    fn fill(&self, capture: TemplateId, slot: CaptureSlot) {
        let replaced = match self.captures().get_mut(&capture) {
            Some(held) => std::mem::replace(held, slot),
            None => slot,
        };
        // The lock is released first, because the kernel takes long to free hundreds of megabytes.
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
        captures.insert(capture, CaptureSlot::Busy { bytes: 0 });
        Ok(())
    }

    pub(super) async fn capture(self: &Arc<Self>, capture: TemplateId) -> Result<(), Error> {
        let pending = self.captures().get_mut(&capture).and_then(CaptureSlot::take_pending);
        let pending = pending.ok_or_else(|| unknown_capture(capture))?;
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

    /// Admits the memory for a copy of this size, if the machine has it, and space on its disk.
    fn admit_copy(&self, bytes: u64, then: AfterCapture) -> Result<MemoryAdmission, Error> {
        capacity::check_disk_now(&self.data_dir)?;
        self.admissions.admit(bytes, |admitted| {
            capacity::check_copy_memory(self.memory()?.without(admitted), bytes, then)
        })
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
                origin_ram: capture.origin.ram_sha256.as_deref(),
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
        // The lock is released first, because the kernel takes long to free hundreds of megabytes.
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

    /// What captures take, in bytes, and the deltas that this counts.
    pub(super) fn captures_memory(&self) -> (u64, Vec<FileId>) {
        let (mut bytes, mut deltas) = (0, Vec::new());
        for slot in self.captures().values() {
            bytes += slot.memory_bytes();
            // No VM was launched from any other capture.
            if let CaptureSlot::Complete(capture) = slot {
                deltas.extend(FileId::of(&capture.delta.data).ok());
            }
        }
        (bytes, deltas)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_that_is_being_completed_counts_what_it_took_before() {
        const BYTES: usize = 3 * 4096;
        let (pending, _state) = PendingCapture::create(VmId::generate(), AfterCapture::RunsOn).unwrap();
        pending.copy_own(&[1; BYTES]).unwrap();
        let mut slot = CaptureSlot::Pending(pending);
        assert_eq!(slot.memory_bytes(), BYTES as u64);
        assert!(slot.take_pending().is_some());
        assert_eq!(slot.memory_bytes(), BYTES as u64);
        assert!(slot.take_pending().is_none());
        assert_eq!(slot.memory_bytes(), BYTES as u64);
    }
}
