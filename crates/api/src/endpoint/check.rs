//! Checks of fields that their types do not express.

use crate::{ErrorCode, Failure};

/// The largest offset of a byte in a file or an output. Linux, and the format `int64` of the OpenAPI document, allow no
/// larger one.
pub const MAX_BYTE_OFFSET: u64 = i64::MAX.cast_unsigned();

/// Checks that a number is within a range.
///
/// # Errors
/// `invalid_value`, which names the field, the number and the range.
pub fn check_range<N: PartialOrd + std::fmt::Display>(
    field: &str,
    number: N,
    range: std::ops::RangeInclusive<N>,
) -> Result<(), Failure> {
    if range.contains(&number) {
        return Ok(());
    }
    let (first, last) = (range.start(), range.end());
    invalid(format!("`{field}` is {number}; it must be a whole number from {first} to {last}"))
}

/// Checks that a text has no zero byte, so that it can be an argument of a program.
pub(crate) fn check_argument(field: &str, text: &str) -> Result<(), Failure> {
    if text.contains('\0') {
        return invalid(format!("`{field}` contains a zero byte; leave it out"));
    }
    Ok(())
}

pub(crate) fn invalid(message: impl Into<String>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::InvalidValue, message))
}
