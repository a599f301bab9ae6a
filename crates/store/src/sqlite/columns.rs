//! How values stand in columns, and how rows are read.

use std::{error::Error as StdError, fmt::Display, str::FromStr};

use jiff::Timestamp;
use rusqlite::{Connection, Params, Row, types::FromSql};
use serde::{Serialize, de::DeserializeOwned};

use super::fault::Fault;
use crate::Cause;

/// The row that a query finds, if any. More than one is the query's fault.
pub(super) fn one<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    decode: impl FnMut(&Row<'_>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    let mut rows = all(connection, sql, params, decode)?;
    let row = rows.pop();
    if rows.is_empty() { Ok(row) } else { Err(broken("row", "one was expected, and there are more")) }
}

/// All rows that a query finds.
pub(super) fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    decode: impl FnMut(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    connection.prepare_cached(sql)?.query_and_then(params, decode)?.collect()
}

/// Changes rows, and tells how many.
pub(super) fn change(connection: &Connection, sql: &str, params: impl Params) -> Result<usize, Fault> {
    Ok(connection.prepare_cached(sql)?.execute(params)?)
}

/// A time as it stands in a column: milliseconds since 1970.
pub(super) fn millis(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// A list or an object as it stands in a column.
pub(super) fn json(value: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| Fault::Broken(Cause::of(&error)))
}

/// A number without a sign as it stands in a column.
pub(super) fn signed(value: u64) -> Result<i64, Fault> {
    i64::try_from(value).map_err(|error| broken("number", error))
}

/// Reads columns as what they mean.
pub(super) trait Columns {
    /// A value as SQLite has it.
    fn plain<T: FromSql>(&self, column: &str) -> Result<T, Fault>;

    /// A time.
    fn time(&self, column: &str) -> Result<Timestamp, Fault> {
        to_time(column, self.plain(column)?)
    }

    /// A time, or none.
    fn maybe_time(&self, column: &str) -> Result<Option<Timestamp>, Fault> {
        self.plain::<Option<i64>>(column)?.map(|value| to_time(column, value)).transpose()
    }

    /// An id or a word.
    fn word<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, Fault> {
        self.plain::<String>(column)?.parse().map_err(|error| broken(column, error))
    }

    /// An id or a word, or none.
    fn maybe_word<T: FromStr<Err: Display>>(&self, column: &str) -> Result<Option<T>, Fault> {
        let text = self.plain::<Option<String>>(column)?;
        text.map(|text| text.parse().map_err(|error| broken(column, error))).transpose()
    }

    /// A list or an object.
    fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, Fault> {
        let text = self.plain::<String>(column)?;
        serde_json::from_str(&text).map_err(|error| broken(column, error))
    }

    /// A number without a sign.
    fn number<T: TryFrom<i64, Error: StdError>>(&self, column: &str) -> Result<T, Fault> {
        self.plain::<i64>(column)?.try_into().map_err(|error| broken(column, error))
    }

    /// A number without a sign, or none.
    fn maybe_number<T: TryFrom<i64, Error: StdError>>(&self, column: &str) -> Result<Option<T>, Fault> {
        let value = self.plain::<Option<i64>>(column)?;
        value.map(|value| value.try_into().map_err(|error| broken(column, error))).transpose()
    }
}

impl Columns for Row<'_> {
    fn plain<T: FromSql>(&self, column: &str) -> Result<T, Fault> {
        Ok(self.get(column)?)
    }
}

/// A column that cannot be read as what it means.
pub(super) fn broken(column: &str, why: impl Display) -> Fault {
    Fault::Broken(Cause::text(format!("column `{column}`: {why}")))
}

fn to_time(column: &str, value: i64) -> Result<Timestamp, Fault> {
    Timestamp::from_millisecond(value).map_err(|error| broken(column, error))
}
