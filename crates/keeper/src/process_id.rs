//! Identification of processes across the reuse of PIDs.

use std::{fs, io, time::Duration};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use skep_jail::Jailed;

use crate::Error;

/// Identifies a process within one boot of the machine: a PID may be reused, but not with the same start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// In clock ticks since the machine's boot.
    start_time: u64,
}

impl ProcessId {
    /// The identity of a process that has not been reaped. After that its PID may belong to another process.
    pub(crate) fn of(jailed: &Jailed) -> Result<Self, Error> {
        let path = format!("/proc/{}/stat", jailed.pid);
        let stat = fs::read_to_string(&path).map_err(Error::io(&path))?;
        let missing = || Error::io(path)(io::Error::from(io::ErrorKind::InvalidData));
        Ok(Self { pid: jailed.pid, start_time: start_time(&stat).ok_or_else(missing)? })
    }

    /// Opens the process by a pidfd. `None` if it has ended, even if another process has its PID now.
    pub(crate) fn open(self) -> Option<Jailed> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let jailed = Jailed { pid: self.pid, pidfd };
        // The start time is compared after the pidfd is open: a PID that was reused before has another start time, and
        // a reuse from now on is noticed by the pidfd.
        let same = Self::of(&jailed).is_ok_and(|found| found == self);
        (same && !jailed.wait(Duration::ZERO).ok()?).then_some(jailed)
    }
}

/// Field 22 of /proc/PID/stat (proc_pid_stat(5)). The process name before it may contain blanks and brackets.
fn start_time(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// The kernel's random id of the current boot.
pub(crate) fn boot_id() -> Result<String, Error> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(PATH).map_err(Error::io(PATH))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn held(child: &Child) -> Jailed {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        Jailed { pid: child.id(), pidfd }
    }

    #[test]
    fn a_process_is_found_by_number_and_start() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let id = ProcessId::of(&held(&child)).unwrap();
        assert_eq!(id.open().unwrap().pid, child.id());
        assert!(ProcessId { start_time: id.start_time + 1, ..id }.open().is_none());
        child.kill().unwrap();
        held(&child).wait(Duration::from_secs(10)).unwrap();
        assert!(id.open().is_none(), "a zombie was taken for a process that lives");
        child.wait().unwrap();
        assert!(id.open().is_none());
        assert!(ProcessId { pid: 0, start_time: 0 }.open().is_none());
    }

    #[test]
    fn a_name_cannot_pretend_to_be_fields() {
        let fields: Vec<String> = (3..=30).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) R 1 1 1 (b) 4 {}", fields.join(" "));
        assert_eq!(start_time(&stat.replace("(b) 4", "(b)")), Some(22));
        assert_eq!(start_time("7 (a"), None);
        assert_eq!(start_time("7 (a) S 1"), None);
    }
}
