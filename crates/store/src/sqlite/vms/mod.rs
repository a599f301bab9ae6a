//! VMs in SQLite.

mod former_pids;
mod list;
mod row;
mod unusable_snapshots;

use std::net::IpAddr;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::json;
use skep_api::{
    AccountId, KeyId, TicketId, VmId, VmName,
    swarm::{BootAnswer, PausedBy, PausedTo},
};

use self::row::{find, insert, update};
use super::{
    SqliteStore, accounts,
    columns::{execute, millis, query_optional},
    error::SqliteError,
    events::{self, NewEvent},
    keys, run_logs, templates, tickets,
};
use crate::{
    AppendLog, ChangeVm, EndVms, Ended, Error, EventKind, IdempotentRequest, ListVms, LogPage, LogPosition,
    NewKey, Pause, PauseChange, ReadLog, RecordBoots, RecordCommandEnd, RecordEnd, RecordPause,
    RecordUnusableSnapshots, TicketSignal, VmBooted, VmMetrics, VmPage, VmRecord, VmStore, VmToEnd,
    VmWithoutAttempt,
};

/// Maximum number of records of ended VMs, so that many short-lived VMs cannot fill the disk within the retention time.
const MAX_ENDED: u32 = 100_000;

#[async_trait]
impl VmStore for SqliteStore {
    async fn record_boots(&self, command: RecordBoots) -> crate::Result<()> {
        let key = KeyId::generate();
        self.run_ticket_command(move |c| Ok(((), record_boots(c, key, &command)?))).await
    }

    async fn stored_boot_answer(
        &self,
        account: AccountId,
        once: IdempotentRequest,
        at: Timestamp,
    ) -> crate::Result<Option<BootAnswer>> {
        self.readers.run(move |c| tickets::find_answer(c, account, &once, at)).await
    }

    async fn forget_boot_answer(&self, account: AccountId, once: IdempotentRequest) -> crate::Result<()> {
        self.writer.run(move |c| tickets::forget_answer(c, account, &once)).await
    }

    async fn change_vm(&self, command: ChangeVm) -> crate::Result<VmRecord> {
        self.writer.run(move |c| change_vm(c, &command)).await
    }

    async fn record_pause(&self, command: RecordPause) -> crate::Result<VmRecord> {
        self.writer.run(move |c| record_pause(c, &command)).await
    }

    async fn record_unusable_snapshots(&self, command: RecordUnusableSnapshots) -> crate::Result<()> {
        self.writer.run(move |c| unusable_snapshots::record(c, &command)).await
    }

    async fn record_end(&self, command: RecordEnd) -> crate::Result<Ended> {
        self.run_vm_end(move |c| record_end(c, &command)).await
    }

    async fn record_command_end(&self, command: RecordCommandEnd) -> crate::Result<()> {
        self.run_ticket_command(move |c| record_command_end(c, &command)).await
    }

    async fn end_vms(&self, command: EndVms) -> crate::Result<Vec<VmRecord>> {
        self.run_vm_end(move |c| end_vms(c, &command)).await
    }

    async fn live_vms(&self) -> crate::Result<Vec<VmRecord>> {
        self.readers.run(list::running).await
    }

    async fn former_pids(&self) -> crate::Result<Vec<(VmId, u32)>> {
        self.readers.run(former_pids::all).await
    }

    async fn had_key(&self, vm: VmId) -> crate::Result<bool> {
        self.readers.run(move |c| keys::exist_for_vm(c, vm)).await
    }

    async fn vms_without_attempt(&self) -> crate::Result<Vec<VmWithoutAttempt>> {
        self.readers.run(list::without_attempt).await
    }

    async fn list_vms(&self, query: ListVms) -> crate::Result<VmPage> {
        self.readers.run(move |c| list::list(c, &query)).await
    }

    async fn append_log(&self, command: AppendLog) -> crate::Result<()> {
        self.writer.run(move |c| run_logs::append(c, &command)).await
    }

    async fn log_position(&self, vm: VmId) -> crate::Result<LogPosition> {
        self.readers.run(move |c| run_logs::position(c, vm)).await
    }

