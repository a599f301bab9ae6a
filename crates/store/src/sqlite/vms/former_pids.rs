//! The process ids that VMs had before they were paused to disk, and that still lead to them.

use rusqlite::{Connection, params};
use skep_api::{AccountId, VmId};

use super::super::{
    columns::{execute, query_all},
    error::SqliteError,
};
use crate::{MAX_FORMER_PIDS, PauseChange, VmBooted, VmRecord};

/// Returns those of all accounts, each with its VM, oldest first.
pub(super) fn all(connection: &Connection) -> Result<Vec<(VmId, u32)>, SqliteError> {
    let sql = "SELECT vm, pid FROM former_pids ORDER BY sequence";
    query_all(connection, sql, [], |row| Ok((row.parse("vm")?, row.number("pid")?)))
}

/// Records which process id a VM gives up, or gets, by a change of its pause.
pub(super) fn record(
    connection: &Connection,
    before: &VmRecord,
    change: PauseChange,
) -> Result<(), SqliteError> {
    let VmBooted { id, account, pid, .. } = &before.vm;
    match change {
        // A VM that was already on disk has no process, and another VM may have its last process id by now.
        PauseChange::PausedToDisk { .. } if before.snapshot.is_none() => add(connection, *account, *id, *pid),
        PauseChange::Restored { pid, .. } => remove(connection, *account, pid),
        PauseChange::PausedToDisk { .. } | PauseChange::PausedToMemory { .. } | PauseChange::Runs { .. } => {
            Ok(())
        }
    }
}

/// Adds the process id of a VM, and removes the oldest ones of the VM beyond the limit.
fn add(connection: &Connection, account: AccountId, vm: VmId, pid: u32) -> Result<(), SqliteError> {
    let vm = vm.to_string();
    let insert = "INSERT OR REPLACE INTO former_pids (account, pid, vm) VALUES (?1, ?2, ?3)";
    execute(connection, insert, params![account.to_string(), pid, vm])?;
    let delete = "DELETE FROM former_pids WHERE vm = ?1 AND sequence NOT IN (
                      SELECT sequence FROM former_pids WHERE vm = ?1 ORDER BY sequence DESC LIMIT ?2)";
    execute(connection, delete, params![vm, MAX_FORMER_PIDS])?;
    Ok(())
}

/// Removes a process id that a VM of the account has now.
pub(super) fn remove(connection: &Connection, account: AccountId, pid: u32) -> Result<(), SqliteError> {
    let sql = "DELETE FROM former_pids WHERE account = ?1 AND pid = ?2";
    execute(connection, sql, params![account.to_string(), pid])?;
    Ok(())
}

/// Removes those of a VM that has ended.
pub(super) fn remove_of_vm(connection: &Connection, vm: VmId) -> Result<(), SqliteError> {
    execute(connection, "DELETE FROM former_pids WHERE vm = ?1", [vm.to_string()])?;
    Ok(())
}
