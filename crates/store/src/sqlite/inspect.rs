//! Whether a database is a store of skep, and sound.

use std::{collections::BTreeSet, path::Path, time::Duration};

use rusqlite::Connection;

use super::{
    fault::Fault,
    file::DatabaseFile,
    migrations::{self, KNOWN},
    tickets,
};
use crate::{Error, Result};

/// Maximum number of problems of a damaged database to report.
const MOST_PROBLEMS: u32 = 5;
/// The first version with tickets.
const TICKETS: i64 = 5;
/// The first version with ticket labels.
const TICKET_LABELS: i64 = 13;
/// The first version with ticket counts by state.
const TICKET_COUNTS: i64 = 14;

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
    look(database, Duration::from_secs(5)).map_err(|fault| fault.into_error(database))
}

pub(super) fn look(path: &Path, patience: Duration) -> std::result::Result<Inspection, Fault> {
    let connection = DatabaseFile::find(path, patience)?.reader()?;
    let version = migrations::version(&connection)?;
    let sql = format!("PRAGMA integrity_check({MOST_PROBLEMS})");
    let mut statement = connection.prepare(&sql)?;
    let mut problems: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    problems.retain(|line| line != "ok");
    if problems.is_empty() && (1..=KNOWN).contains(&version) {
        problems.extend(foreign_parts(&connection, version)?);
        problems.extend(dangling(&connection)?);
        if version >= TICKETS {
            problems.extend(tickets::counters(&connection)?);
        }
        if version >= TICKET_LABELS {
            problems.extend(tickets::label_index(&connection)?);
        }
        if version >= TICKET_COUNTS {
            problems.extend(tickets::state_counts(&connection)?);
        }
    }
    Ok(Inspection { version, known: KNOWN, problems })
}

impl Inspection {
    /// Fails if the database is damaged or this program does not support its version.
    pub(super) fn sound(&self, path: &Path) -> std::result::Result<(), Fault> {
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
/// programs and added triggers.
fn foreign_parts(connection: &Connection, version: i64) -> std::result::Result<Option<String>, Fault> {
    let mut ours = Connection::open_in_memory()?;
    migrations::migrate_to(&mut ours, version)?;
    let (expected, found) = (parts(&ours)?, parts(connection)?);
    let difference = expected.symmetric_difference(&found).next();
    Ok(difference
        .map(|(kind, name)| format!("the {kind} `{name}` is not as in version {version} of skep's schema")))
}

fn parts(connection: &Connection) -> std::result::Result<BTreeSet<(String, String)>, Fault> {
    // Tables of SQLite itself, such as statistics, are not part of the schema.
    let sql = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn dangling(connection: &Connection) -> std::result::Result<Option<String>, Fault> {
    let mut statement = connection.prepare("PRAGMA foreign_key_check")?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (table, parent): (String, String) = (row.get(0)?, row.get(2)?);
    Ok(Some(format!("a row of `{table}` refers to a missing row of `{parent}`")))
}