    async fn read_log(&self, query: ReadLog) -> crate::Result<LogPage> {
        self.readers.run(move |c| run_logs::read(c, &query)).await
    }

    async fn vm_metrics(&self) -> crate::Result<Vec<VmMetrics>> {
        self.readers.run(list::metrics).await
    }
}

#[derive(Debug, Default)]
pub(super) struct Endings {
    /// Revoked keys, which were bound to the VMs.
    pub(super) keys: Vec<KeyId>,
    /// Signals of tickets that the VMs held.
    pub(super) tickets: Vec<TicketSignal>,
}

/// Records VMs that were booted together, and returns the signals of the ticket that one was booted for.
fn record_boots(
    connection: &Connection,
    key: KeyId,
    command: &RecordBoots,
) -> Result<Vec<TicketSignal>, SqliteError> {
    for vm in &command.vms {
        accounts::by_id(connection, vm.account)?;
        if let Some(name) = &vm.attributes.name {
            require_name_available(connection, vm.account, name, vm.id)?;
        }
        templates::record_use(connection, vm, command.at)?;
        insert(connection, vm, command.attempt.as_ref().is_some_and(|work| work.keep_vm))?;
        former_pids::remove(connection, vm.account, vm.pid)?;
        let event = NewEvent {
            account: vm.account,
            kind: EventKind::VmBooted,
            body: json!({ "vm": vm.id, "pid": vm.pid, "name": vm.attributes.name, "boot": vm.boot }),
            at: command.at,
            request_id: command.request_id.as_deref(),
        };
        events::append(connection, &event)?;
    }
    if let (Some((once, answer)), [vm, ..]) = (&command.answer, command.vms.as_slice()) {
        tickets::store_answer(connection, vm.account, once, command.at, answer)?;
    }
    let (Some(work), [vm]) = (&command.attempt, command.vms.as_slice()) else { return Ok(Vec::new()) };
    keys::create(connection, key, &NewKey { vm: Some(vm.id), ..work.key.clone() })?;
    run_logs::create(connection, vm, work)?;
    tickets::assign_to_vm(connection, vm, work, command.at, command.request_id.as_deref())
}

/// Changes the attributes of a running VM.
fn change_vm(connection: &Connection, command: &ChangeVm) -> Result<VmRecord, SqliteError> {
    let unknown = || Error::UnknownVm { vm: command.vm };
    let record = find(connection, command.vm)?.ok_or_else(unknown)?;
    if let Some(Some(name)) = &command.change.name {
        require_name_available(connection, record.vm.account, name, command.vm)?;
    }
    let before = record.vm.attributes.name.clone();
    let attributes = record.vm.attributes.with(command.change.clone());
    if !update(connection, command.vm, &attributes)? {
        return Err(unknown().into());
    }
    let vm = VmBooted { attributes, ..record.vm };
    if before != vm.attributes.name {
        let event = NewEvent {
            account: vm.account,
            kind: EventKind::VmRenamed,
            body: json!({ "vm": vm.id, "pid": vm.pid, "name": vm.attributes.name, "from": before }),
            at: command.at,
            request_id: command.request_id.as_deref(),
        };
        events::append(connection, &event)?;
    }
    Ok(VmRecord { vm, ..record })
}

/// Fails if another running VM of the account has the name.
fn require_name_available(
    connection: &Connection,
    account: AccountId,
    name: &VmName,
    but: VmId,
) -> Result<(), SqliteError> {
    let sql = "SELECT id FROM vms WHERE account = ?1 AND name = ?2 AND id <> ?3 AND ended_at IS NULL AND name IS NOT NULL";
    let parameters = [account.to_string(), name.to_string(), but.to_string()];
    match query_optional(connection, sql, parameters, |row| row.parse::<VmId>("id"))? {
        Some(vm) => Err(Error::VmNameTaken { name: name.clone(), vm }.into()),
        None => Ok(()),
    }
}

