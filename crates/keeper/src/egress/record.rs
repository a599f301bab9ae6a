//! The record of the egress process, by which the next keeper finds it.

use std::{fs, io, path::Path};

use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use serde::{Deserialize, Serialize};
use skep_jail::{Cgroup, Jailed};
use skep_keeper_protocol::EGRESS_PROTOCOL;
use skep_network::{EgressListeners, Network};

use crate::{Error, process_id::ProcessId};

/// The descriptors of the listeners in the process. Part of [`EGRESS_PROTOCOL`].
const PROXY_FD: i32 = 4;
const DNS_UDP_FD: i32 = 5;
const DNS_TCP_FD: i32 = 6;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) boot_id: String,
    pub(super) process: ProcessId,
    pub(super) uid: u32,
    pub(super) protocol: u32,
    /// The operator's rules among them.
    pub(super) arguments: Vec<String>,
}

/// What a starting keeper does with the process of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    /// It is adopted.
    Adopt,
    /// Another process takes its place, and its connections may end by themselves.
    Replace,
}

impl Record {
    /// `None` if there is no usable record.
    pub(super) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Atomic. Not synced to disk: a power cut ends the process as well.
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let new = path.with_extension("new");
        let write = || -> io::Result<()> {
            fs::write(&new, serde_json::to_vec_pretty(self)?)?;
            fs::rename(&new, path)
        };
        write().map_err(Error::io(path.display().to_string()))
    }

    /// What to do with the process. `None` if it has to end at once: under other rules its connections might be ones that
    /// the operator forbids now.
    pub(super) fn disposition(&self, boot_id: &str, arguments: &[String]) -> Option<Disposition> {
        let usable = self.boot_id == boot_id && self.arguments == arguments;
        usable.then_some(if self.protocol == EGRESS_PROTOCOL {
            Disposition::Adopt
        } else {
            Disposition::Replace
        })
    }

    /// The process, if it runs in its group.
    pub(super) fn open(&self, group: &Cgroup) -> Option<Jailed> {
        self.process.open().filter(|process| group.contains(process.pid))
    }
}

/// Copies of the listeners of a running process. They are taken rather than requested, because the process may speak
/// another protocol, and stay open throughout: a connection of a VM waits in their queues and is never refused.
/// `None` if they are not the listeners of this network.
pub(super) fn listeners_of(process: &Jailed, network: &Network) -> Option<EgressListeners> {
    let copy = |descriptor| pidfd_getfd(&process.pidfd, descriptor, PidfdGetfdFlags::empty()).ok();
    let [proxy, dns_udp, dns_tcp] = [copy(PROXY_FD)?, copy(DNS_UDP_FD)?, copy(DNS_TCP_FD)?];
    let listeners = EgressListeners { proxy, dns_udp, dns_tcp };
    listeners.are_of(network.subnet()).then_some(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_with_the_same_rules_goes_on_and_only_one_with_the_same_protocol_is_adopted() {
        let rules = ["egress-process".to_owned()];
        let text = format!(
            r#"{{"boot_id": "b", "process": {{"pid": 1, "start_time": 2}}, "uid": 3, "protocol": {EGRESS_PROTOCOL},
                "arguments": ["egress-process"]}}"#
        );
        let record: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(record.disposition("b", &rules), Some(Disposition::Adopt));
        assert_eq!(record.disposition("another boot", &rules), None);
        assert_eq!(record.disposition("b", &["egress-process".to_owned(), "--deny".to_owned()]), None);
        let other = Record { protocol: EGRESS_PROTOCOL + 1, ..record };
        assert_eq!(other.disposition("b", &rules), Some(Disposition::Replace));
    }
}
