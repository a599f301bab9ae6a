//! The page of a list.

use std::{fmt::Display, marker::PhantomData, str::FromStr};

use serde::Deserialize;
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
