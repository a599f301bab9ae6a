//! The versions of the database. A migration that was released is never edited.

use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

use super::fault::Fault;
use crate::Cause;

const STEPS: &[M<'static>] = &[M::up(include_str!("migrations/0001_accounts_keys_vms_events.sql"))];

/// The newest version that this program knows.
pub(super) const KNOWN: i64 = STEPS.len() as i64;

/// Brings the database to the newest version.
///
/// # Errors
/// [`Fault::Newer`] where a newer skep wrote it.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), Fault> {
    let found = version(connection)?;
    if found > KNOWN {
        return Err(Fault::Newer { found });
    }
    Migrations::from_slice(STEPS).to_latest(connection).map_err(told)
}

/// Brings an empty database to an older version, to compare others with.
pub(super) fn migrate_to(connection: &mut Connection, version: i64) -> Result<(), Fault> {
    let version = usize::try_from(version).map_err(|error| Fault::Broken(Cause::of(&error)))?;
    Migrations::from_slice(STEPS).to_version(connection, version).map_err(told)
}

fn told(error: rusqlite_migration::Error) -> Fault {
    match error {
        rusqlite_migration::Error::RusqliteError { err, .. } => Fault::Driver(err),
        other => Fault::Broken(Cause::of(&other)),
    }
}

/// The version of a database.
pub(super) fn version(connection: &Connection) -> Result<i64, Fault> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

#[cfg(test)]
mod interrupted;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_are_sound() {
        Migrations::from_slice(STEPS).validate().unwrap();
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
        assert_eq!(version(&connection).unwrap(), KNOWN);
    }
}
