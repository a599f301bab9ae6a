//! The confinement of the process, in addition to its user, namespaces and control group.

use std::io;

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use skep_jail::FilteredProcess;

/// The newest supported ABI of Landlock. Older kernels apply the subset that they support.
const NEWEST: ABI = ABI::V6;

/// Confines this process permanently: it opens no file, signals no other process, and makes no system call that only
/// an attacker needs. Must be called while it has a single thread, after everything is read.
///
/// # Errors
/// The kernel refuses a step. A kernel without Landlock is not an error.
pub fn confine() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A connection takes two descriptors, and there are thousands.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let rules = || {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::Signal)?
            .scope(Scope::AbstractUnixSocket)?;
        ruleset.create()?.restrict_self()
    };
    rules().map_err(io::Error::other)?;
    skep_jail::deny_system_calls(FilteredProcess::Egress)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        net::{TcpListener, TcpStream},
        process::Command,
    };

    use rustix::{
        net::{AddressFamily, SocketType},
        process::{Pid, Signal, kill_process},
        thread::{UnshareFlags, unshare_unsafe},
    };

    use super::*;

    /// What an attacker in the process would try, and whether it succeeds.
    fn attacks(other: Pid, folder: &std::path::Path) -> Vec<(&'static str, bool)> {
        let socket = |family| rustix::net::socket(family, SocketType::RAW, None).is_ok();
        // SAFETY: no descriptor table is unshared.
        let unshare = |flags| unsafe { unshare_unsafe(flags) }.is_ok();
        vec![
            ("read a file", File::open("/etc/passwd").is_ok()),
            ("list a folder", std::fs::read_dir("/").is_ok()),
            ("create a file", File::create(folder.join("new")).is_ok()),
            ("run a program", Command::new("/bin/true").status().is_ok()),
            ("signal another process", kill_process(other, Signal::CONT).is_ok()),
            ("open a netlink socket", socket(AddressFamily::NETLINK)),
            ("open a packet socket", socket(AddressFamily::PACKET)),
            ("make a mount namespace", unshare(UnshareFlags::NEWNS)),
        ]
    }

    /// The confinement applies to the thread that calls it, as the process has no other one.
    #[test]
    fn a_confined_process_reads_no_file_and_reaches_no_other_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&other);
        let tried = |confined: bool| {
            let path = folder.path().to_owned();
            let thread = std::thread::spawn(move || {
                if confined {
                    confine().unwrap();
                }
                let attacks = attacks(pid, &path);
                // The process still accepts and makes connections.
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                attacks
            });
            thread.join().unwrap()
        };
        let succeeded = |attacks: Vec<(&'static str, bool)>| -> Vec<&str> {
            attacks.into_iter().filter(|(_, succeeded)| *succeeded).map(|(name, _)| name).collect()
        };
        let (free, confined) = (tried(false), tried(true));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(succeeded(confined), Vec::<&str>::new());
        // Without privileges the sockets and the namespace are denied to anybody.
        let free = succeeded(free);
        for control in
            ["read a file", "list a folder", "create a file", "run a program", "signal another process"]
        {
            assert!(free.contains(&control), "{control}: {free:?}");
        }
    }
}
