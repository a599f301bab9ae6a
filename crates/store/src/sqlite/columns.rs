//! Encoding of values in columns, and helpers to run queries and read rows.

use std::{cell::Cell, error::Error as StdError, fmt::Display, str::FromStr};

use jiff::Timestamp;
use rusqlite::{
    Connection, Params, Row, Statement,
    types::{FromSql, ValueRef},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use skep_api::budget::Budget;

use super::error::SqliteError;
use crate::Cause;

/// Returns the row of a query, if any. More than one row is an internal error.
pub(super) fn query_optional<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    decode: impl FnMut(&Columns<'_>) -> Result<T, SqliteError>,
) -> Result<Option<T>, SqliteError> {
    let mut rows = query_all(connection, sql, params, decode)?;
    let row = rows.pop();
    if rows.is_empty() { Ok(row) } else { Err(invalid_column("row", "the query returned more than one")) }
}

/// Returns all rows of a query.
pub(super) fn query_all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    mut decode: impl FnMut(&Columns<'_>) -> Result<T, SqliteError>,
) -> Result<Vec<T>, SqliteError> {
    connection.prepare_cached(sql)?.query_and_then(params, |row| decode(&Columns::of(row)))?.collect()
}

/// Returns the first rows of a query, at most `limit` of them and only as many as fit the budget, and whether there are
/// more. The query must select `limit + 1` rows.
pub(super) fn page<T: Serialize>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    limit: u32,
    mut budget: Budget,
    mut decode: impl FnMut(&Columns<'_>) -> Result<T, SqliteError>,
) -> Result<(Vec<T>, bool), SqliteError> {
    let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut page = Vec::new();
    while let Some(row) = rows.next()? {
        let element = decode(&Columns::of(row))?;
        if page.len() == limit || (!budget.try_add(&element) && !page.is_empty()) {
            return Ok((page, true));
        }
        page.push(element);
    }
    Ok((page, false))
}

/// The id before which a page ends, in descending order: that of the cursor, or a text that sorts after every id.
pub(super) fn page_end(cursor: Option<impl ToString>) -> String {
    cursor.map_or_else(|| "~".to_owned(), |id| id.to_string())
}

/// Executes a statement and returns the number of changed rows.
pub(super) fn execute(connection: &Connection, sql: &str, params: impl Params) -> Result<usize, SqliteError> {
    Ok(connection.prepare_cached(sql)?.execute(params)?)
}

/// Encodes a time as milliseconds since 1970.
pub(super) fn millis(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// Encodes a list or an object as JSON.
pub(super) fn to_json(value: &impl Serialize) -> Result<String, SqliteError> {
    serde_json::to_string(value).map_err(|error| SqliteError::Internal(Cause::from_error(&error)))
}

/// Encodes an unsigned number.
pub(super) fn signed(value: u64) -> Result<i64, SqliteError> {
    i64::try_from(value).map_err(|error| invalid_column("number", error))
}

/// Typed access to the columns of a row by name. Reading the columns in their order avoids a search.
pub(super) struct Columns<'row> {
    row: &'row Row<'row>,
    /// Index after the last column that was read, where the next search starts.
    next: Cell<usize>,
}

impl<'row> Columns<'row> {
    pub(super) fn of(row: &'row Row<'row>) -> Self {
        Self { row, next: Cell::new(0) }
    }

    /// A value in the type that rusqlite converts it to.
    pub(super) fn get<T: FromSql>(&self, column: &str) -> Result<T, SqliteError> {
        Ok(self.row.get(self.index_of(column)?)?)
    }

    /// Whether the value is null. A following read of the column needs no search.
    pub(super) fn is_null(&self, column: &str) -> Result<bool, SqliteError> {
        let place = self.index_of(column)?;
        self.next.set(place);
        Ok(self.row.get_ref(place)? == ValueRef::Null)
    }

    /// Length of a text in bytes, without copying it.
    pub(super) fn bytes(&self, column: &str) -> Result<usize, SqliteError> {
        let text = self.row.get_ref(self.index_of(column)?)?.as_bytes();
        Ok(text.map_err(|error| invalid_column(column, error))?.len())
    }

    fn index_of(&self, column: &str) -> Result<usize, SqliteError> {
        let statement: &Statement<'_> = self.row.as_ref();
        let (count, next) = (statement.column_count(), self.next.get());
        let found = (next..count)
            .chain(0..next.min(count))
            .find(|place| statement.column_name(*place).is_ok_and(|name| name == column));
        let place = found.ok_or_else(|| invalid_column(column, "no such column"))?;
        self.next.set(place + 1);
        Ok(place)
    }

    pub(super) fn time(&self, column: &str) -> Result<Timestamp, SqliteError> {
        to_time(column, self.get(column)?)
    }

    pub(super) fn optional_time(&self, column: &str) -> Result<Option<Timestamp>, SqliteError> {
        self.get::<Option<i64>>(column)?.map(|value| to_time(column, value)).transpose()
    }

    /// A text that is parsed, such as an id.
    pub(super) fn parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, SqliteError> {
        self.get::<String>(column)?.parse().map_err(|error| invalid_column(column, error))
    }

    /// A text that is parsed, or `None` for null.
    pub(super) fn parse_optional<T: FromStr<Err: Display>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, SqliteError> {
        let text = self.get::<Option<String>>(column)?;
        text.map(|text| text.parse().map_err(|error| invalid_column(column, error))).transpose()
    }

    /// A value encoded as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, SqliteError> {
        let text = self.get::<String>(column)?;
        serde_json::from_str(&text).map_err(|error| invalid_column(column, error))
    }

    /// A text that is one of the words of an enum.
    pub(super) fn word<T: DeserializeOwned>(&self, column: &str) -> Result<T, SqliteError> {
        let word = Value::String(self.get(column)?);
        serde_json::from_value(word).map_err(|error| invalid_column(column, error))
    }

    /// A value encoded as JSON, or `None` for null.
    pub(super) fn optional_json<T: DeserializeOwned>(&self, column: &str) -> Result<Option<T>, SqliteError> {
        let text = self.get::<Option<String>>(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|error| invalid_column(column, error)))
            .transpose()
    }

    /// An unsigned number.
    pub(super) fn number<T: TryFrom<i64, Error: StdError>>(&self, column: &str) -> Result<T, SqliteError> {
        self.get::<i64>(column)?.try_into().map_err(|error| invalid_column(column, error))
    }

    /// An unsigned number, or `None` for null.
    pub(super) fn optional_number<T: TryFrom<i64, Error: StdError>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, SqliteError> {
        let value = self.get::<Option<i64>>(column)?;
        value.map(|value| value.try_into().map_err(|error| invalid_column(column, error))).transpose()
    }
}

/// The error for a column with an invalid value.
pub(super) fn invalid_column(column: &str, why: impl Display) -> SqliteError {
    SqliteError::Internal(Cause::new(format!("column `{column}`: {why}")))
}

fn to_time(column: &str, value: i64) -> Result<Timestamp, SqliteError> {
    Timestamp::from_millisecond(value).map_err(|error| invalid_column(column, error))
}
