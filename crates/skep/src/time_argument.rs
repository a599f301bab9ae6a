//! Times on the command line: a time, a date, or a duration relative to now.

use jiff::{Span, Timestamp, civil::Date, tz::TimeZone};

/// A time as given on the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TimeArgument {
    /// A time, or midnight UTC of a date.
    At(Timestamp),
    /// A duration, such as `30d`.
    Span(Span),
}

impl TimeArgument {
    /// Parses a time, a date or a duration.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a time; give a duration such as 30d or 12h, a date such as 2027-01-31, or a time such as \
                 2027-01-31T12:00:00Z"
            )
        };
        if let Ok(time) = text.parse::<Timestamp>() {
            return Ok(Self::At(time));
        }
        // Without the length check, jiff would accept the date of an incomplete time.
        if text.len() == "2027-01-31".len()
            && let Ok(date) = text.parse::<Date>()
        {
            let day = date.to_zoned(TimeZone::UTC).map_err(|_| wrong())?;
            return Ok(Self::At(day.timestamp()));
        }
        text.parse().map(Self::Span).map_err(|_| wrong())
    }

    /// The time, with a duration counted from `now` into the future.
    pub(crate) fn after(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::At(time) => Some(time),
            Self::Span(span) => Some(now.to_zoned(TimeZone::UTC).checked_add(span).ok()?.timestamp()),
        }
    }

    /// The time, with a duration counted from `now` into the past.
    pub(crate) fn before(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::At(time) => Some(time),
            Self::Span(span) => Some(now.to_zoned(TimeZone::UTC).checked_sub(span).ok()?.timestamp()),
        }
    }
}

/// Parses a time in the past; a future time is an error.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    past_from(text, Timestamp::now())
}

fn past_from(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let time = TimeArgument::parse(text)?.before(now);
    time.filter(|time| *time <= now).ok_or_else(|| format!("`{text}` is not a time in the past"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_the_past_are_read() {
        let now: Timestamp = "2027-01-31T10:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("90s", "2027-01-31T09:58:30Z"),
            ("2h", "2027-01-31T08:00:00Z"),
            ("30d", "2027-01-01T10:00:00Z"),
            ("0s", "2027-01-31T10:00:00Z"),
            ("2027-01-31", "2027-01-31T00:00:00Z"),
            ("2027-01-31T12:00:00+02:30", "2027-01-31T09:30:00Z"),
        ] {
            assert_eq!(past_from(text, now), Ok(expected.parse().unwrap()), "{text}");
        }
        for wrong in ["", "soon", "30", "-1d", "2027-02-31", "2027-02-01", "2027-01-31T12:00:00", "99999y"] {
            past_from(wrong, now).unwrap_err();
        }
    }
}
