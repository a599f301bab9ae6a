//! The page of a list.

use std::{fmt::Display, marker::PhantomData, str::FromStr};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use skep_api::{ErrorCode, Failure};
use utoipa::{IntoParams, ToSchema};

/// Entries on a page where the caller names no number.
const DEFAULT_PAGE: u32 = 100;
/// Entries on a page at most.
const LARGEST_PAGE: u32 = 1_000;

/// Which page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page<I: ToSchema> {
    /// Entries on the page, 1 to 1,000; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(inline, value_type = Option<I>)]
    cursor: Option<String>,
    #[serde(skip)]
    #[param(ignore)]
    of: PhantomData<I>,
}

impl<I: ToSchema + FromStr<Err: Display>> Page<I> {
    /// How many entries, and the id that they come after.
    ///
    /// # Errors
    /// `invalid_value`, naming the parameter.
    pub(crate) fn read(&self) -> Result<(u32, Option<I>), Failure> {
        check(self.limit, self.cursor.as_deref())
    }
}

/// A cursor of a list with filters: the place, after a stamp of the filter.
pub(crate) fn cursor(stamp: &str, place: impl Display) -> String {
    format!("{stamp}.{place}")
}

/// The place in a cursor of a list with filters. One of another filter would skip some entries and repeat others.
///
/// # Errors
/// `invalid_value`.
pub(crate) fn place<'cursor>(cursor: &'cursor str, stamp: &str) -> Result<&'cursor str, Failure> {
    let invalid = |message: &str| Failure::new(ErrorCode::InvalidValue, message);
    let malformed = "`cursor` does not come from `next_cursor`; begin without it, or take it from there";
    let (bound, place) = cursor.split_once('.').ok_or_else(|| invalid(malformed))?;
    let other =
        "`cursor` belongs to another filter; begin without it, or ask with the filter that it came with";
    if bound == stamp { Ok(place) } else { Err(invalid(other)) }
}

/// What stands in a cursor for the filter that it belongs to.
pub(crate) fn stamp(filter: &str) -> String {
    Sha256::digest(filter.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The same for a list that takes more parameters than these.
///
/// # Errors
/// `invalid_value`, naming the parameter.
pub(crate) fn check<I: FromStr<Err: Display>>(
    limit: Option<u32>,
    cursor: Option<&str>,
) -> Result<(u32, Option<I>), Failure> {
    let invalid = |message| Failure::new(ErrorCode::InvalidValue, message);
    let limit = limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        let message = format!("`limit` is {limit}; it must be a whole number from 1 to {LARGEST_PAGE}");
        return Err(invalid(message));
    }
    let after = cursor.map(str::parse::<I>).transpose();
    Ok((limit, after.map_err(|error| invalid(format!("`cursor`: {error}; take it from `next_cursor`")))?))
}
