//! Reads which VMs are on disk, for a process that does not open the store.

use std::path::Path;

use super::{columns::query_all, file::DatabaseFile};
use crate::{Result, VmOnDisk};

/// The first version that has the snapshots of VMs.
const VERSION_WITH_SNAPSHOTS: i64 = 23;

/// Returns the VMs of all accounts that are paused to disk, or nothing if there is no store yet. Blocks. A server may be
/// running meanwhile.
///
/// # Errors
/// The store cannot be read.
pub fn vms_on_disk(database: &Path) -> Result<Vec<VmOnDisk>> {
    let sql =
        "SELECT id, name, snapshot FROM vms WHERE ended_at IS NULL AND snapshot IS NOT NULL ORDER BY id";
    DatabaseFile::read_beside_server(database, VERSION_WITH_SNAPSHOTS, |connection| {
        query_all(connection, sql, [], |row| {
            Ok(VmOnDisk {
                vm: row.parse("id")?,
                name: row.parse_optional("name")?,
                snapshot: row.parse("snapshot")?,
            })
        })
    })
}
