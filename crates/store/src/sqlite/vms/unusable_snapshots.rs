//! Snapshots of VMs on disk whose memory cannot be used: they are outdated or damaged.

use rusqlite::{Connection, params};
use serde_json::json;

use super::{
    super::{
        columns::execute,
        error::SqliteError,
        events::{self, NewEvent},
    },
    row::find,
};
use crate::{Error, EventKind, RecordUnusableSnapshots, UnusableSnapshot};

/// Records the reasons that are not on record yet, each with its event.
pub(super) fn record(connection: &Connection, command: &RecordUnusableSnapshots) -> Result<(), SqliteError> {
    for UnusableSnapshot { vm, snapshot, reason } in &command.snapshots {
        // The VM may have been resumed, or paused into another snapshot, since the caller saw its snapshot.
        let is_new = execute(
            connection,
            "UPDATE vms SET snapshot_error = ?3
             WHERE id = ?1 AND snapshot = ?2 AND ended_at IS NULL AND snapshot_error IS NOT ?3",
            params![vm.to_string(), snapshot.to_string(), reason],
        )? == 1;
        if !is_new {
            continue;
        }
        let record = find(connection, *vm)?.ok_or(Error::UnknownVm { vm: *vm })?;
        let name = &record.vm.attributes.name;
        let event = NewEvent {
            account: record.vm.account,
            kind: EventKind::VmOutdated,
            body: json!({ "vm": vm, "pid": record.vm.pid, "name": name, "message": reason }),
            at: command.at,
            request_id: None,
        };
        events::append(connection, &event)?;
    }
    Ok(())
}
