//! Schema migrations. A released migration is never edited.

use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

use super::error::SqliteError;
use crate::Cause;

const MIGRATIONS: &[M<'static>] = &[
    M::up(include_str!("migrations/0001_accounts_keys_vms_events.sql")),
    M::up(include_str!("migrations/0002_accounts_are_deleted.sql")),
    M::up(include_str!("migrations/0003_waitlist.sql")),
    M::up(include_str!("migrations/0004_audit_sessions.sql")),
    M::up(include_str!("migrations/0005_tickets.sql")),
    M::up(include_str!("migrations/0006_git_credentials.sql")),
    M::up(include_str!("migrations/0007_epoch_began_vms_for_tickets.sql")),
    M::up(include_str!("migrations/0008_commands_of_boots.sql")),
    M::up(include_str!("migrations/0009_webhooks.sql")),
    M::up(include_str!("migrations/0010_key_changes.sql")),
    M::up(include_str!("migrations/0011_vms_that_ended.sql")),
    M::up(include_str!("migrations/0012_names_of_vms.sql")),
    M::up(include_str!("migrations/0013_ticket_labels.sql")),
    M::up(include_str!("migrations/0014_ticket_counts.sql")),
    M::up(include_str!("migrations/0015_vms_of_tickets.sql")),
    M::up(include_str!("migrations/0017_run_logs.sql")),
    M::up(include_str!("migrations/0018_paused_vms.sql")),
    M::up(include_str!("migrations/0019_templates.sql")),
    M::up(include_str!("migrations/0020_session_links.sql")),
    M::up(include_str!("migrations/0021_egress_of_vms.sql")),
    M::up(include_str!("migrations/0022_egress_of_accounts.sql")),
    M::up(include_str!("migrations/0023_egress_in_audit.sql")),
    M::up(include_str!("migrations/0024_copies_of_vms.sql")),
    M::up(include_str!("migrations/0025_idle_vms.sql")),
    M::up(include_str!("migrations/0026_disk_of_accounts.sql")),
    M::up(include_str!("migrations/0027_outdated_vms.sql")),
    M::up(include_str!("migrations/0028_former_pids.sql")),
    M::up(include_str!("migrations/0029_egress_of_snapshots.sql")),
    M::up(include_str!("migrations/0030_git_relay_of_accounts.sql")),
    M::up(include_str!("migrations/0031_history_of_accounts.sql")),
];

/// The newest schema version that this program supports.
pub(super) const LATEST: i64 = MIGRATIONS.len() as i64;

/// Migrates the database to the newest version.
///
/// # Errors
/// [`SqliteError::NewerVersion`] if a newer skep wrote the database.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), SqliteError> {
    let found = version(connection)?;
    if found > LATEST {
        return Err(SqliteError::NewerVersion { found });
    }
    Migrations::from_slice(MIGRATIONS).to_latest(connection).map_err(to_fault)
}

/// Migrates an empty database to an older version, for comparison with others.
pub(super) fn migrate_to(connection: &mut Connection, version: i64) -> Result<(), SqliteError> {
    let version =
        usize::try_from(version).map_err(|error| SqliteError::Internal(Cause::from_error(&error)))?;
    Migrations::from_slice(MIGRATIONS).to_version(connection, version).map_err(to_fault)
}

fn to_fault(error: rusqlite_migration::Error) -> SqliteError {
    match error {
        rusqlite_migration::Error::RusqliteError { err, .. } => SqliteError::Driver(err),
        other => SqliteError::Internal(Cause::from_error(&other)),
    }
}

pub(super) fn version(connection: &Connection) -> Result<i64, SqliteError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

#[cfg(test)]
mod interrupted;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_are_sound() {
        Migrations::from_slice(MIGRATIONS).validate().unwrap();
    }

    #[test]
    fn migrating_twice_changes_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let epoch = |c: &Connection| -> String {
            c.query_row("SELECT value FROM meta WHERE name = 'epoch'", [], |row| row.get(0)).unwrap()
        };
        let first = epoch(&connection);
        migrate(&mut connection).unwrap();
        assert_eq!(epoch(&connection), first);
        assert_eq!(version(&connection).unwrap(), LATEST);
    }

    #[test]
    fn accounts_keep_what_refers_to_them() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        Migrations::from_slice(&MIGRATIONS[..1]).to_latest(&mut connection).unwrap();
        connection
            .execute_batch(
                "INSERT INTO accounts VALUES ('acc_1', 'default', '[\"/srv\"]', '[]', 7, NULL, 5);
                 INSERT INTO keys (id, account, sha256, prefix, name, environment, scopes, created_at)
                 VALUES ('key_1', 'acc_1', zeroblob(32), 'p', 'n', 'prod', '[]', 5);
                 INSERT INTO events (epoch, account, type, body, at) VALUES ('e', 'acc_1', 'key.created', '{}', 5);",
            )
            .unwrap();
        migrate(&mut connection).unwrap();
        let row = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(row("SELECT name || roots || max_vms || created_at FROM accounts"), "default[\"/srv\"]75");
        assert_eq!(row("SELECT k.id || a.id FROM keys k JOIN accounts a ON a.id = k.account"), "key_1acc_1");
        // The foreign keys are still enforced in both directions.
        assert!(connection.execute("DELETE FROM accounts", []).is_err());
        assert!(connection.execute("UPDATE keys SET account = 'acc_2'", []).is_err());
        let broken = connection.prepare("PRAGMA foreign_key_check").unwrap().exists([]).unwrap();
        assert!(!broken);
    }

    /// The sums of the history that there was are those by which the triggers count, so that nothing is left of them without history.
    #[test]
    fn the_history_that_there_was_is_counted_for_its_accounts() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate_to(&mut connection, LATEST - 1).unwrap();
        connection
            .execute_batch(
                "INSERT INTO accounts (id, name, roots, allowed_ips, created_at) VALUES ('acc_1', 'a', '[]', '[]', 5);
                 INSERT INTO events (epoch, account, type, body, at)
                 VALUES ('e', 'acc_1', 'vm.booted', '{}', 5), ('e', 'acc_1', 'vm.booted', '{\"long\": true}', 6);
                 DELETE FROM events WHERE sequence = 1;
                 INSERT INTO audit (id, account, action, resource, request_id, at, egress) VALUES
                 ('1', 'acc_1', 'boot', 'vm_x', 'r', 5, '\"all\"'), ('2', NULL, 'boot', NULL, 'request', 6, NULL);",
            )
            .unwrap();
        migrate(&mut connection).unwrap();
        let sums = || {
            let sql =
                "SELECT account || ' ' || kind || ' ' || bytes || ' ' || trimmed_to FROM history ORDER BY 1";
            let mut statement = connection.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap();
            rows.collect::<rusqlite::Result<Vec<String>>>().unwrap()
        };
        let counted = [" audit 271 0", " events 0 1", "acc_1 audit 274 0", "acc_1 events 214 0"];
        assert_eq!(sums(), counted);
        connection.execute_batch("DELETE FROM events; DELETE FROM audit").unwrap();
        let nothing = [" audit 0 0", " events 0 1", "acc_1 audit 0 0", "acc_1 events 0 0"];
        assert_eq!(sums(), nothing);
    }
}
