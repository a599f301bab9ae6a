//! The files that say who this VM is. They live in memory, below `/run`; what lies in `/etc` points to them, so that
//! a restored VM writes nothing to its disk before it is ready.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::symlink,
    path::Path,
};

use crate::error::{Doing, Error};

/// The content changes with each identity; programs watch it to learn that they live in another VM now.
pub(crate) const GENERATION: &str = "/run/skep/generation";
const BOOT_ID: &str = "/run/skep/boot_id";
const KERNELS_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const HOSTNAME: Published = Published { memory: "/run/skep/hostname", path: "/etc/hostname" };
const HOSTS: Published = Published { memory: "/run/skep/hosts", path: "/etc/hosts" };
const MACHINE_ID: Published = Published { memory: "/run/machine-id", path: "/etc/machine-id" };
/// Marks our line in `/etc/hosts`; others are left as they are.
const OUR_LINE: &str = "# this VM";
/// A host name as long as those of VMs.
const NAME: &str = "vm-00000000000000000000000000";
const LOCAL_HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Whether anybody can have changed the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    /// Nobody's commands ran here so far: all is as it was prepared.
    None,
    Some,
}

/// A file in memory, and the link to it.
struct Published {
    memory: &'static str,
    path: &'static str,
}

impl Published {
    /// Puts the link in place of whatever the image has, once, before the snapshot.
    fn link(&self) -> io::Result<()> {
        if fs::read_link(self.path).is_ok_and(|target| target == Path::new(self.memory)) {
            return Ok(());
        }
        let new = format!("{}.skep", self.path);
        let _ = fs::remove_file(&new);
        symlink(self.memory, &new)?;
        fs::rename(&new, self.path)
    }

    /// Writes it, and what stands in its place where a user put something else there.
    fn write(&self, content: &str, past: Past) -> io::Result<()> {
        put(self.memory, content)?;
        if past == Past::None || fs::read_to_string(self.path).is_ok_and(|found| found == content) {
            return Ok(());
        }
        fs::write(self.path, content)
    }
}

/// Makes the places that an identity is written to.
pub(crate) fn prepare() -> Result<(), Error> {
    fs::create_dir_all("/run/skep").doing("make /run/skep")?;
    fs::create_dir_all("/run/lock").doing("make /run/lock")?;
    // As long as what will be there, for most names and ids: see `put`.
    fs::write(HOSTS.memory, hosts_with(LOCAL_HOSTS, NAME)).doing("write the hosts")?;
    fs::write(HOSTNAME.memory, format!("{NAME}\n")).doing("write the host name")?;
    fs::write(MACHINE_ID.memory, format!("{:032}\n", 0)).doing("write the machine id")?;
    fs::write(BOOT_ID, format!("{:036}\n", 0)).doing("write the boot id")?;
    for published in [HOSTS, HOSTNAME, MACHINE_ID] {
        published.link().doing(format!("link {}", published.path))?;
    }
    rustix::mount::mount_bind(BOOT_ID, KERNELS_BOOT_ID).doing("mount the boot id")
}

pub(crate) fn write_hostname(name: &str, past: Past) -> Result<(), Error> {
    HOSTNAME.write(&format!("{name}\n"), past).doing("write the host name")?;
    let before = match past {
        Past::None => None,
        Past::Some => fs::read_to_string(HOSTS.path).ok(),
    };
    HOSTS.write(&hosts_with(before.as_deref().unwrap_or(LOCAL_HOSTS), name), past).doing("write the hosts")
}

/// The hosts with this name for ourselves, and all other lines as they were.
fn hosts_with(before: &str, name: &str) -> String {
    let others = before.lines().filter(|line| !line.ends_with(OUR_LINE));
    let mut hosts: String = others.flat_map(|line| [line, "\n"]).collect();
    hosts.push_str(&format!("127.0.1.1\t{name} {OUR_LINE}\n"));
    hosts
}

pub(crate) fn write_machine_id(id: &str, past: Past) -> Result<(), Error> {
    MACHINE_ID.write(&format!("{id}\n"), past).doing("write the machine id")
}

pub(crate) fn machine_id() -> Result<String, Error> {
    read(MACHINE_ID.path)
}

/// Writes the boot id, which lies over the kernel's own: all that come from one snapshot have that in common.
pub(crate) fn write_boot_id(id: &str, past: Past) -> Result<(), Error> {
    // In place: the file is what is mounted, another one of the same name would not be.
    put(BOOT_ID, &format!("{id}\n")).doing("write the boot id")?;
    if past == Past::None || boot_id()? == id {
        return Ok(());
    }
    rustix::mount::mount_bind(BOOT_ID, KERNELS_BOOT_ID).doing("mount the boot id")
}

pub(crate) fn boot_id() -> Result<String, Error> {
    read(KERNELS_BOOT_ID)
}

/// Whoever reads it sees the old content or the new, whole.
pub(crate) fn write_generation(vm: &str) -> Result<(), Error> {
    let new = format!("{GENERATION}.new");
    fs::write(&new, format!("{vm}\n")).doing("write the generation")?;
    fs::rename(&new, GENERATION).doing("write the generation")
}

pub(crate) fn generation() -> Result<String, Error> {
    read(GENERATION)
}

/// Writes a file over what it holds, without what giving memory back and taking it again costs.
fn put(path: &str, content: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    file.write_all(content.as_bytes())?;
    let length = content.len() as u64;
    if file.metadata()?.len() != length { file.set_len(length) } else { Ok(()) }
}

fn read(path: &str) -> Result<String, Error> {
    Ok(fs::read_to_string(path).doing(format!("read {path}"))?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_line_changes() {
        let first = hosts_with("127.0.0.1\tlocalhost\n10.0.0.9\tdb # mine", "one");
        assert_eq!(first, "127.0.0.1\tlocalhost\n10.0.0.9\tdb # mine\n127.0.1.1\tone # this VM\n");
        assert_eq!(hosts_with(&first, "two"), first.replace("one", "two"));
    }
}
