//! The files that a VMM inherited and holds open. The VMM is not trusted: it can have closed or replaced each of them, which
//! spoils the copies of its own guest alone.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
};

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals};
use skep_engine::launch::inherited;

use crate::disk_layer::{self, FileId};

pub(super) struct VmmFiles {
    pub(super) ram: File,
    pub(super) kernel: File,
    pub(super) initrd: File,
    pub(super) root: File,
    /// The runs of the delta that the guest continues. `None` for a guest of a baked template.
    pub(super) pages: Option<File>,
}

impl VmmFiles {
    /// # Errors
    /// One of them is not what the VMM inherited, or the process has ended.
    pub(super) fn of(pid: u32, root: Option<FileId>) -> io::Result<Self> {
        // QEMU moves the descriptors of its disks.
        let root = root.and_then(|root| disk_layer::find(pid, root));
        Ok(Self {
            ram: sealed(open(pid, inherited::RAM)?)?,
            kernel: open(pid, inherited::KERNEL)?,
            initrd: open(pid, inherited::INITRD)?,
            root: root.ok_or_else(|| io::Error::other("the VMM has closed its root file system"))?,
            // The variable that names it is not read: a VMM can change its environment.
            pages: match open(pid, inherited::PAGES) {
                Ok(file) => Some(sealed(file)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        })
    }
}

fn open(pid: u32, number: i32) -> io::Result<File> {
    let path = format!("/proc/{pid}/fd/{number}");
    // Checked before it is opened: opening a device or a pipe may have side effects.
    if !fs::metadata(&path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("descriptor {number} is no file")));
    }
    // In case it was replaced since.
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Returns the file if it is sealed against writes and changes of its size.
fn sealed(file: File) -> io::Result<File> {
    let seals = fcntl_get_seals(&file)?;
    if seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW) {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the VMM replaced a memory file"))
}