/// Records that a live VM is paused, or runs.
fn record_pause(connection: &Connection, command: &RecordPause) -> Result<VmRecord, SqliteError> {
    let unknown = || Error::UnknownVm { vm: command.vm };
    let live = |record: &VmRecord| record.end.is_none();
    let before = find(connection, command.vm)?.filter(live).ok_or_else(unknown)?;
    let pause = command.change.pause();
    if before.pause == pause {
        return Ok(before);
    }
    let (snapshot, pid, by) = match command.change {
        PauseChange::PausedToDisk { snapshot, .. } => (Some(snapshot.to_string()), None, None),
        PauseChange::Restored { pid, by, .. } => (None, Some(pid), Some(by)),
        PauseChange::PausedToMemory { .. } => (None, None, None),
        PauseChange::Runs { by } => (None, None, Some(by)),
    };
    let resumed_at = pid.map(|_| millis(command.at));
    let (paused_to, paused_by) = (pause.map(|pause| pause.to), pause.map(|pause| pause.by));
    let words = (paused_to.map(PausedTo::as_str), paused_by.map(PausedBy::as_str));
    execute(
        connection,
        "UPDATE vms SET paused_to = ?2, paused_by = ?3, snapshot = ?4, pid = coalesce(?5, pid),
                resumed_at = coalesce(?6, resumed_at),
                snapshot_error = CASE WHEN snapshot = ?4 THEN snapshot_error END
         WHERE id = ?1",
        params![command.vm.to_string(), words.0, words.1, snapshot, pid, resumed_at],
    )?;
    former_pids::record(connection, &before, command.change)?;
    let record = find(connection, command.vm)?.ok_or_else(unknown)?;
    // Another reason for the same pause is no event.
    if before.pause.map(|pause| pause.to) != paused_to {
        let VmBooted { id, pid, attributes, .. } = &record.vm;
        let mut body = json!({ "vm": id, "pid": pid, "name": attributes.name });
        let kind = match pause {
            Some(Pause { to, by }) => {
                body["paused_to"] = to.as_str().into();
                body["paused_by"] = by.as_str().into();
                EventKind::VmPaused
            }
            None => {
                body["by"] = json!(by);
                if let PauseChange::Restored { memory: false, .. } = command.change {
                    body["memory"] = false.into();
                }
                EventKind::VmResumed
            }
        };
        let request_id = command.request_id.as_deref();
        let event = NewEvent { account: record.vm.account, kind, body, at: command.at, request_id };
        events::append(connection, &event)?;
    }
    Ok(record)
}

/// Records the end of a VM that still runs, and returns what ended with it.
fn record_end(connection: &Connection, command: &RecordEnd) -> Result<(Ended, Endings), SqliteError> {
    let ended = execute(
        connection,
        "UPDATE vms SET ended_at = ?2, end_reason = ?3 WHERE id = ?1 AND ended_at IS NULL",
        params![command.vm.to_string(), millis(command.at), command.reason.as_str()],
    )?;
    let record = find(connection, command.vm)?.ok_or(Error::UnknownVm { vm: command.vm })?;
    let mut endings = Endings::default();
    if ended == 1 {
        let mut body = json!({ "vm": record.vm.id, "pid": record.vm.pid, "name": record.vm.attributes.name, "reason": command.reason });
        if let Some(message) = &command.message {
            body["message"] = message.as_str().into();
        }
        let event = NewEvent {
            account: record.vm.account,
            kind: EventKind::VmEnded,
            body,
            at: command.at,
            request_id: command.request_id.as_deref(),
        };
        events::append(connection, &event)?;
        let (vm, at, request_id) = (command.vm, command.at, command.request_id.as_deref());
        former_pids::remove_of_vm(connection, vm)?;
        run_logs::end(connection, vm, at)?;
        endings.keys = keys::revoke_keys_of_vm(connection, vm, at, request_id)?;
        endings.tickets = tickets::end_attempts_of_vm(connection, vm, command.reason, at, request_id)?;
    }
    Ok((Ended { record, first: ended == 1 }, endings))
}

