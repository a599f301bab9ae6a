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
            kernel: sealed(open_known(inherited::KERNEL, |files| files.kernel)?)?,
            initrd: sealed(open_known(inherited::INITRD, |files| files.initrd)?)?,
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
    use std::{
        io::{BufRead, BufReader},
        os::fd::AsRawFd,
        process::{Child, Command, Stdio},
    };

    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    /// The files of a VMM, in the order of [`NUMBERS`].
    type Files = [File; 5];

    const ROOT: usize = 3;
    /// The descriptors of a VMM. The root file system may have any.
    const NUMBERS: [i32; 5] =
        [inherited::RAM, inherited::KERNEL, inherited::INITRD, inherited::PAGES + 1, inherited::PAGES];

    fn memory_file(seals: SealFlags) -> File {
        let file = memfd_create("skep-test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    fn sealed_files() -> Files {
        [(); 5].map(|()| memory_file(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW))
    }

    fn ids(files: &Files) -> InheritedFiles {
        let [ram, kernel, initrd, _, pages] = files.each_ref().map(|file| FileId::of(file).unwrap());
        InheritedFiles { ram, kernel, initrd, pages: Some(pages) }
    }

    /// A process that is killed at the end of the test.
    struct Vmm(Child);

    impl Drop for Vmm {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// A process that has these files at the numbers of a VMM.
    fn vmm_with(files: &Files) -> Vmm {
        let opened = NUMBERS.iter().zip(files);
        let opened =
            opened.map(|(number, file)| format!("exec {number}</proc/$PPID/fd/{}; ", file.as_raw_fd()));
        let script = format!("{} echo; exec sleep 600", opened.collect::<String>());
        let mut command = Command::new("bash");
        let mut child = command.args(["-euc", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n");
        Vmm(child)
    }

    #[test]
    fn a_vmm_that_exchanged_a_file_is_not_copied() {
        let files = sealed_files();
        let (root, known) = (FileId::of(&files[ROOT]).ok(), ids(&files));
        // The control: the files that it inherited are accepted.
        VmmFiles::of(vmm_with(&files).0.id(), root, Some(&known)).unwrap();
        for exchanged in 0..files.len() {
            let mut others = files.each_ref().map(|file| file.try_clone().unwrap());
            others[exchanged] = sealed_files().into_iter().next().unwrap();
            let vmm = vmm_with(&others);
            assert!(VmmFiles::of(vmm.0.id(), root, Some(&known)).is_err(), "{exchanged}");
            // Without a record, only the root file system is known.
            assert_eq!(VmmFiles::of(vmm.0.id(), root, None).is_err(), exchanged == ROOT, "{exchanged}");
        }
    }

    #[test]
    fn a_memory_file_that_a_vmm_can_still_change_is_not_copied() {
        for (unsealed, seals) in [
            (0, SealFlags::empty()),
            (0, SealFlags::SHRINK | SealFlags::GROW),
            (1, SealFlags::WRITE | SealFlags::GROW),
            (2, SealFlags::WRITE | SealFlags::SHRINK),
            (4, SealFlags::empty()),
        ] {
            let mut files = sealed_files();
            files[unsealed] = memory_file(seals);
            let (root, known) = (FileId::of(&files[ROOT]).ok(), ids(&files));
            let vmm = vmm_with(&files);
            for known in [Some(&known), None] {
                let refusal = VmmFiles::of(vmm.0.id(), root, known).err().unwrap();
                assert_eq!(refusal.kind(), io::ErrorKind::InvalidData, "{unsealed}: {refusal}");
            }
        }
    }

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
