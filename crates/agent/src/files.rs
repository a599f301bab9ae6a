//! The files that identify a VM. They are stored in memory below `/run`, with symbolic links from `/etc`, so that a
//! restored VM writes nothing to its disk before it is ready.

use std::{
    fs::{self, File},
    io::{self, Write},
    net::Ipv4Addr,
    os::unix::fs::symlink,
    path::Path,
};

use skep_api::tickets::{RESULT_FILE, TICKET_FILE};

use crate::{
    console,
    error::{Error, StepContext},
};

/// Changes with each identity. Programs watch it to notice that they run in another VM now.
pub(crate) const GENERATION: &str = "/run/skep/generation";
const BOOT_ID: &str = "/run/skep/boot_id";
const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const HOSTNAME: LinkedFile = LinkedFile { memory: "/run/skep/hostname", path: "/etc/hostname" };
const HOSTS: LinkedFile = LinkedFile { memory: "/run/skep/hosts", path: "/etc/hosts" };
const MACHINE_ID: LinkedFile = LinkedFile { memory: "/run/machine-id", path: "/etc/machine-id" };
const RESOLV_CONF: LinkedFile = LinkedFile { memory: "/run/skep/resolv.conf", path: "/etc/resolv.conf" };
/// Marks the line in `/etc/hosts` that the agent manages; other lines are kept.
const MANAGED_LINE_MARKER: &str = "# this VM";
/// A placeholder as long as the host names of VMs.
const PLACEHOLDER_NAME: &str = "vm-00000000000000000000000000";
const LOCAL_HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Whether a user may have changed the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PriorUse {
    /// No command of a user has run; all files are as they were prepared.
    None,
    Some,
}

/// A file in memory and the link to it.
struct LinkedFile {
    memory: &'static str,
    path: &'static str,
}

impl LinkedFile {
    /// Replaces the file of the image by the link. Runs once, before the snapshot.
    fn link(&self) -> io::Result<()> {
        if fs::read_link(self.path).is_ok_and(|target| target == Path::new(self.memory)) {
            return Ok(());
        }
        let new = format!("{}.skep", self.path);
        let _ = fs::remove_file(&new);
        symlink(self.memory, &new)?;
        fs::rename(&new, self.path)
    }

    /// Writes the file, and also the file at `path` if a user has replaced the link.
    fn write(&self, content: &str, prior_use: PriorUse) -> io::Result<()> {
        overwrite(self.memory, content)?;
        if prior_use == PriorUse::None || fs::read_to_string(self.path).is_ok_and(|found| found == content) {
            return Ok(());
        }
        fs::write(self.path, content)
    }
}

/// Creates the files that an identity is written to.
pub(crate) fn prepare() -> Result<(), Error> {
    fs::create_dir_all("/run/skep").context("make /run/skep")?;
    fs::create_dir_all("/run/lock").context("make /run/lock")?;
    // As long as the real content for most names and ids: see `put`.
    fs::write(HOSTS.memory, hosts_with(LOCAL_HOSTS, PLACEHOLDER_NAME)).context("write the hosts")?;
    fs::write(HOSTNAME.memory, format!("{PLACEHOLDER_NAME}\n")).context("write the host name")?;
    fs::write(MACHINE_ID.memory, format!("{:032}\n", 0)).context("write the machine id")?;
    fs::write(RESOLV_CONF.memory, name_server("255.255.255.255")).context("write the name server")?;
    fs::write(BOOT_ID, format!("{:036}\n", 0)).context("write the boot id")?;
    for published in [HOSTS, HOSTNAME, MACHINE_ID, RESOLV_CONF] {
        published.link().context(format!("link {}", published.path))?;
    }
    rustix::mount::mount_bind(BOOT_ID, KERNEL_BOOT_ID).context("mount the boot id")
}

pub(crate) fn write_hostname(name: &str, prior_use: PriorUse) -> Result<(), Error> {
    HOSTNAME.write(&format!("{name}\n"), prior_use).context("write the host name")?;
    let before = match prior_use {
        PriorUse::None => None,
        PriorUse::Some => fs::read_to_string(HOSTS.path).ok(),
    };
    HOSTS
        .write(&hosts_with(before.as_deref().unwrap_or(LOCAL_HOSTS), name), prior_use)
        .context("write the hosts")
}

/// The hosts file with the line for `name`, and all other lines as they were.
fn hosts_with(before: &str, name: &str) -> String {
    let others = before.lines().filter(|line| !line.ends_with(MANAGED_LINE_MARKER));
    let mut hosts: String = others.flat_map(|line| [line, "\n"]).collect();
    hosts.push_str(&format!("127.0.1.1\t{name} {MANAGED_LINE_MARKER}\n"));
    hosts
}

/// Names the server of the network as the name server. It answers what the VM's policy allows.
pub(crate) fn write_name_server(server: Ipv4Addr, prior_use: PriorUse) -> Result<(), Error> {
    RESOLV_CONF.write(&name_server(&server.to_string()), prior_use).context("write the name server")
}

fn name_server(address: &str) -> String {
    format!("nameserver {address}\n")
}

pub(crate) fn write_machine_id(id: &str, prior_use: PriorUse) -> Result<(), Error> {
    MACHINE_ID.write(&format!("{id}\n"), prior_use).context("write the machine id")
}

pub(crate) fn machine_id() -> Result<String, Error> {
    read(MACHINE_ID.path)
}

/// Writes the boot id. It is mounted over the kernel's own, which all VMs of a snapshot share.
pub(crate) fn write_boot_id(id: &str, prior_use: PriorUse) -> Result<(), Error> {
    // Written in place: the mount refers to the inode, not to the name.
    overwrite(BOOT_ID, &format!("{id}\n")).context("write the boot id")?;
    if prior_use == PriorUse::None || boot_id()? == id {
        return Ok(());
    }
    rustix::mount::mount_bind(BOOT_ID, KERNEL_BOOT_ID).context("mount the boot id")
}

pub(crate) fn boot_id() -> Result<String, Error> {
    read(KERNEL_BOOT_ID)
}

/// Removes the files of a ticket from a copy, whether or not its original has a ticket. A folder at one of these paths stays, and
/// is logged.
pub(crate) fn remove_ticket_files() {
    for path in [TICKET_FILE, RESULT_FILE] {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            console::log(&format!("cannot remove {path} of the original: {error}"));
        }
    }
}

/// Replaced atomically, so that readers see either the old or the new content.
pub(crate) fn write_generation(vm: &str) -> Result<(), Error> {
    let new = format!("{GENERATION}.new");
    fs::write(&new, format!("{vm}\n")).context("write the generation")?;
    fs::rename(&new, GENERATION).context("write the generation")
}

pub(crate) fn generation() -> Result<String, Error> {
    read(GENERATION)
}

/// Overwrites a file without truncating it first, which would free its memory and allocate it again.
fn overwrite(path: &str, content: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    file.write_all(content.as_bytes())?;
    let length = content.len() as u64;
    if file.metadata()?.len() != length { file.set_len(length) } else { Ok(()) }
}

fn read(path: &str) -> Result<String, Error> {
    Ok(fs::read_to_string(path).context(format!("read {path}"))?.trim_end().to_owned())
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
