//! How values stand in columns, and how rows are read.

use std::{cell::Cell, error::Error as StdError, fmt::Display, str::FromStr};

use jiff::Timestamp;
use rusqlite::{Connection, Params, Row, Statement, types::FromSql};
use serde::{Serialize, de::DeserializeOwned};
use skep_api::budget::Budget;

use super::fault::Fault;
use crate::Cause;

/// The row that a query finds, if any. More than one is the query's fault.
pub(super) fn one<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    decode: impl FnMut(&Columns<'_>) -> Result<T, Fault>,
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
    mut decode: impl FnMut(&Columns<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    connection.prepare_cached(sql)?.query_and_then(params, |row| decode(&Columns::of(row)))?.collect()
}

/// The first rows of a query, as many as a page has and as may be answered together, and whether there are more. The query asks
/// for one row more than the page has.
pub(super) fn page<T: Serialize>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    limit: u32,
    mut budget: Budget,
    mut decode: impl FnMut(&Columns<'_>) -> Result<T, Fault>,
) -> Result<(Vec<T>, bool), Fault> {
    let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut page = Vec::new();
    while let Some(row) = rows.next()? {
        let element = decode(&Columns::of(row))?;
        if page.len() == limit || (!budget.takes(&element) && !page.is_empty()) {
            return Ok((page, true));
        }
        page.push(element);
    }
    Ok((page, false))
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

/// The columns of a row, read as what they mean. Whoever reads them in their order finds each at once.
pub(super) struct Columns<'row> {
    row: &'row Row<'row>,
    /// Behind the one that was read last.
    next: Cell<usize>,
}

impl<'row> Columns<'row> {
    /// The columns of this row.
    pub(super) fn of(row: &'row Row<'row>) -> Self {
        Self { row, next: Cell::new(0) }
    }

    /// A value as SQLite has it.
    pub(super) fn plain<T: FromSql>(&self, column: &str) -> Result<T, Fault> {
        Ok(self.row.get(self.place(column)?)?)
    }

    /// How long a text is, which is not read for that.
    pub(super) fn bytes(&self, column: &str) -> Result<usize, Fault> {
        let text = self.row.get_ref(self.place(column)?)?.as_bytes();
        Ok(text.map_err(|error| broken(column, error))?.len())
    }

    fn place(&self, column: &str) -> Result<usize, Fault> {
        let statement: &Statement<'_> = self.row.as_ref();
        let (count, next) = (statement.column_count(), self.next.get());
        let found = (next..count)
            .chain(0..next.min(count))
            .find(|place| statement.column_name(*place).is_ok_and(|name| name == column));
        let place = found.ok_or_else(|| broken(column, "there is none"))?;
        self.next.set(place + 1);
        Ok(place)
    }

    /// A time.
    pub(super) fn time(&self, column: &str) -> Result<Timestamp, Fault> {
        to_time(column, self.plain(column)?)
    }

    /// A time, or none.
    pub(super) fn maybe_time(&self, column: &str) -> Result<Option<Timestamp>, Fault> {
        self.plain::<Option<i64>>(column)?.map(|value| to_time(column, value)).transpose()
    }

    /// An id or a word.
    pub(super) fn word<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, Fault> {
        self.plain::<String>(column)?.parse().map_err(|error| broken(column, error))
    }

    /// An id or a word, or none.
    pub(super) fn maybe_word<T: FromStr<Err: Display>>(&self, column: &str) -> Result<Option<T>, Fault> {
        let text = self.plain::<Option<String>>(column)?;
        text.map(|text| text.parse().map_err(|error| broken(column, error))).transpose()
    }

    /// A list or an object.
    pub(super) fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, Fault> {
        let text = self.plain::<String>(column)?;
        serde_json::from_str(&text).map_err(|error| broken(column, error))
    }

    /// A number without a sign.
    pub(super) fn number<T: TryFrom<i64, Error: StdError>>(&self, column: &str) -> Result<T, Fault> {
        self.plain::<i64>(column)?.try_into().map_err(|error| broken(column, error))
    }

    /// A number without a sign, or none.
    pub(super) fn maybe_number<T: TryFrom<i64, Error: StdError>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, Fault> {
        let value = self.plain::<Option<i64>>(column)?;
        value.map(|value| value.try_into().map_err(|error| broken(column, error))).transpose()
    }
}

/// A column that cannot be read as what it means.
pub(super) fn broken(column: &str, why: impl Display) -> Fault {
    Fault::Broken(Cause::text(format!("column `{column}`: {why}")))
}

fn to_time(column: &str, value: i64) -> Result<Timestamp, Fault> {
    Timestamp::from_millisecond(value).map_err(|error| broken(column, error))
}
