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

/// Faults of a damaged database that are told; the first ones tell enough.
const MOST_PROBLEMS: u32 = 5;
/// The version since which there are tickets.
const TICKETS: i64 = 5;
/// The version since which tickets have labels.
const TICKET_LABELS: i64 = 13;
/// The version since which tickets are counted by state.
const TICKET_COUNTS: i64 = 14;

/// What a look at a database found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Its version; 0 has nothing in it yet.
    pub version: i64,
    /// The newest version that this program knows.
    pub known: i64,
    /// What is wrong with it, in words; empty where it is sound.
    pub problems: Vec<String>,
}

/// Looks at the store, whether a server runs or not. Reads all of it, and blocks; to be done as the owner of the file.
///
/// # Errors
/// There is none, or it cannot be read.
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
    /// Refuses what this program could not serve.
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

/// Tables, indexes, views and triggers are those that the migrations make: no other program's, and none that acts by itself.
fn foreign_parts(connection: &Connection, version: i64) -> std::result::Result<Option<String>, Fault> {
    let mut ours = Connection::open_in_memory()?;
    migrations::migrate_to(&mut ours, version)?;
    let (expected, found) = (parts(&ours)?, parts(connection)?);
    let difference = expected.symmetric_difference(&found).next();
    Ok(difference.map(|(kind, name)| {
        format!("the {kind} `{name}` is not as version {version} of skep's store has it")
    }))
}

fn parts(connection: &Connection) -> std::result::Result<BTreeSet<(String, String)>, Fault> {
    // What SQLite's own tools leave, such as statistics, is no part of the store.
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
    Ok(Some(format!("a row of `{table}` belongs to one of `{parent}` that is not there")))
}
