//! Attempts that VMs are booted for: claimed before the boot, and held by the VM once its boot is recorded.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::json;
use skep_api::tickets::{Heartbeat, Object};
use skep_tickets::{Command, State, decide};

use super::{
    super::{columns::execute, error::SqliteError},
    apply::{Change, apply},
    row::of_account,
};
use crate::{BootAttempt, Error, TicketCall, TicketSignal, VmBooted};

/// Makes the VM the holder of the attempt; fails if the attempt has ended meanwhile.
pub(in super::super) fn assign_to_vm(
    connection: &Connection,
    vm: &VmBooted,
    work: &BootAttempt,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<Vec<TicketSignal>, SqliteError> {
    let before = of_account(connection, vm.account, work.ticket)?;
    // The attempt is still held if the rules would accept a renewal.
    let holds = Command::Heartbeat(Heartbeat { attempt: Some(work.attempt), ..Heartbeat::default() });
    decide(&before.ticket, &holds, at).map_err(Error::from)?;
    let mut edited = before.clone();
    if let State::InProgress(holder) = &mut edited.ticket.state {
        holder.vm = Some(vm.id);
    }
    let edits = Object::from_iter([("vm".to_owned(), json!([before.ticket.vm(), vm.id]))]);
    let request_id = request_id.map(str::to_owned);
    let call = TicketCall { account: vm.account, key: None, vm: None, at, request_id };
    let sql = "UPDATE ticket_attempts SET vm = ?3 WHERE ticket = ?1 AND attempt = ?2";
    execute(connection, sql, params![work.ticket.to_string(), work.attempt, vm.id.to_string()])?;
    let mut signals = Vec::new();
    apply(connection, &call, Change { before: &before, edited, edits, steps: Vec::new() }, &mut signals)?;
    Ok(signals)
}
