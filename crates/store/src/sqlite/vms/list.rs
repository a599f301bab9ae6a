//! Lists of VMs, and metrics about them.

use rusqlite::{Connection, params};
use skep_api::swarm::PausedTo;

use super::{
    super::{
        columns::{self, query_all},
        error::SqliteError,
    },
    row::decode,
};
use crate::{ListVms, VmFilter, VmMetrics, VmPage, VmRecord, VmSet, VmWithoutAttempt};

/// Maximum number of accounts in the result of [`metrics`].
const MAX_ACCOUNTS: u32 = 1_000;

/// Returns the running VMs, oldest first.
pub(super) fn running(connection: &Connection) -> Result<Vec<VmRecord>, SqliteError> {
    let sql = "SELECT * FROM vms WHERE ended_at IS NULL ORDER BY started_at, id";
    query_all(connection, sql, [], decode)
}

/// Returns the VMs that still run although their attempt at a ticket has ended, except those to be kept.
pub(super) fn without_attempt(connection: &Connection) -> Result<Vec<VmWithoutAttempt>, SqliteError> {
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

/// SQL condition of a [`VmFilter`] on a row of `vms`. Parameters: `?4` name, `?5` template, `?6` metadata,
/// `?8` where the memory of a paused VM is kept.
macro_rules! filter {
    () => {
        " AND (?4 IS NULL OR name = ?4) AND (?5 IS NULL OR template = ?5)
          AND (?8 IS NULL OR (ended_at IS NULL AND paused_to = ?8))
          AND NOT EXISTS (
              SELECT 1 FROM json_each(?6) AS wanted WHERE NOT EXISTS (
                  SELECT 1 FROM json_each(vms.metadata) AS given
                  WHERE given.key = wanted.key AND wanted.value = CASE
                      WHEN given.type IN ('true', 'false', 'null') THEN given.type
                      ELSE CAST(given.atom AS TEXT)
                  END))"
    };
}

pub(super) fn list(connection: &Connection, query: &ListVms) -> Result<VmPage, SqliteError> {
    // If the record of the cursor has been deleted, the comparison is null and the page empty. The records that would
    // follow are older and about to be deleted too.
    let sql = match query.set {
        VmSet::Live | VmSet::Running | VmSet::Paused => {
            concat!(
                "SELECT * FROM vms WHERE account = ?1 AND ended_at IS NULL AND (?2 IS NULL OR id < ?2)
                 AND (?7 IS NULL OR (paused_to IS NOT NULL) = ?7)",
                filter!(),
                " ORDER BY id DESC LIMIT ?3"
            )
        }
        VmSet::Ended => {
            concat!(
                "SELECT * FROM vms WHERE account = ?1 AND ended_at IS NOT NULL
                 AND ?7 IS NULL AND (?2 IS NULL OR (ended_at, id) < (SELECT ended_at, id FROM vms WHERE id = ?2))",
                filter!(),
                " ORDER BY ended_at DESC, id DESC LIMIT ?3"
            )
        }
    };
    let paused = match query.set {
        VmSet::Live | VmSet::Ended => None,
        VmSet::Running => Some(false),
        VmSet::Paused => Some(true),
    };
    let limit = query.limit.max(1);
    let after = query.after.map(|vm| vm.to_string());
    // One more row than the page size shows whether there is a next page.
    let VmFilter { name, template, paused_to, metadata } = &query.filter;
    let metadata = columns::to_json(metadata)?;
    let paused_to = paused_to.map(PausedTo::as_str);
    let account = query.account.to_string();
    let parameters =
        params![account, after, i64::from(limit) + 1, name, template, metadata, paused, paused_to];
    let mut vms = query_all(connection, sql, parameters, decode)?;
    let more = vms.len() > limit as usize;
    vms.truncate(limit as usize);
    let next = vms.last().filter(|_| more).map(|last| last.vm.id);
    Ok(VmPage { vms, next })
}

/// Returns the numbers and memory of live VMs for each account that is not deleted; beyond the maximum, for the
/// oldest.
pub(super) fn metrics(connection: &Connection) -> Result<Vec<VmMetrics>, SqliteError> {
    let sql = "SELECT accounts.name AS account, count(vms.id) - count(vms.paused_to) AS running,
                      count(vms.paused_to) AS paused, coalesce(sum(vms.memory_mb) FILTER (WHERE vms.paused_to IS NOT 'disk'), 0) AS memory_mb
               FROM accounts LEFT JOIN vms ON vms.account = accounts.id AND vms.ended_at IS NULL
               WHERE accounts.deleted_at IS NULL
               GROUP BY accounts.id ORDER BY accounts.id LIMIT ?1";
    query_all(connection, sql, [MAX_ACCOUNTS], |row| {
        Ok(VmMetrics {
            account: row.get("account")?,
            running: row.number("running")?,
            paused: row.number("paused")?,
            memory_mb: row.number("memory_mb")?,
        })
    })
}
