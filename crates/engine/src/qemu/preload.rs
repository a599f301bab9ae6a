//! The library that is preloaded into a restored VMM (package `skep-preload`), so that a page of guest memory is not
//! paid twice: in the memory file of the template, and in the private copy.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::Mode,
    io::{FdFlags, fcntl_setfd},
};

use super::PROGRAM;
use crate::Error;

/// `None` if it was not built before this crate.
const LIBRARY: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/preload.rs"));
/// These name the descriptors of the memory files to the library.
const RAM_FD: &str = "SKEP_RAM_FD";
const DELTA_FD: &str = "SKEP_DELTA_FD";
const PAGES_FD: &str = "SKEP_PAGES_FD";

/// The library, in a sealed memory file.
#[derive(Debug)]
pub(super) struct Preload(File);

impl Preload {
    /// Checks that the dynamic loader of the program accepts the library.
    ///
    /// # Errors
    /// The library was not built, or the program is not linked dynamically with glibc.
    pub(super) fn load(program: &Path) -> Result<Self, Error> {
        let missing =
            |reason: String| Error::Missing { program: PROGRAM, reason, package: "qemu-system-x86" };
        let library = LIBRARY.ok_or_else(|| {
            missing("skep was built without the library that it preloads: run `make build`".to_owned())
        })?;
        let preload = Self(seal(library).map_err(Error::io("library for VMMs"))?);
        match preload.is_accepted_by(program) {
            Ok(true) => Ok(preload),
            Ok(false) => Err(missing(format!(
                "{} does not load a preloaded library, so each page of a guest would take memory twice; it must \
                 be linked dynamically with glibc",
                program.display()
            ))),
            Err(error) => Err(missing(format!("{}: {error}", program.display()))),
        }
    }

    /// A descriptor of the library for one VMM.
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub(super) fn open(&self) -> Result<OwnedFd, Error> {
        // Opened anew, read-only and with its own position.
        let opened = File::open(path(self.0.as_raw_fd()));
        Ok(opened.map_err(Error::io("library for VMMs"))?.into())
    }

    /// Asks glibc's loader which objects it would load, without running the program.
    fn is_accepted_by(&self, program: &Path) -> io::Result<bool> {
        let inherited = self.0.try_clone()?;
        fcntl_setfd(&inherited, FdFlags::empty())?;
        let library = path(inherited.as_raw_fd());
        let output = Command::new(program)
            // Without glibc's loader the program runs.
            .arg("--version")
            .env_clear()
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .env("LD_PRELOAD", &library)
            .stdin(Stdio::null())
            .output()?;
        let loaded = String::from_utf8_lossy(&output.stdout);
        Ok(loaded.lines().any(|line| line.trim_start().starts_with(&format!("{library} (0x"))))
    }
}

/// The environment of a VMM that inherits the library and the memory file as these descriptors.
pub(super) fn environment(library: i32, ram: i32) -> Vec<(String, String)> {
    vec![("LD_PRELOAD".to_owned(), path(library)), (RAM_FD.to_owned(), ram.to_string())]
}

/// The further environment of a VMM that inherits what a snapshot changed as these descriptors.
pub(super) fn delta_environment(data: i32, pages: i32) -> Vec<(String, String)> {
    vec![(DELTA_FD.to_owned(), data.to_string()), (PAGES_FD.to_owned(), pages.to_string())]
}

fn path(descriptor: i32) -> String {
    format!("/proc/self/fd/{descriptor}")
}

