//! The columns of the table `vms`.

use std::sync::LazyLock;

use rusqlite::{Connection, params_from_iter};
use serde::de::DeserializeOwned;
use serde_json::Value;
use skep_api::VmId;

use super::super::{
    columns::{Columns, execute, invalid_column, query_optional},
    error::SqliteError,
    table::{ColumnSet, ColumnValue, column_set, insert_sql, update_sql},
};
use crate::{Pause, VmAttributes, VmBooted, VmEnd, VmRecord};

column_set!(
    VmBooted: id, account, pid, ip, template, template_id, parent, vcpus, memory_mb, started_at, ticket, exec_id, boot;
    attributes: VmAttributes
);
column_set!(VmAttributes: name, metadata, expires_at, egress, idle_timeout_ms, on_idle);

pub(super) fn insert(connection: &Connection, vm: &VmBooted, keep_vm: bool) -> Result<(), SqliteError> {
    static INSERT: LazyLock<String> =
        LazyLock::new(|| insert_sql("vms", &[VmBooted::columns(), vec!["command_runs", "keep_vm"]]));
    let command_runs = vm.exec_id.is_some();
    let mut values = vm.bind()?;
    values.extend([command_runs.bind()?, keep_vm.bind()?]);
    execute(connection, &INSERT, params_from_iter(values))?;
    Ok(())
}

/// Writes the attributes of a running VM; returns whether it runs.
pub(super) fn update(
    connection: &Connection,
    id: VmId,
    attributes: &VmAttributes,
) -> Result<bool, SqliteError> {
    static UPDATE: LazyLock<String> = LazyLock::new(|| {
        update_sql("vms", &[VmAttributes::columns()]) + " WHERE id = ? AND ended_at IS NULL"
    });
    let mut values = attributes.bind()?;
    values.push(id.bind()?);
    Ok(execute(connection, &UPDATE, params_from_iter(values))? == 1)
}

pub(super) fn find(connection: &Connection, id: VmId) -> Result<Option<VmRecord>, SqliteError> {
    query_optional(connection, "SELECT * FROM vms WHERE id = ?1", [id.to_string()], decode)
}

pub(super) fn decode(row: &Columns<'_>) -> Result<VmRecord, SqliteError> {
    let vm = VmBooted::read(row)?;
    let end = match (row.optional_time("ended_at")?, row.get::<Option<String>>("end_reason")?) {
        (Some(at), Some(word)) => Some(VmEnd { at, reason: parse("end_reason", word)? }),
        _ => None,
    };
    let pause = match (row.get::<Option<String>>("paused_to")?, row.get::<Option<String>>("paused_by")?) {
        (Some(to), Some(by)) => Some(Pause { to: parse("paused_to", to)?, by: parse("paused_by", by)? }),
        _ => None,
    };
    Ok(VmRecord {
        vm,
        command_runs: row.get("command_runs")?,
        pause,
        snapshot: row.parse_optional("snapshot")?,
        resumed_at: row.optional_time("resumed_at")?,
        end,
    })
}

/// Parses a word of the API.
fn parse<T: DeserializeOwned>(column: &'static str, word: String) -> Result<T, SqliteError> {
    serde_json::from_value(Value::String(word)).map_err(|error| invalid_column(column, error))
}
