//! Parses expiry times of keys: a time, a date, or a duration from now.

use jiff::Timestamp;

use crate::time_argument::TimeArgument;

/// An expiry time; `None` for a key that does not expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry(pub(super) Option<Timestamp>);

/// Parses the value of `--expires-at` of `rotate`, which may be `never`.
pub(super) fn expiry_or_never(text: &str) -> Result<Expiry, String> {
    if text == "never" { Ok(Expiry(None)) } else { Ok(Expiry(Some(expiry(text)?))) }
}

/// Parses the value of `--expires-at`. A date means midnight UTC at its beginning.
pub(super) fn expiry(text: &str) -> Result<Timestamp, String> {
    expiry_from(text, Timestamp::now())
}

fn expiry_from(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    match TimeArgument::parse(text)? {
        TimeArgument::At(time) => Ok(time),
        span => {
            let end = span.after(now).filter(|end| *end > now);
            end.ok_or_else(|| format!("`{text}` is not a duration in the future"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_dates_and_times_are_read() {
        let now: Timestamp = "2026-12-31T10:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("30d", "2027-01-30T10:00:00Z"),
            ("12h", "2026-12-31T22:00:00Z"),
            ("2w", "2027-01-14T10:00:00Z"),
            ("2027-01-31", "2027-01-31T00:00:00Z"),
            ("2027-01-31T12:00:00+02:00", "2027-01-31T10:00:00Z"),
        ] {
            assert_eq!(expiry_from(text, now), Ok(expected.parse().unwrap()), "{text}");
        }
        for wrong in ["", "soon", "30", "-1d", "0d", "2027-02-31", "2027-01-31T12:00:00"] {
            expiry_from(wrong, now).unwrap_err();
        }
        assert_eq!(expiry_or_never("never"), Ok(Expiry(None)));
    }
}
