//! The files that a VMM inherited and holds open. The VMM is not trusted: it can have closed or replaced each of them. A
//! replacement, such as a memory file that the VMM can still write to, must not reach a copy.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
};

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals};
use skep_engine::launch::inherited;

use crate::{
    disk_layer::{self, FileId},
    records::InheritedFiles,
};

pub(super) struct VmmFiles {
    pub(super) ram: File,
    pub(super) kernel: File,
    pub(super) initrd: File,
    pub(super) root: File,
    /// The runs of the delta that the guest continues. `None` for a guest of a baked template.
    pub(super) pages: Option<File>,
}

impl VmmFiles {
    /// `known` is `None` for the VMM of an earlier release, of which only the root file system is known.
    ///
    /// # Errors
    /// One of them is not what the VMM inherited, or the process has ended.
    pub(super) fn of(pid: u32, root: Option<FileId>, known: Option<&InheritedFiles>) -> io::Result<Self> {
        let path = |number: i32| format!("/proc/{pid}/fd/{number}");
        let open_known =
            |number: i32, file: fn(&InheritedFiles) -> FileId| open(&path(number), known.map(file));
        // QEMU moves the descriptors of its disks.
        let root = root.and_then(|root| disk_layer::find(pid, root));
        // The variable that names it is not read: a VMM can change its environment.
        let pages = match known {
            Some(InheritedFiles { pages: None, .. }) => None,
            Some(InheritedFiles { pages: Some(file), .. }) => {
                Some(open(&path(inherited::PAGES), Some(*file))?)
            }
            None => match open(&path(inherited::PAGES), None) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                other => Some(other?),
            },
        };
        Ok(Self {
            ram: sealed(open_known(inherited::RAM, |files| files.ram)?)?,
            kernel: open_known(inherited::KERNEL, |files| files.kernel)?,
            initrd: open_known(inherited::INITRD, |files| files.initrd)?,
            root: root.ok_or_else(|| io::Error::other("the VMM has closed its root file system"))?,
            pages: pages.map(sealed).transpose()?,
        })
    }
}

/// Opens a descriptor of a VMM if it is the known file; any regular file if `known` is `None`.
fn open(path: &str, known: Option<FileId>) -> io::Result<File> {
    // Checked before it is opened: opening a device or a pipe may have side effects.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{path} is no file")));
    }
    // In case it was replaced since.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if known.is_some_and(|known| FileId::of(&file).ok() != Some(known)) {
        let message = format!("{path} is not the file that the VMM inherited");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(file)
}

/// Returns the file if it is sealed against writes and changes of its size.
fn sealed(file: File) -> io::Result<File> {
    let seals = fcntl_get_seals(&file)?;
    if seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW) {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the VMM replaced a memory file"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_the_file_that_a_vmm_inherited_is_opened() {
        let [inherited, other] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let path = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let known = FileId::of(&inherited).unwrap();
        assert_eq!(FileId::of(&open(&path(&inherited), Some(known)).unwrap()).unwrap(), known);
        let refusal = open(&path(&other), Some(known)).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::InvalidData, "{refusal}");
        // Control: what is not known by its identity is opened.
        assert!(open(&path(&other), None).is_ok());
        let (pipe, _writer) = std::io::pipe().unwrap();
        let refusal = open(&format!("/proc/self/fd/{}", pipe.as_raw_fd()), None).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::NotFound, "{refusal}");
    }
}
