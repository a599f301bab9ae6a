//! What an earlier keeper left of the egress process.

use std::path::Path;

use skep_jail::{Cgroup, CgroupLimits, Jailed};
use skep_keeper_protocol::EgressKeeperEnd;
use skep_network::EgressListeners;

use super::{
    EgressParts, GROUP, PIDS,
    process::Running,
    record::{Disposition, Record, listeners_of},
};
use crate::{EgressConfig, Error};

/// What an earlier keeper left.
pub(super) struct EarlierProcess {
    pub(super) group: Cgroup,
    /// With its user id.
    pub(super) process: Option<(Disposition, Jailed, u32)>,
    pub(super) listeners: Option<EgressListeners>,
}

/// Looks for a usable process in the control group. Others in it are killed: this keeper could not tell them of a policy
/// that changes. Without a usable one the group is made anew.
pub(super) fn find_earlier(
    config: &EgressConfig,
    parts: &EgressParts<'_>,
    boot_id: &str,
) -> Result<EarlierProcess, Error> {
    let found = parts.tree.find(GROUP).zip(Record::read(&parts.data_dir.egress_record()));
    let usable = found.and_then(|(group, record)| {
        let disposition = record.disposition(boot_id, &config.arguments)?;
        let process = record.open(&group)?;
        let listeners = listeners_of(&process, parts.network)?;
        Some(EarlierProcess {
            group,
            process: Some((disposition, process, record.uid)),
            listeners: Some(listeners),
        })
    });
    if let Some(found) = usable {
        if let Some((_, process, _)) = &found.process {
            found.group.kill_others(process.pid)?;
        }
        return Ok(found);
    }
    if parts.tree.find(GROUP).is_some() {
        parts.tree.remove_group(GROUP)?;
    }
    let limits =
        CgroupLimits { memory_bytes: config.memory_bytes, pids: PIDS, cpu_weight: 100, cpu_percent: None };
    Ok(EarlierProcess { group: parts.tree.create_group(GROUP, &limits)?, process: None, listeners: None })
}

/// Connects to a process of an earlier keeper. One that cannot be connected to is killed.
pub(super) fn connect(socket: &Path, process: Jailed) -> Option<Running> {
    let control = skep_packet::connect(socket)
        .map_err(skep_keeper_protocol::Error::Io)
        .and_then(EgressKeeperEnd::new)
        .inspect_err(|error| tracing::warn!(%error, "the egress process cannot be adopted: {error}"));
    match control {
        Ok(control) => Some(Running { process, control }),
        Err(_) => {
            // The kill fails only if the process has ended.
            let _ = process.kill();
            None
        }
    }
}
