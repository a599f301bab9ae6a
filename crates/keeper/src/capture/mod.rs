//! Captures: copies of VMs whose processors are stopped, with memory, device state and disk as they are at that moment.
//!
//! A capture contains the pages of guest memory that differ from the baked template, also if the guest continues another
//! snapshot. The VMM maps the template's memory file privately, so the kernel's page map shows which pages the guest has
//! written. The VMM holds all other files of the VM open. A capture therefore depends neither on the templates that are
//! loaded now, nor on the keeper that launched the VM.
//!
//! 1. [`Request::PrepareCapture`](skep_keeper_protocol::Request::PrepareCapture) creates the file for the device state. For a
//!    VM that runs on afterwards, it also copies the memory once: that allocates the pages of the copy while the VM runs.
//! 2. The server stops the processors and lets the VMM save its devices.
//! 3. [`Request::Capture`](skep_keeper_protocol::Request::Capture) copies memory and disk. The VM may run on.
//! 4. VMs are launched from the capture, or it is stored as a template.
//! 5. [`Request::DropCapture`](skep_keeper_protocol::Request::DropCapture) frees it. VMs keep what they have mapped.

mod delta;
mod guest_memory;
mod process_memory;
mod runs;
mod vmm_files;

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use skep_api::{TemplateId, VmId};
use skep_engine::Delta;
use skep_keeper_protocol::AfterCapture;

use crate::{
    Error, OpenTemplate,
    disk_layer::{self, FileId},
    memory::MemoryAdmission,
    records::InheritedFiles,
};
pub(crate) use delta::DeltaFiles;
use delta::MemoryCopy;
use guest_memory::GuestMemory;
use runs::Run;
use vmm_files::VmmFiles;

/// What is copied: a VM, whose processors are stopped unless it is a pre-copy.
pub(crate) struct CaptureSource {
    pub(crate) vm: VmId,
    pub(crate) pid: u32,
    pub(crate) origin: CaptureOrigin,
    /// The root file system.
    pub(crate) root: Option<FileId>,
    /// The other files that copies share. `None` if an earlier release launched the VM.
    pub(crate) inherited: Option<InheritedFiles>,
    pub(crate) layer: File,
}

/// The template on disk that the VM was restored from, and the size of the guest.
#[derive(Debug, Clone)]
pub(crate) struct CaptureOrigin {
    pub(crate) template: TemplateId,
    /// The hash of its inputs.
    pub(crate) key: String,
    /// The checksum of its guest memory. `None` if it is not known.
    pub(crate) ram_sha256: Option<String>,
    pub(crate) vcpus: u32,
    /// In MiB.
    pub(crate) memory_mb: u64,
}

/// A capture that is not complete.
pub(crate) struct PendingCapture {
    pub(crate) vm: VmId,
    pub(crate) then: AfterCapture,
    /// The VMM saves its devices into it.
    state: File,
    memory: MemoryCopy,
}

/// A copy of a VM.
pub(crate) struct Capture {
    pub(crate) origin: CaptureOrigin,
    files: VmmFiles,
    pub(crate) state: File,
    pub(crate) delta: DeltaFiles,
    /// Without a name on disk.
    pub(crate) layer: File,
}

impl PendingCapture {
    /// Creates the file for the device state. Returns a descriptor of it for the VMM, which is open for writing only, as
    /// QEMU requires.
    ///
    /// # Errors
    /// No memory or no descriptor is available.
    pub(crate) fn create(vm: VmId, then: AfterCapture) -> Result<(Self, OwnedFd), Error> {
        let create = || {
            let state = File::from(memfd_create("skep-state", MemfdFlags::CLOEXEC)?);
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let writable = rustix::fs::open(path_of(&state), flags, rustix::fs::Mode::empty())?;
            io::Result::Ok((Self { vm, then, state, memory: MemoryCopy::create()? }, writable))
        };
        create().map_err(Error::io("file of a device state"))
    }

