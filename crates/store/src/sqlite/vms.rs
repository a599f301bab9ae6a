//! VMs in SQLite.

use std::net::IpAddr;

use jiff::Timestamp;
use rusqlite::{Connection, named_params, params};
use serde_json::{Value, json};
use skep_api::{AccountId, KeyId, TicketId, VmId, VmName, swarm::EndReason};

use super::{
    accounts,
    columns::{self, Columns, execute, invalid_column, millis, query_all, query_optional, signed},
    events::{self, NewEvent},
    fault::Fault,
    keys, run_logs, tickets,
};
use crate::{
    ChangeVm, EndVms, Ended, Error, EventKind, ListVms, NewKey, RecordBoots, RecordCommandEnd, RecordEnd,
    TicketSignal, VmBooted, VmEnd, VmFilter, VmMetrics, VmPage, VmRecord, VmSet, VmWithoutAttempt,
};

/// Maximum number of records of ended VMs, so that many short-lived VMs cannot fill the disk within the retention time.
const MAX_ENDED: u32 = 100_000;

#[derive(Debug, Default)]
pub(super) struct Endings {
    /// Revoked keys, which were bound to the VMs.
    pub(super) keys: Vec<KeyId>,
    /// Signals of tickets that the VMs held.
    pub(super) tickets: Vec<TicketSignal>,
}