fn seal(library: &[u8]) -> io::Result<File> {
    // VMMs with any user open it by `/proc/self/fd`.
    let mut file = skep_sealed_memory::create("skep-preload", Mode::from_raw_mode(0o555))?;
    file.write_all(library)?;
    skep_sealed_memory::seal(&file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt, process::Output};

    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// Maps the memory file of 32 MiB privately, reads 8 MiB of its first hole and writes 8 MiB of its second.
    const TOUCH: &str = "
import mmap, os, sys
fd = os.open('/proc/self/fd/' + sys.argv[1], os.O_RDWR)
ram = mmap.mmap(fd, 32 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
assert ram[9 << 20:(9 << 20) + 4] == b'data', 'the data of the file'
for page in range(0, 8 << 20, 4096):
    assert ram[page] == 0
    assert ram[(16 << 20) + page] == 0
    ram[(16 << 20) + page] = 1
    assert ram[(16 << 20) + page] == 1
";
    /// In MiB.
    const DATA_AT: [u64; 4] = [9, 25, 27, 29];

    /// Uses up the maps that a process may have, all but one, and maps the memory file.
    const WITHOUT_MAPS: &str = "
import ctypes, mmap, os, sys
fd = os.open('/proc/self/fd/' + sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
pages = 2 * int(open('/proc/sys/vm/max_map_count').read())
begin = libc.mmap(None, pages * 4096, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
page = begin + 4096
while libc.mprotect(page, 4096, mmap.PROT_READ | mmap.PROT_WRITE) == 0:
    page += 8192
libc.mprotect(page - 8192, 4096, mmap.PROT_READ)
# Another protection than that of its neighbours, which it would be merged with.
mapped = libc.mmap(None, 32 << 20, 0, mmap.MAP_PRIVATE, fd, 0)
os.write(1, b'failed\\n' if mapped == ctypes.c_void_p(-1).value else b'mapped\\n')
";

    /// A sealed memory file of 32 MiB with some pages of data, to be inherited.
    fn sealed_ram() -> File {
        let ram = skep_sealed_memory::create("ram", Mode::from_raw_mode(0o777)).unwrap();
        ram.set_len(32 << 20).unwrap();
        for mebibyte in DATA_AT {
            rustix::io::pwrite(&ram, b"data", mebibyte << 20).unwrap();
        }
        skep_sealed_memory::seal(&ram).unwrap();
        fcntl_setfd(&ram, FdFlags::empty()).unwrap();
        ram
    }

    fn run(program: &str, ram: &File, preload: Option<&Preload>) -> Output {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", program, &ram.as_raw_fd().to_string()]).env_clear();
        let library = preload.map(|preload| preload.open().unwrap());
        if let Some(library) = &library {
            fcntl_setfd(library, FdFlags::empty()).unwrap();
            command.envs(environment(library.as_raw_fd(), ram.as_raw_fd()));
        }
        command.output().unwrap()
    }

    /// Runs a program on a memory file, and returns how many bytes of the file it made the kernel allocate.
    fn allocated_by(program: &str, preload: Option<&Preload>) -> u64 {
        let ram = sealed_ram();
        let before = ram.metadata().unwrap().blocks();
        let output = run(program, &ram, preload);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (ram.metadata().unwrap().blocks() - before) * 512
    }

    fn loaded() -> Preload {
        Preload::load(Path::new("/usr/bin/python3")).unwrap()
    }

    #[test]
    fn pages_of_holes_are_not_allocated_in_the_memory_file() {
        assert_eq!(allocated_by(TOUCH, Some(&loaded())), 0);
        // Control: without the library, pages that are only read are allocated too.
        assert_eq!(allocated_by(TOUCH, None), 16 << 20);
    }

    /// Maps a memory file with a page of data at each of these steps, and holes in between.
    const MANY_HOLES: &str = "
import mmap, os, sys
fd = os.open('/proc/self/fd/' + sys.argv[1], os.O_RDWR)
ram = mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
for hole in [0, 1, 20000, 39999]:
    at = hole * (68 << 10)
    assert ram[at:at + 5] == b'data\\0' and ram[at + 8192] == 0
";

    #[test]
    fn a_file_with_more_holes_than_a_process_may_have_maps_is_mapped() {
        const HOLES: u64 = 40_000;
        let ram = memory_file("ram");
        ftruncate(&ram, HOLES * (68 << 10)).unwrap();
        for hole in 0..HOLES {
            rustix::io::pwrite(&ram, b"data", hole * (68 << 10)).unwrap();
        }
        let output = run(MANY_HOLES, &ram, Some(&loaded()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Maps the memory file of 32 MiB, over which the delta of the second argument lies.
    const CONTINUE: &str = "
import mmap, os, sys
fd = os.open('/proc/self/fd/' + sys.argv[1], os.O_RDWR)
ram = mmap.mmap(fd, 32 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
print(ram[9 << 20:(9 << 20) + 4], ram[25 << 20:(25 << 20) + 4], ram[20 << 20:(20 << 20) + 4], ram[(27 << 20)])
ram[25 << 20] = 1
ram[(20 << 20) + 4096] = 1
";

    /// Runs [`CONTINUE`] with a delta that changes the page at 25 MiB, a page of a hole, and zeroes the page at 27 MiB.
    fn continued(pages: &[u64]) -> (Output, File) {
        let delta = memory_file("delta");
        ftruncate(&delta, 32 << 20).unwrap();
        rustix::io::pwrite(&delta, b"new!", 25 << 20).unwrap();
        rustix::io::pwrite(&delta, b"hole", 20 << 20).unwrap();
        let mut list = memory_file("pages");
        list.write_all(&pages.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>()).unwrap();
        let (ram, library) = (sealed_ram(), loaded().open().unwrap());
        fcntl_setfd(&library, FdFlags::empty()).unwrap();
        let output = Command::new("/usr/bin/python3")
            .args(["-c", CONTINUE, &ram.as_raw_fd().to_string()])
            .env_clear()
            .envs(environment(library.as_raw_fd(), ram.as_raw_fd()))
            .envs(delta_environment(delta.as_raw_fd(), list.as_raw_fd()))
            .output()
            .unwrap();
        (output, delta)
    }

    fn memory_file(name: &str) -> File {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        file
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_delta_lies_over_the_memory_file_and_is_not_written_to() {
        let runs = [20 * MIB, 20 * MIB + 8192, 25 * MIB, 25 * MIB + 4096, 27 * MIB, 27 * MIB + 4096];
        let (output, delta) = continued(&runs);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "b'data' b'new!' b'hole' 0\n", "{output:?}");
        let mut found = [0; 4];
        rustix::io::pread(&delta, &mut found, 25 << 20).unwrap();
        assert_eq!(&found, b"new!");
        // Control: without runs, the memory file alone.
        let (output, _) = continued(&[]);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "b'data' b'data' b'\\x00\\x00\\x00\\x00' 100\n", "{output:?}");
    }

    #[test]
    fn a_list_of_runs_that_is_none_ends_the_program() {
        for runs in [&[0][..], &[4096, 4096], &[8192, 4096], &[0, 33 * MIB], &[u64::MAX, 4096]] {
            let (output, _) = continued(runs);
            let words = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{runs:?}: {words}");
            assert!(words.contains("what a snapshot changed"), "{runs:?}: {words}");
        }
    }

    #[test]
    fn other_files_are_mapped_as_they_are() {
        let other = "
import mmap, os, tempfile
with tempfile.TemporaryFile() as file:
    file.truncate(32 << 20)
    private = mmap.mmap(file.fileno(), 32 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    os.pwrite(file.fileno(), b'later', 1 << 20)
    assert private[1 << 20:(1 << 20) + 5] == b'later', 'a hole of another file is still that file'
";
        assert_eq!(allocated_by(other, Some(&loaded())), 0);
    }

    #[test]
    fn a_hole_that_cannot_be_mapped_ends_the_program() {
        let ram = sealed_ram();
        let ended = run(WITHOUT_MAPS, &ram, Some(&loaded()));
        assert_eq!(ended.status.code(), Some(1));
        let words = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(words, "skep-preload: the holes of the guest's memory file cannot be mapped\n");
        // Control: one more map is possible.
        let ended = run(WITHOUT_MAPS, &ram, None);
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "mapped\n");
    }

    #[test]
    fn a_program_without_a_dynamic_loader_is_refused() {
        let refused = Preload::load(Path::new("/sbin/ldconfig")).unwrap_err().to_string();
        assert!(refused.contains("would take memory twice"), "{refused}");
    }
}
