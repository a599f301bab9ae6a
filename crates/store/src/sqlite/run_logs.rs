//! Logs of the commands that VMs were booted with for a ticket, stored in chunks.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_api::{TicketId, VmId};

use super::{
    columns::{execute, millis, query_all, query_optional, signed},
    error::SqliteError,
};
use crate::{
    AppendLog, BootAttempt, Error, LogPage, LogPosition, MAX_ACCOUNT_LOG_BYTES, MIN_LOG_BYTES, ReadLog,
    VmBooted,
};

/// Maximum size of a chunk, in bytes. Output is appended to the last chunk until it has this size.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Number of chunks to delete at a time if the account exceeds its limit.
const SURPLUS_BATCH: u32 = 64;
/// Number of expired chunks to delete at a time. Limits the size of the transaction.
const EXPIRED_BATCH: u32 = 64;

/// Creates the log of a VM that is booted for a ticket, if it is booted with a command.
pub(super) fn create(connection: &Connection, vm: &VmBooted, work: &BootAttempt) -> Result<(), SqliteError> {
    if vm.exec_id.is_some() {
        let sql = "INSERT INTO run_logs (vm, account, ticket, attempt) VALUES (?1, ?2, ?3, ?4)";
        let (id, account) = (vm.id.to_string(), vm.account.to_string());
        execute(connection, sql, params![id, account, work.ticket.to_string(), work.attempt])?;
    }
    Ok(())
}

/// Records that the command of a VM has ended, by itself or with the VM.
pub(super) fn end(connection: &Connection, vm: VmId, at: Timestamp) -> Result<(), SqliteError> {
    let sql = "UPDATE run_logs SET ended_at = ?2 WHERE vm = ?1 AND ended_at IS NULL";
    execute(connection, sql, params![vm.to_string(), millis(at)])?;
    Ok(())
}

/// Appends output of a command, and deletes chunks beyond the limits.
pub(super) fn append(connection: &Connection, command: &AppendLog) -> Result<(), SqliteError> {
    let AppendLog { vm, bytes, position } = command;
    let vm = vm.to_string();
    let found =
        query_optional(connection, "SELECT account, size FROM run_logs WHERE vm = ?1", [&vm], |row| {
            Ok((row.get::<String>("account")?, row.number::<u64>("size")?))
        })?;
    let Some((account, size)) = found else { return Ok(()) };
    let log = Log { connection, vm: &vm, account: &account };
    let after = size + bytes.len() as u64;
    let sql = "UPDATE run_logs SET size = ?2, stdout = ?3, stderr = ?4 WHERE vm = ?1";
    let (stdout, stderr) = (signed(position.stdout)?, signed(position.stderr)?);
    execute(connection, sql, params![vm, signed(after)?, stdout, stderr])?;
    let added = log.append_to_last_chunk(size, bytes)?;
    let mut offset = size + added as u64;
    for piece in bytes[added..].chunks(MAX_CHUNK_BYTES) {
        let sql = "INSERT INTO run_log_pieces (vm, account, offset, data) VALUES (?1, ?2, ?3, ?4)";
        execute(connection, sql, params![vm, account, signed(offset)?, piece])?;
        offset += piece.len() as u64;
    }
    log.delete_surplus(after)
}

/// The log that [`append`] writes to.
struct Log<'a> {
    connection: &'a Connection,
    vm: &'a str,
    account: &'a str,
}

impl Log<'_> {
    /// Appends as many bytes to the last chunk as fit, and returns their number.
    fn append_to_last_chunk(&self, size: u64, bytes: &[u8]) -> Result<usize, SqliteError> {
        let sql =
            "SELECT sequence, offset, data FROM run_log_pieces WHERE vm = ?1 ORDER BY offset DESC LIMIT 1";
        let last = query_optional(self.connection, sql, [self.vm], |row| {
            let (sequence, offset) = (row.get::<i64>("sequence")?, row.number::<u64>("offset")?);
            Ok((sequence, offset, row.get::<Vec<u8>>("data")?))
        })?;
        let Some((sequence, offset, mut data)) = last else { return Ok(0) };
        let room = MAX_CHUNK_BYTES.saturating_sub(data.len()).min(bytes.len());
        // If the end of the log was deleted because of the account's limit, the last chunk is not contiguous with the
        // new bytes.
        if room == 0 || offset + data.len() as u64 != size {
            return Ok(0);
        }
        data.extend_from_slice(&bytes[..room]);
        execute(
            self.connection,
            "UPDATE run_log_pieces SET data = ?2 WHERE sequence = ?1",
            params![sequence, data],
        )?;
        Ok(room)
    }

    /// Deletes chunks of this log beyond its minimum, then the oldest chunks of the account beyond its limit.
    fn delete_surplus(&self, size: u64) -> Result<(), SqliteError> {
        let sql = "DELETE FROM run_log_pieces WHERE vm = ?1 AND offset + length(data) <= ?2";
        execute(self.connection, sql, params![self.vm, signed(size.saturating_sub(MIN_LOG_BYTES))?])?;
        let oldest = "DELETE FROM run_log_pieces WHERE sequence IN
                      (SELECT sequence FROM run_log_pieces WHERE account = ?1 ORDER BY sequence LIMIT ?2)";
        while self.account_bytes()? > MAX_ACCOUNT_LOG_BYTES {
            if execute(self.connection, oldest, params![self.account, SURPLUS_BATCH])? == 0 {
                break;
            }
        }
        Ok(())
    }

    fn account_bytes(&self) -> Result<u64, SqliteError> {
        let sql = "SELECT bytes FROM run_log_volumes WHERE account = ?1";
        Ok(query_optional(self.connection, sql, [self.account], |row| row.number("bytes"))?.unwrap_or(0))
    }
}

