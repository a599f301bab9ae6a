//! The guest's kernel: Debian's cloud kernel, extracted from its package without installing it on this machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use skep_template::shelf;

use crate::{
    Error, apt,
    command::{Containment, Program},
};

const DPKG_DEB: Program = Program { name: "dpkg-deb", package: "dpkg" };
const XZ: Program = Program { name: "xz", package: "xz-utils" };
/// The file of a kernel in the cache that names the modules that were extracted, or are built in.
const EXTRACTED: &str = "modules";
const FIND: Program = Program { name: "find", package: "findutils" };

/// Modules that a guest needs unless they are built in, in load order.
pub(crate) const MODULES: [&str; 12] = [
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_console",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "libcrc32c",
    "erofs",
    // The agent needs these modules to end the connections of a copy.
    "inet_diag",
    "tcp_diag",
];
/// Module that is loaded last.
pub(crate) const OVERLAY: &str = "overlay";

/// A kernel in the image directory's cache.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    dir: PathBuf,
}

impl Kernel {
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub(crate) fn module(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.ko"))
    }
}

/// Returns the kernel version to use: that of apt, or else the latest in the cache.
pub(crate) fn version(cache: &Path) -> Result<String, Error> {
    match apt::kernel_package(cache) {
        Ok((_, version)) => Ok(version),
        Err(error) => cached_version(cache).ok_or(error),
    }
}

/// Returns the version that was downloaded last. Versions do not sort as text.
fn cached_version(cache: &Path) -> Option<String> {
    let kernels = fs::read_dir(cache).ok()?.filter_map(Result::ok).filter_map(|entry| {
        let version = entry.file_name().to_str()?.strip_prefix("kernel-")?.to_owned();
        Some((entry.metadata().ok()?.modified().ok()?, version))
    });
    kernels.max().map(|(_, version)| version)
}

/// Returns the kernel of a version, and downloads it if the cache does not contain it with all modules of this release.
pub(crate) fn ensure(cache: &Path, version: &str, pen: &Containment) -> Result<Kernel, Error> {
    let dir = cache.join(format!("kernel-{version}"));
    if !has_all_modules(&dir) {
        match download(cache, version, &dir, pen) {
            // An earlier release lacked only modules without which a guest boots.
            Err(error) if dir.is_dir() => tracing::warn!(
                %error,
                "the kernel {version} in the cache is from an earlier release and cannot be downloaded again, so that \
                 connections of copied VMs will not be ended: {error}"
            ),
            other => other?,
        }
    }
    Ok(Kernel { dir })
}

/// Whether a kernel in the cache was extracted with the modules that this release names.
fn has_all_modules(dir: &Path) -> bool {
    fs::read_to_string(dir.join(EXTRACTED)).is_ok_and(|names| names == module_names())
}

fn module_names() -> String {
    MODULES.into_iter().chain([OVERLAY]).map(|name| format!("{name}\n")).collect()
}

/// Downloads the kernel, and puts it in the place of the one of an earlier release.
fn download(cache: &Path, version: &str, dir: &Path, pen: &Containment) -> Result<(), Error> {
    let (package, _) = apt::kernel_package(cache)?;
    let work = shelf::create_partial(cache)?;
    extract(&package, version, work.path(), pen)?;
    // Otherwise a power failure might leave the name without the content, and later bakes would use it.
    let synced = fs::File::open(work.path()).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    synced.map_err(Error::io(work.path().display()))?;
    put(&work.path().join("kernel"), dir).map_err(Error::io(dir.display()))
}

/// Moves a folder to `to`. A folder that is there takes the old name of the other one.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT) => fs::rename(from, to),
        other => Ok(other?),
    }
}

fn extract(package: &str, version: &str, work: &Path, pen: &Containment) -> Result<(), Error> {
    apt::download(package, version, work, pen)?;
    let archive = fs::read_dir(work)
        .map_err(Error::io(work.display()))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| Error::Kernel { version: version.to_owned(), what: "package file".to_owned() })?;
    pen.run(&DPKG_DEB, work, &[Path::new("-x"), &archive, Path::new("tree")])?;
    fs::create_dir(work.join("kernel")).map_err(Error::io("kernel"))?;
    let tree = work.join("tree");
    let lacks = |what: &str| Error::Kernel { version: version.to_owned(), what: what.to_owned() };
    let image = find_file(&tree, "vmlinuz-*")?.ok_or_else(|| lacks("vmlinuz"))?;
    fs::rename(image, work.join("kernel/vmlinuz")).map_err(Error::io("vmlinuz"))?;
    let built_in = match find_file(&tree, "modules.builtin")? {
        Some(path) => fs::read_to_string(&path).map_err(Error::io(path.display()))?,
        None => String::new(),
    };
    for name in MODULES.into_iter().chain([OVERLAY]) {
        match find_file(&tree, &format!("{name}.ko*"))? {
            Some(path) => move_module(&path, &work.join("kernel").join(format!("{name}.ko")), pen)?,
            None if built_in.contains(&format!("/{name}.ko")) => {}
            None => return Err(lacks(&format!("module {name}"))),
        }
    }
    fs::write(work.join("kernel").join(EXTRACTED), module_names()).map_err(Error::io(EXTRACTED))
}

fn find_file(tree: &Path, pattern: &str) -> Result<Option<PathBuf>, Error> {
    let listing = FIND.run(tree, &[".", "-name", pattern, "-type", "f"])?;
    Ok(listing.lines().next().map(|line| tree.join(line)))
}

/// Moves a module, decompressing it if necessary: newer releases of Debian compress modules.
fn move_module(from: &Path, to: &Path, pen: &Containment) -> Result<(), Error> {
    if from.extension().is_some_and(|extension| extension == "xz") {
        pen.run(&XZ, Path::new("/"), &[Path::new("-d"), from])?;
        return fs::rename(from.with_extension(""), to).map_err(Error::io(to.display()));
    }
    fs::rename(from, to).map_err(Error::io(to.display()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_kernel_of_an_earlier_release_is_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let [new, dir] = ["new", "kernel-6.1"].map(|name| cache.path().join(name));
        fs::create_dir(&new).unwrap();
        fs::write(new.join(EXTRACTED), module_names()).unwrap();
        assert!(!has_all_modules(&dir));
        put(&new, &dir).unwrap();
        assert!(has_all_modules(&dir) && !new.exists());

        for of_earlier_release in [None, Some("virtio\noverlay\n")] {
            fs::remove_file(dir.join(EXTRACTED)).unwrap();
            if let Some(names) = of_earlier_release {
                fs::write(dir.join(EXTRACTED), names).unwrap();
            }
            assert!(!has_all_modules(&dir));
            fs::create_dir(&new).unwrap();
            fs::write(new.join(EXTRACTED), module_names()).unwrap();
            put(&new, &dir).unwrap();
            assert!(has_all_modules(&dir));
            fs::remove_dir_all(&new).unwrap();
        }
    }

    #[test]
    fn without_package_lists_the_kernel_that_came_last_is_used() {
        let cache = tempfile::tempdir().unwrap();
        for (age, name) in [(2, "kernel-6.1.9-1"), (1, "kernel-6.1.10-1"), (0, "packages-x-1.tar")] {
            let path = cache.path().join(name);
            fs::create_dir(&path).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age * 60);
            fs::File::open(&path).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(cached_version(cache.path()).as_deref(), Some("6.1.10-1"));
    }
}
