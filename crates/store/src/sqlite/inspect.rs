//! Whether a database is a store of skep, and sound.

use std::{collections::BTreeSet, path::Path, time::Duration};

use rusqlite::Connection;

use super::{
    error::SqliteError,
    file::DatabaseFile,
    migrations::{self, LATEST},
    tickets,
};
use crate::{Error, Result};

/// Maximum number of problems of a damaged database to report.
const MAX_PROBLEMS: u32 = 5;
/// The first version with tickets.
const VERSION_WITH_TICKETS: i64 = 5;
/// The first version with ticket labels.
const VERSION_WITH_LABELS: i64 = 13;
/// The first version with ticket counts by state.
const VERSION_WITH_COUNTS: i64 = 14;

/// Result of [`inspect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Schema version of the database; 0 is an empty database.
    pub version: i64,
    /// The newest schema version that this program supports.
    pub known: i64,
    /// Descriptions of the damage; empty if the database is sound.
    pub problems: Vec<String>,
}

/// Checks the store, which may be in use by a server. Reads all of it and blocks; must run as the owner of the file.
///
/// # Errors
/// The database does not exist or cannot be read.
pub fn inspect(database: &Path) -> Result<Inspection> {
    run(database, Duration::from_secs(5)).map_err(|fault| fault.into_error(database))
}

pub(super) fn run(path: &Path, busy_timeout: Duration) -> std::result::Result<Inspection, SqliteError> {
    let connection = DatabaseFile::locate(path, busy_timeout)?.reader()?;
    let version = migrations::version(&connection)?;
    let sql = format!("PRAGMA integrity_check({MAX_PROBLEMS})");
    let mut statement = connection.prepare(&sql)?;
    let mut problems: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    problems.retain(|line| line != "ok");
    if problems.is_empty() && (1..=LATEST).contains(&version) {
        problems.extend(schema_difference(&connection, version)?);
        problems.extend(dangling_reference(&connection)?);
        if version >= VERSION_WITH_TICKETS {
            problems.extend(tickets::check_dependency_counters(&connection)?);
        }
        if version >= VERSION_WITH_LABELS {
            problems.extend(tickets::check_label_index(&connection)?);
        }
        if version >= VERSION_WITH_COUNTS {
            problems.extend(tickets::check_state_counts(&connection)?);
        }
    }
    Ok(Inspection { version, known: LATEST, problems })
}

impl Inspection {
    /// Fails if the database is damaged or this program does not support its version.
    pub(super) fn require_sound(&self, path: &Path) -> std::result::Result<(), SqliteError> {
        let refused = |why: String| Err(Error::NotABackup { path: path.to_owned(), why }.into());
        if self.version > self.known {
            return Err(Error::NewerVersion {
                path: path.to_owned(),
                found: self.version,
                known: self.known,
            }
            .into());
        }
        match self.problems.first() {
            Some(problem) => refused(format!("it is damaged ({problem})")),
            None if self.version < 1 => refused("it has no version of skep's".to_owned()),
            None => Ok(()),
        }
    }
}

/// Compares tables, indexes, views and triggers with those that the migrations create. This detects databases of other
/// programs, and added and changed triggers.
fn schema_difference(
    connection: &Connection,
    version: i64,
) -> std::result::Result<Option<String>, SqliteError> {
    let mut ours = Connection::open_in_memory()?;
    migrations::migrate_to(&mut ours, version)?;
    let (expected, found) = (schema_objects(&ours)?, schema_objects(connection)?);
    let difference = expected.symmetric_difference(&found).next();
    Ok(difference.map(|SchemaObject { kind, name, .. }| {
        format!("the {kind} `{name}` is not as in version {version} of skep's schema")
    }))
}

/// An object of a schema.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SchemaObject {
    kind: String,
    name: String,
    /// The statement that creates a trigger or view. That of a table is not compared: `ALTER TABLE` rewrites it, each release of SQLite
    /// in its way.
    code: Option<String>,
}

fn schema_objects(connection: &Connection) -> std::result::Result<BTreeSet<SchemaObject>, SqliteError> {
    // Tables of SQLite itself, such as statistics, are not part of the schema.
    let sql = "SELECT type, name, iif(type IN ('trigger', 'view'), sql, NULL) FROM sqlite_schema
               WHERE NOT (type IN ('table', 'index') AND name LIKE 'sqlite\\_%' ESCAPE '\\')";
    let mut statement = connection.prepare(sql)?;
    let object = |row: &rusqlite::Row<'_>| {
        Ok(SchemaObject { kind: row.get(0)?, name: row.get(1)?, code: row.get(2)? })
    };
    let rows = statement.query_map([], object)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn dangling_reference(connection: &Connection) -> std::result::Result<Option<String>, SqliteError> {
    let mut statement = connection.prepare("PRAGMA foreign_key_check")?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (table, parent): (String, String) = (row.get(0)?, row.get(2)?);
    Ok(Some(format!("a row of `{table}` refers to a missing row of `{parent}`")))
}