    /// Copies the memory while the VM runs. [`Self::complete`] copies it again, into the same pages: to allocate them takes
    /// more than half of the time of a copy. `admit` is that of [`Self::complete`]. Blocks.
    ///
    /// # Errors
    /// Those of [`Self::complete`].
    pub(crate) fn precopy(
        &self,
        source: &CaptureSource,
        admit: impl FnOnce(u64) -> Result<MemoryAdmission, Error>,
    ) -> Result<(), Error> {
        let failed = || Error::io(format!("capture of VM {}", source.vm));
        let files = VmmFiles::of(source.pid, source.root, source.inherited.as_ref()).map_err(failed())?;
        self.copy_memory(source, &files, admit).map(drop)
    }

    /// What it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.memory_bytes()
    }

    /// Copies memory of this process, like that of a guest.
    #[cfg(test)]
    pub(crate) fn copy_own(&self, memory: &[u8]) -> io::Result<()> {
        let pages = memory.len() as u64 / runs::PAGE_BYTES;
        let guest = GuestMemory::of(std::process::id(), memory.as_ptr() as u64, pages);
        self.memory.copy(&guest, std::slice::from_ref(&(0..pages)))
    }

    /// Copies memory and disk. `admit` gets by how much the memory's copy may grow, in bytes, before it is made; the
    /// admission ends when it is. Blocks.
    ///
    /// # Errors
    /// The VMM has ended or is not what the keeper launched, `admit` refuses, or the disk is full.
    pub(crate) fn complete(
        self,
        source: &CaptureSource,
        disk_layers: &Path,
        admit: impl FnOnce(u64) -> Result<MemoryAdmission, Error>,
    ) -> Result<Capture, Error> {
        let failed = || Error::io(format!("capture of VM {}", source.vm));
        let files = VmmFiles::of(source.pid, source.root, source.inherited.as_ref()).map_err(failed())?;
        let runs = self.copy_memory(source, &files, admit)?;
        let delta = self.memory.seal(&runs).map_err(failed())?;
        let layer = disk_layer::copy(&source.layer, disk_layers, 0)?;
        tracing::debug!(vm = %source.vm, runs = runs.len(), bytes = runs::bytes(&runs), "VM {} is captured", source.vm);
        Ok(Capture { origin: source.origin.clone(), files, state: self.state, delta, layer })
    }

    /// Returns the runs of pages that were copied.
    fn copy_memory(
        &self,
        source: &CaptureSource,
        files: &VmmFiles,
        admit: impl FnOnce(u64) -> Result<MemoryAdmission, Error>,
    ) -> Result<Vec<Run>, Error> {
        let failed = || Error::io(format!("capture of VM {}", source.vm));
        let memory = GuestMemory::locate(source.pid, &files.ram, source.origin.memory_mb).map_err(failed())?;
        let runs = memory.changed_runs(files.pages.as_ref()).map_err(failed())?;
        // Until the copy is written: only then does the machine count it as taken.
        let _admission = admit(runs::bytes(&runs).saturating_sub(self.memory.memory_bytes()))?;
        self.memory.copy(&memory, &runs).map_err(failed())?;
        Ok(runs)
    }
}

impl Capture {
    /// Opens all files for one VM.
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub(crate) fn open(&self) -> Result<OpenTemplate, Error> {
        let open = |file: &File| -> Result<OwnedFd, Error> {
            // Opened anew, because file positions would be shared otherwise.
            Ok(File::open(path_of(file)).map_err(Error::io("file of a capture"))?.into())
        };
        let CaptureOrigin { key, ram_sha256, vcpus, memory_mb, .. } = self.origin.clone();
        Ok(OpenTemplate {
            key,
            edition: 0,
            vcpus,
            memory_mb,
            ram: open(&self.files.ram)?,
            ram_sha256,
            kernel: open(&self.files.kernel)?,
            initrd: open(&self.files.initrd)?,
            root: open(&self.files.root)?,
            state: open(&self.state)?,
            layer: open(&self.layer)?,
            delta: Some(Delta { data: open(&self.delta.data)?, pages: open(&self.delta.pages)? }),
            // The source of the launch has it.
            origin: None,
        })
    }
}

fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
