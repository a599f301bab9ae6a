//! Structs whose fields are the columns of a table. A column is named once, where its struct is listed; its type determines
//! how it is bound and read.

use std::{fmt::Write, net::IpAddr};

use jiff::Timestamp;
use rusqlite::types::{ToSqlOutput, Value as SqlValue};
use serde_json::{Map, Value};
use skep_api::{
    AccountId, Label, TemplateId, TicketId, VmId, VmName,
    egress::EgressPolicy,
    swarm::{BootReceipt, OnIdle},
    tickets::TicketStatus,
};

use super::{
    columns::{Columns, millis, signed, to_json},
    error::SqliteError,
};

/// A value of a column.
pub(super) trait ColumnValue: Sized {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError>;
    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError>;
}

/// A struct whose fields are columns. Implemented by [`column_set!`].
pub(super) trait ColumnSet: Sized {
    fn columns() -> Vec<&'static str>;
    /// The values in the order of the columns.
    fn bind(&self) -> Result<Vec<ToSqlOutput<'_>>, SqliteError>;
    fn read(row: &Columns<'_>) -> Result<Self, SqliteError>;
}

/// Implements [`ColumnSet`] for a struct whose fields have the names of the columns: either for one that it defines, or for
/// an existing one, whose fields are listed. The last field may be a set of columns itself.
macro_rules! column_set {
    ($(#[$attribute:meta])* struct $name:ident { $($field:ident: $type:ty,)+ }) => {
        $(#[$attribute])*
        pub(super) struct $name {
            $(pub(super) $field: $type,)+
        }

        $crate::sqlite::table::column_set!($name: $($field),+);
    };
    ($name:ty: $($field:ident),+ $(; $inner:ident: $set:ty)?) => {
        impl $crate::sqlite::table::ColumnSet for $name {
            fn columns() -> Vec<&'static str> {
                [vec![$(stringify!($field)),+], $(<$set>::columns(),)?].concat()
            }

            fn bind(
                &self,
            ) -> Result<Vec<rusqlite::types::ToSqlOutput<'_>>, $crate::sqlite::error::SqliteError> {
                let sets = [
                    vec![$($crate::sqlite::table::ColumnValue::bind(&self.$field)?),+],
                    $(self.$inner.bind()?,)?
                ];
                Ok(sets.into_iter().flatten().collect())
            }

            fn read(row: &$crate::sqlite::columns::Columns<'_>) -> Result<Self, $crate::sqlite::error::SqliteError> {
                Ok(Self {
                    $($field: $crate::sqlite::table::ColumnValue::read(row, stringify!($field))?,)+
                    $($inner: <$set>::read(row)?,)?
                })
            }
        }
    };
}
pub(super) use column_set;

/// `INSERT` of all columns, with a parameter for each.
pub(super) fn insert_sql(table: &str, columns: &[Vec<&str>]) -> String {
    let names = columns.concat();
    let marks = vec!["?"; names.len()].join(", ");
    format!("INSERT INTO {table} ({}) VALUES ({marks})", names.join(", "))
}

/// `SELECT` of all columns, without a condition.
pub(super) fn select_sql(table: &str, columns: &[Vec<&str>]) -> String {
    format!("SELECT {} FROM {table}", columns.concat().join(", "))
}

/// `UPDATE` of all columns, with a parameter for each, without a condition.
pub(super) fn update_sql(table: &str, columns: &[Vec<&str>]) -> String {
    let mut sql = format!("UPDATE {table} SET ");
    for (place, name) in columns.concat().iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(sql, "{comma}{name} = ?");
    }
    sql
}

impl<T: ColumnValue> ColumnValue for Option<T> {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        self.as_ref().map_or(Ok(ToSqlOutput::Owned(SqlValue::Null)), T::bind)
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        if row.is_null(column)? { Ok(None) } else { T::read(row, column).map(Some) }
    }
}

impl ColumnValue for String {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(self.as_str()))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        row.get(column)
    }
}

impl ColumnValue for bool {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(*self))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        row.get(column)
    }
}

impl ColumnValue for u32 {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(*self))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        row.number(column)
    }
}

impl ColumnValue for u64 {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(signed(*self)?))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        row.number(column)
    }
}

impl ColumnValue for Timestamp {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(millis(*self)))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        row.time(column)
    }
}

/// No labels are null.
impl ColumnValue for Vec<Label> {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        if self.is_empty() { Ok(ToSqlOutput::Owned(SqlValue::Null)) } else { Ok(to_json(self)?.into()) }
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        if row.is_null(column)? { Ok(Vec::new()) } else { row.json(column) }
    }
}

macro_rules! text_columns {
    ($($type:ty),+ $(,)?) => {
        $(impl ColumnValue for $type {
            fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
                Ok(ToSqlOutput::from(self.to_string()))
            }

            fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
                row.parse(column)
            }
        })+
    };
}

text_columns!(AccountId, TemplateId, TicketId, VmId, VmName, TicketStatus, IpAddr);

impl ColumnValue for OnIdle {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(self.as_str()))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        row.word(column)
    }
}

macro_rules! json_columns {
    ($($type:ty),+ $(,)?) => {
        $(impl ColumnValue for $type {
            fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
                Ok(ToSqlOutput::from(to_json(self)?))
            }

            fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
                row.json(column)
            }
        })+
    };
}

json_columns!(Map<String, Value>, BootReceipt, EgressPolicy);
