//! Programs that run skep with a /usr that is changed for skep and its children alone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::harness::{binary, write_program};

pub(crate) const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// A program that runs skep with a /usr that can be changed for skep and its children alone.
pub(crate) fn with_own_usr(folder: &Path) -> PathBuf {
    after_change_of_usr(folder, "true")
}

/// A program that runs skep on a machine without QEMU.
pub(crate) fn without_qemu(folder: &Path) -> PathBuf {
    after_change_of_usr(folder, &format!("rm {QEMU}"))
}

fn after_change_of_usr(folder: &Path, change: &str) -> PathBuf {
    let (site, program) = (folder.join("site"), folder.join("skep"));
    fs::create_dir(&site).unwrap();
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -euc '\n\
         mount -t tmpfs skep-test {site}\n\
         mkdir -m 755 {site}/upper {site}/work\n\
         mount -t overlay skep-test -o lowerdir=/usr,upperdir={site}/upper,workdir={site}/work /usr\n\
         {change}\n\
         exec {skep} \"$@\"' skep \"$@\"\n",
        site = site.display(),
        skep = binary().display(),
    );
    write_program(&program, &script);
    program
}
