//! Pagination of lists.

use std::{fmt::Display, marker::PhantomData, str::FromStr};

use data_encoding::HEXLOWER;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use skep_api::{ErrorCode, Failure};
use utoipa::{IntoParams, ToSchema};

/// Entries on a page without `limit`.
const DEFAULT_PAGE: u32 = 100;
const MAX_PAGE: u32 = 1_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page<I: ToSchema> {
    /// Entries on the page, 1 to 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[param(inline, value_type = Option<I>)]
    cursor: Option<String>,
    #[serde(skip)]
    #[param(ignore)]
    of: PhantomData<I>,
}

impl<I: ToSchema + FromStr<Err: Display>> Page<I> {
    /// As [`check`].
    ///
    /// # Errors
    /// `invalid_value`, naming the parameter.
    pub(crate) fn read(&self) -> Result<(u32, Option<I>), Failure> {
        check(self.limit, self.cursor.as_deref())
    }
}

/// The cursor of a filtered list: a hash of the filter, and the position.
pub(crate) fn cursor(filter_hash: &str, place: impl Display) -> String {
    format!("{filter_hash}.{place}")
}

/// The position in the cursor of a filtered list. The cursor of another filter is refused, because it would skip some
/// entries and repeat others.
///
/// # Errors
/// `invalid_value`.
pub(crate) fn position<'cursor>(cursor: &'cursor str, stamp: &str) -> Result<&'cursor str, Failure> {
    let invalid = |message: &str| Failure::new(ErrorCode::InvalidValue, message);
    let malformed = "`cursor` does not come from `next_cursor`; begin without it, or take it from there";
    let (bound, position) = cursor.split_once('.').ok_or_else(|| invalid(malformed))?;
    let other =
        "`cursor` belongs to another filter; begin without it, or ask with the filter that it came with";
    if bound == stamp { Ok(position) } else { Err(invalid(other)) }
}

/// The hash by which a cursor is bound to its filter.
pub(crate) fn filter_hash(filter: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(filter.as_bytes())[..8])
}

/// Checks the parameters of a list. Returns the size of the page, and the id after which it begins.
///
/// # Errors
/// `invalid_value`, naming the parameter.
pub(crate) fn check<I: FromStr<Err: Display>>(
    limit: Option<u32>,
    cursor: Option<&str>,
) -> Result<(u32, Option<I>), Failure> {
    let invalid = |message| Failure::new(ErrorCode::InvalidValue, message);
    let limit = limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        let message = format!("`limit` is {limit}; it must be a whole number from 1 to {MAX_PAGE}");
        return Err(invalid(message));
    }
    let after = cursor.map(str::parse::<I>).transpose();
    Ok((limit, after.map_err(|error| invalid(format!("`cursor`: {error}; take it from `next_cursor`")))?))
}
