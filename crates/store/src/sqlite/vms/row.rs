//! Rows of VMs.

use rusqlite::{Connection, named_params};
use serde_json::Value;
use skep_api::{VmName, swarm::EndReason};

use super::super::{
    columns::{self, Columns, execute, invalid_column, millis, signed},
    fault::Fault,
};
use crate::{VmBooted, VmEnd, VmRecord};

pub(super) fn insert(connection: &Connection, vm: &VmBooted, keep_vm: bool) -> Result<usize, Fault> {
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

pub(super) fn decode(row: &Columns<'_>) -> Result<VmRecord, Fault> {
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