pub(super) fn position(connection: &Connection, vm: VmId) -> Result<LogPosition, SqliteError> {
    let sql = "SELECT stdout, stderr FROM run_logs WHERE vm = ?1";
    let found = query_optional(connection, sql, [vm.to_string()], |row| {
        Ok(LogPosition { stdout: row.number("stdout")?, stderr: row.number("stderr")? })
    })?;
    Ok(found.unwrap_or_default())
}

pub(super) fn read(connection: &Connection, query: &ReadLog) -> Result<LogPage, SqliteError> {
    check_access(connection, query)?;
    let sql = "SELECT * FROM run_logs WHERE ticket = ?1 AND account = ?2 AND (?3 IS NULL OR attempt = ?3)
               AND (?4 IS NULL OR vm = ?4) ORDER BY attempt DESC, vm DESC LIMIT 1";
    let (ticket, vm) = (query.ticket.to_string(), query.vm.map(|vm| vm.to_string()));
    let found = query_optional(
        connection,
        sql,
        params![ticket, query.account.to_string(), query.attempt, vm],
        |row| {
            let (vm, attempt) = (row.parse::<VmId>("vm")?, row.number::<u32>("attempt")?);
            Ok((vm, attempt, row.number::<u64>("size")?, row.optional_time("ended_at")?.is_none()))
        },
    )?;
    let Some((vm, attempt, size, running)) = found else { return Err(unknown(connection, query)?.into()) };
    let sql = "SELECT min(offset) AS first FROM run_log_pieces WHERE vm = ?1";
    let first =
        query_optional(connection, sql, [vm.to_string()], |row| row.get::<Option<i64>>("first"))?.flatten();
    let kept_from = first.and_then(|first| u64::try_from(first).ok()).unwrap_or(size);
    let offset = query.offset.clamp(kept_from, size);
    let bytes = read_bytes(connection, vm, offset, query.limit.max(1))?;
    Ok(LogPage { attempt, vm, offset, bytes, kept_from, size, running })
}

/// Reads at most `limit` bytes from `offset` on.
fn read_bytes(connection: &Connection, vm: VmId, offset: u64, limit: usize) -> Result<Vec<u8>, SqliteError> {
    // A chunk that starts earlier ends before `offset`, because no chunk is longer.
    let before = i64::try_from(offset).unwrap_or(i64::MAX).saturating_sub(MAX_CHUNK_BYTES as i64);
    let sql =
        "SELECT offset, data FROM run_log_pieces WHERE vm = ?1 AND offset > ?2 ORDER BY offset LIMIT ?3";
    let pieces = i64::try_from(limit / MAX_CHUNK_BYTES + 2).unwrap_or(i64::MAX);
    let found = query_all(connection, sql, params![vm.to_string(), before, pieces], |row| {
        Ok((row.number::<u64>("offset")?, row.get::<Vec<u8>>("data")?))
    })?;
    let mut bytes = Vec::new();
    for (start, data) in found {
        let skipped = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX).min(data.len());
        let (rest, room) = (&data[skipped..], limit - bytes.len());
        bytes.extend_from_slice(&rest[..rest.len().min(room)]);
    }
    Ok(bytes)
}

/// A key that is bound to a VM can only read the logs of tickets that this VM holds or held.
fn check_access(connection: &Connection, query: &ReadLog) -> Result<(), SqliteError> {
    let Some(vm) = query.caller_vm else { return Ok(()) };
    let sql = "SELECT 1 FROM ticket_attempts WHERE ticket = ?1 AND vm = ?2 AND account = ?3 LIMIT 1";
    let parameters = [query.ticket.to_string(), vm.to_string(), query.account.to_string()];
    let own = query_optional(connection, sql, parameters, |_| Ok(()))?;
    own.ok_or_else(|| unknown_ticket(query.ticket).into())
}

/// The error for a missing log: the ticket is unknown, or it has no such log.
fn unknown(connection: &Connection, query: &ReadLog) -> Result<Error, SqliteError> {
    let sql = "SELECT 1 FROM tickets WHERE id = ?1 AND account = ?2
               UNION ALL SELECT 1 FROM ticket_attempts WHERE ticket = ?1 AND account = ?2 LIMIT 1";
    let parameters = [query.ticket.to_string(), query.account.to_string()];
    let known = query_optional(connection, sql, parameters, |_| Ok(()))?.is_some();
    let (id, attempt) = (query.ticket, query.attempt);
    Ok(if known { Error::UnknownLog { id, attempt } } else { unknown_ticket(id) })
}

fn unknown_ticket(id: TicketId) -> Error {
    Error::UnknownTicket { id: id.to_string() }
}

/// Deletes one batch of chunks of logs that ended before this time, and such logs without chunks; returns the number of
/// both.
pub(super) fn delete_expired(
    connection: &Connection,
    before: Timestamp,
    batch: u32,
) -> Result<usize, SqliteError> {
    let sql = "DELETE FROM run_log_pieces WHERE sequence IN (
                   SELECT pieces.sequence FROM run_logs AS logs JOIN run_log_pieces AS pieces ON pieces.vm = logs.vm
                   WHERE logs.ended_at < ?1 LIMIT ?2)";
    let pieces = execute(connection, sql, params![millis(before), EXPIRED_BATCH])?;
    let sql = "DELETE FROM run_logs WHERE vm IN (
                   SELECT vm FROM run_logs AS logs
                   WHERE ended_at < ?1 AND NOT EXISTS (SELECT 1 FROM run_log_pieces WHERE vm = logs.vm)
                   LIMIT ?2)";
    Ok(pieces + execute(connection, sql, params![millis(before), batch])?)
}