/// Records the end of the command that a VM was booted with, and returns the signals of the ticket that the VM held.
fn record_command_end(
    connection: &Connection,
    command: &RecordCommandEnd,
) -> Result<((), Vec<TicketSignal>), SqliteError> {
    let ended = execute(
        connection,
        "UPDATE vms SET command_runs = 0 WHERE id = ?1 AND command_runs = 1",
        [command.vm.to_string()],
    )?;
    if ended == 1 {
        run_logs::end(connection, command.vm, command.at)?;
        return Ok(((), tickets::apply_command_end(connection, command)?));
    }
    let known =
        query_optional(connection, "SELECT 1 FROM vms WHERE id = ?1", [command.vm.to_string()], |_| Ok(()))?;
    known.map(|()| ((), Vec::new())).ok_or_else(|| Error::UnknownVm { vm: command.vm }.into())
}

/// Records the end of those of these VMs that still run, and returns what ended with them.
fn end_vms(connection: &Connection, command: &EndVms) -> Result<(Vec<VmRecord>, Endings), SqliteError> {
    let (mut ended, mut endings) = (Vec::new(), Endings::default());
    for VmToEnd { vm, message } in command.vms.clone() {
        let alive = "SELECT 1 FROM vms WHERE id = ?1 AND ended_at IS NULL";
        if query_optional(connection, alive, [vm.to_string()], |_| Ok(()))?.is_some() {
            let end = RecordEnd { vm, reason: command.reason, at: command.at, request_id: None, message };
            let (one, with_it) = record_end(connection, &end)?;
            ended.push(one.record);
            endings.keys.extend(with_it.keys);
            endings.tickets.extend(with_it.tickets);
        }
    }
    Ok((ended, endings))
}

/// Whether this VM runs and must end with its attempt at this ticket.
pub(super) fn ends_with_attempt(
    connection: &Connection,
    vm: VmId,
    ticket: TicketId,
) -> Result<bool, SqliteError> {
    let sql = "SELECT 1 FROM vms WHERE id = ?1 AND ticket = ?2 AND ended_at IS NULL AND keep_vm = 0";
    Ok(query_optional(connection, sql, [vm.to_string(), ticket.to_string()], |_| Ok(()))?.is_some())
}

/// Deletes one batch of records of VMs that ended before this time or are beyond the newest [`MAX_ENDED`], oldest end
/// first. Records of VMs that a key was bound to are kept. Returns the number of deleted records.
pub(super) fn delete_expired(
    connection: &Connection,
    before: Timestamp,
    batch: u32,
) -> Result<usize, SqliteError> {
    execute(
        connection,
        "DELETE FROM vms WHERE id IN (
             SELECT id FROM vms
             WHERE ended_at < max(?1, coalesce(
                       (SELECT ended_at FROM vms WHERE ended_at IS NOT NULL
                        ORDER BY ended_at DESC LIMIT 1 OFFSET ?2), ?1))
               AND NOT EXISTS (SELECT 1 FROM keys WHERE keys.vm = vms.id)
             ORDER BY ended_at LIMIT ?3)",
        params![millis(before), MAX_ENDED, batch],
    )
}

/// Number of running VMs of this account.
pub(super) fn count_running(connection: &Connection, account: AccountId) -> Result<u32, SqliteError> {
    let sql = "SELECT count(*) AS vms FROM vms WHERE account = ?1 AND ended_at IS NULL";
    let count = query_optional(connection, sql, [account.to_string()], |row| row.number("vms"))?;
    Ok(count.unwrap_or(0))
}

/// Fails if the VM does not run or is not of this account.
pub(super) fn require_running(
    connection: &Connection,
    account: AccountId,
    vm: VmId,
) -> Result<(), SqliteError> {
    let sql = "SELECT 1 FROM vms WHERE id = ?1 AND account = ?2 AND ended_at IS NULL";
    let found = query_optional(connection, sql, [vm.to_string(), account.to_string()], |_| Ok(()))?;
    found.ok_or_else(|| Error::UnknownVm { vm }.into())
}

/// Address of a VM, if the VM is recorded.
pub(super) fn ip_of(connection: &Connection, vm: VmId) -> Result<Option<IpAddr>, SqliteError> {
    let ip = query_optional(connection, "SELECT ip FROM vms WHERE id = ?1", [vm.to_string()], |row| {
        row.parse("ip")
    })?;
    Ok(ip)
}