/// Records VMs that were booted together, and returns the signals of the ticket that one was booted for.
pub(super) fn record_boots(
    connection: &Connection,
    key: KeyId,
    command: &RecordBoots,
) -> Result<Vec<TicketSignal>, Fault> {
    for vm in &command.vms {
        accounts::by_id(connection, vm.account)?;
        if let Some(name) = &vm.name {
            require_name_available(connection, vm.account, name, vm.id)?;
        }
        insert(connection, vm, command.attempt.as_ref().is_some_and(|work| work.keep_vm))?;
        let event = NewEvent {
            account: vm.account,
            kind: EventKind::VmBooted,
            body: json!({ "vm": vm.id, "pid": vm.pid, "name": vm.name }),
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

fn insert(connection: &Connection, vm: &VmBooted, keep_vm: bool) -> Result<usize, Fault> {
    execute(
        connection,
        "INSERT INTO vms (id, account, name, pid, ip, template, vcpus, memory_mb, metadata, started_at, expires_at, ticket, exec_id,
                          command_runs, keep_vm, boot)
         VALUES (:id, :account, :name, :pid, :ip, :template, :vcpus, :memory_mb, :metadata, :started_at, :expires_at,
                 :ticket, :exec_id, :exec_id IS NOT NULL, :keep_vm, :boot)",
        named_params! {
            ":id": vm.id.to_string(),
            ":account": vm.account.to_string(),
            ":name": vm.name.as_ref().map(VmName::as_str),
            ":pid": vm.pid,
            ":ip": vm.ip,
            ":template": vm.template,
            ":vcpus": vm.vcpus,
            ":memory_mb": signed(vm.memory_mb)?,
            ":metadata": columns::to_json(&vm.metadata)?,
            ":started_at": millis(vm.started_at),
            ":expires_at": vm.expires_at.map(millis),
            ":ticket": vm.ticket.map(|ticket| ticket.to_string()),
            ":exec_id": vm.exec_id,
            ":keep_vm": keep_vm,
            ":boot": columns::to_json(&vm.boot)?,
        },
    )
}

/// Changes the mutable fields of a running VM.
pub(super) fn change_vm(connection: &Connection, command: &ChangeVm) -> Result<VmRecord, Fault> {
    let metadata = command.metadata.as_ref().map(columns::to_json).transpose()?;
    let name = command.name.as_ref().and_then(Option::as_ref);
    let found =
        query_optional(connection, "SELECT * FROM vms WHERE id = ?1", [command.vm.to_string()], decode)?;
    if let (Some(name), Some(record)) = (name, &found) {
        require_name_available(connection, record.vm.account, name, command.vm)?;
    }
    let changed = execute(
        connection,
        "UPDATE vms SET metadata = coalesce(:metadata, metadata),
                        name = CASE WHEN :renamed THEN :name ELSE name END,
                        expires_at = CASE WHEN :expires THEN :expires_at ELSE expires_at END
         WHERE id = :id AND ended_at IS NULL",
        named_params! {
            ":id": command.vm.to_string(),
            ":metadata": metadata,
            ":renamed": command.name.is_some(),
            ":name": name.map(VmName::as_str),
            ":expires": command.expires_at.is_some(),
            ":expires_at": command.expires_at.flatten().map(millis),
        },
    )?;
    let now =
        query_optional(connection, "SELECT * FROM vms WHERE id = ?1", [command.vm.to_string()], decode)?;
    let (Some(before), Some(now), 1) = (found, now, changed) else {
        return Err(Error::UnknownVm { vm: command.vm }.into());
    };
    if before.vm.name != now.vm.name {
        let VmBooted { id, account, pid, name, .. } = &now.vm;
        let event = NewEvent {
            account: *account,
            kind: EventKind::VmRenamed,
            body: json!({ "vm": id, "pid": pid, "name": name, "from": before.vm.name }),
            at: command.at,
            request_id: command.request_id.as_deref(),
        };
        events::append(connection, &event)?;
    }
    Ok(now)
}

/// Fails if another running VM of the account has the name.
fn require_name_available(
    connection: &Connection,
    account: AccountId,
    name: &VmName,
    but: VmId,
) -> Result<(), Fault> {
    let sql = "SELECT id FROM vms WHERE account = ?1 AND name = ?2 AND id <> ?3 AND ended_at IS NULL AND name IS NOT NULL";
    let parameters = [account.to_string(), name.to_string(), but.to_string()];
    match query_optional(connection, sql, parameters, |row| row.parse::<VmId>("id"))? {
        Some(vm) => Err(Error::VmNameTaken { name: name.clone(), vm }.into()),
        None => Ok(()),
    }
}

/// Records the end of a VM that still runs, and returns what ended with it.
pub(super) fn record_end(connection: &Connection, command: &RecordEnd) -> Result<(Ended, Endings), Fault> {
    let ended = execute(
        connection,
        "UPDATE vms SET ended_at = ?2, end_reason = ?3 WHERE id = ?1 AND ended_at IS NULL",
        params![command.vm.to_string(), millis(command.at), command.reason.as_str()],
    )?;
    let found =
        query_optional(connection, "SELECT * FROM vms WHERE id = ?1", [command.vm.to_string()], decode)?;
    let record = found.ok_or(Error::UnknownVm { vm: command.vm })?;
    let mut endings = Endings::default();
    if ended == 1 {
        let event = NewEvent {
            account: record.vm.account,
            kind: EventKind::VmEnded,
            body: json!({ "vm": record.vm.id, "pid": record.vm.pid, "name": record.vm.name, "reason": command.reason }),
            at: command.at,
            request_id: command.request_id.as_deref(),
        };
        events::append(connection, &event)?;
        let (vm, at, request_id) = (command.vm, command.at, command.request_id.as_deref());
        run_logs::end(connection, vm, at)?;
        endings.keys = keys::revoke_keys_of_vm(connection, vm, at, request_id)?;
        endings.tickets = tickets::end_attempts_of_vm(connection, vm, command.reason, at, request_id)?;
    }
    Ok((Ended { record, first: ended == 1 }, endings))
}

/// Records the end of the command that a VM was booted with, and returns the signals of the ticket that the VM held.
pub(super) fn record_command_end(
    connection: &Connection,
    command: &RecordCommandEnd,
) -> Result<((), Vec<TicketSignal>), Fault> {
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
pub(super) fn end_vms(connection: &Connection, command: &EndVms) -> Result<(Vec<VmRecord>, Endings), Fault> {
    let (mut ended, mut endings) = (Vec::new(), Endings::default());
    for vm in &command.vms {
        let alive = "SELECT 1 FROM vms WHERE id = ?1 AND ended_at IS NULL";
        if query_optional(connection, alive, [vm.to_string()], |_| Ok(()))?.is_some() {
            let end = RecordEnd { vm: *vm, reason: command.reason, at: command.at, request_id: None };
            let (one, with_it) = record_end(connection, &end)?;
            ended.push(one.record);
            endings.keys.extend(with_it.keys);
            endings.tickets.extend(with_it.tickets);
        }
    }
    Ok((ended, endings))
}

/// Returns the running VMs, oldest first.
pub(super) fn running(connection: &Connection) -> Result<Vec<VmRecord>, Fault> {
    let sql = "SELECT * FROM vms WHERE ended_at IS NULL ORDER BY started_at, id";
    query_all(connection, sql, [], decode)
}

/// Whether this VM runs and must end with its attempt at this ticket.
pub(super) fn ends_with_attempt(connection: &Connection, vm: VmId, ticket: TicketId) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM vms WHERE id = ?1 AND ticket = ?2 AND ended_at IS NULL AND keep_vm = 0";
    Ok(query_optional(connection, sql, [vm.to_string(), ticket.to_string()], |_| Ok(()))?.is_some())
}

/// Returns the VMs that still run although their attempt at a ticket has ended, except those to be kept.
pub(super) fn without_attempt(connection: &Connection) -> Result<Vec<VmWithoutAttempt>, Fault> {
    let sql = "SELECT vms.id, vms.account, tickets.status IN ('completed', 'failed') IS TRUE AS finished
               FROM vms LEFT JOIN tickets ON tickets.id = vms.ticket AND tickets.vm = vms.id
               WHERE vms.ended_at IS NULL AND vms.ticket IS NOT NULL AND vms.keep_vm = 0
                 AND tickets.status IS NOT 'in_progress'
               ORDER BY vms.id";
    query_all(connection, sql, [], |row| {
        Ok(VmWithoutAttempt {
            vm: row.parse("id")?,
            account: row.parse("account")?,
            finished: row.get("finished")?,
        })
    })
}

/// SQL condition of a [`VmFilter`] on a row of `vms`. Parameters: `?4` name, `?5` template, `?6` metadata.
macro_rules! filter {
    () => {
        " AND (?4 IS NULL OR name = ?4) AND (?5 IS NULL OR template = ?5)
          AND NOT EXISTS (
              SELECT 1 FROM json_each(?6) AS wanted WHERE NOT EXISTS (
                  SELECT 1 FROM json_each(vms.metadata) AS given
                  WHERE given.key = wanted.key AND wanted.value = CASE
                      WHEN given.type IN ('true', 'false', 'null') THEN given.type
                      ELSE CAST(given.atom AS TEXT)
                  END))"
    };
}

pub(super) fn list(connection: &Connection, query: &ListVms) -> Result<VmPage, Fault> {
    // If the record of the cursor has been deleted, the comparison is null and the page empty. The records that would
    // follow are older and about to be deleted too.
    let sql = match query.set {
        VmSet::Running => {
            concat!(
                "SELECT * FROM vms WHERE account = ?1 AND ended_at IS NULL AND (?2 IS NULL OR id < ?2)",
                filter!(),
                " ORDER BY id DESC LIMIT ?3"
            )
        }
        VmSet::Ended => {
            concat!(
                "SELECT * FROM vms WHERE account = ?1 AND ended_at IS NOT NULL
                 AND (?2 IS NULL OR (ended_at, id) < (SELECT ended_at, id FROM vms WHERE id = ?2))",
                filter!(),
                " ORDER BY ended_at DESC, id DESC LIMIT ?3"
            )
        }
    };
    let limit = query.limit.max(1);
    let after = query.after.map(|vm| vm.to_string());
    // One more row than the page size shows whether there is a next page.
    let VmFilter { name, template, metadata } = &query.filter;
    let metadata = columns::to_json(metadata)?;
    let parameters =
        params![query.account.to_string(), after, i64::from(limit) + 1, name, template, metadata];
    let mut vms = query_all(connection, sql, parameters, decode)?;
    let more = vms.len() > limit as usize;
    vms.truncate(limit as usize);
    let next = vms.last().filter(|_| more).map(|last| last.vm.id);
    Ok(VmPage { vms, next })
}

/// Deletes one batch of records of VMs that ended before this time or are beyond the newest [`MAX_ENDED`], oldest end
/// first. Records of VMs that a key was bound to are kept. Returns the number of deleted records.
pub(super) fn delete_expired(connection: &Connection, before: Timestamp, batch: u32) -> Result<usize, Fault> {
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

/// Maximum number of accounts in the result.
const MAX_ACCOUNTS: u32 = 1_000;

/// Returns the number and memory of running VMs for each account that is not deleted; beyond the maximum, for the
/// oldest.
pub(super) fn metrics(connection: &Connection) -> Result<Vec<VmMetrics>, Fault> {
    let sql = "SELECT accounts.name AS account, count(vms.id) AS running, coalesce(sum(vms.memory_mb), 0) AS memory_mb
               FROM accounts LEFT JOIN vms ON vms.account = accounts.id AND vms.ended_at IS NULL
               WHERE accounts.deleted_at IS NULL
               GROUP BY accounts.id ORDER BY accounts.id LIMIT ?1";
    query_all(connection, sql, [MAX_ACCOUNTS], |row| {
        Ok(VmMetrics {
            account: row.get("account")?,
            running: row.number("running")?,
            memory_mb: row.number("memory_mb")?,
        })
    })
}

/// Number of running VMs of this account.
pub(super) fn count_running(connection: &Connection, account: AccountId) -> Result<u32, Fault> {
    let sql = "SELECT count(*) AS vms FROM vms WHERE account = ?1 AND ended_at IS NULL";
    let count = query_optional(connection, sql, [account.to_string()], |row| row.number("vms"))?;
    Ok(count.unwrap_or(0))
}

/// Fails if the VM does not run or is not of this account.
pub(super) fn require_running(connection: &Connection, account: AccountId, vm: VmId) -> Result<(), Fault> {
    let sql = "SELECT 1 FROM vms WHERE id = ?1 AND account = ?2 AND ended_at IS NULL";
    let found = query_optional(connection, sql, [vm.to_string(), account.to_string()], |_| Ok(()))?;
    found.ok_or_else(|| Error::UnknownVm { vm }.into())
}

/// Address of a VM, if the VM is recorded.
pub(super) fn ip_of(connection: &Connection, vm: VmId) -> Result<Option<IpAddr>, Fault> {
    let ip = query_optional(connection, "SELECT ip FROM vms WHERE id = ?1", [vm.to_string()], |row| {
        row.parse("ip")
    })?;
    Ok(ip)
}

fn decode(row: &Columns<'_>) -> Result<VmRecord, Fault> {
    let vm = VmBooted {
        id: row.parse("id")?,
        account: row.parse("account")?,
        name: row.parse_optional("name")?,
        pid: row.number("pid")?,
        ip: row.get("ip")?,
        template: row.get("template")?,
        vcpus: row.number("vcpus")?,
        memory_mb: row.number("memory_mb")?,
        metadata: row.json("metadata")?,
        started_at: row.time("started_at")?,
        expires_at: row.optional_time("expires_at")?,
        ticket: row.parse_optional("ticket")?,
        exec_id: row.get("exec_id")?,
        boot: row.json("boot")?,
    };
    let end = match (row.optional_time("ended_at")?, row.get::<Option<String>>("end_reason")?) {
        (Some(at), Some(word)) => Some(VmEnd { at, reason: reason(word)? }),
        _ => None,
    };
    Ok(VmRecord { vm, command_runs: row.get("command_runs")?, end })
}

fn reason(word: String) -> Result<EndReason, Fault> {
    serde_json::from_value(Value::String(word)).map_err(|error| invalid_column("end_reason", error))
}
