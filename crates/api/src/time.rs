//! Times in JSON: RFC 3339 in UTC, always with milliseconds.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes a time with exactly three decimal places.
pub(crate) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{time:.3}"))
}

/// Reads a time of any precision.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    Timestamp::deserialize(from)
}

/// The same for times that may be null.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, Serializer, Timestamp};

    pub(crate) fn serialize<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        Option::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_whole_second_has_milliseconds_too() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Times {
            #[serde(with = "super")]
            at: jiff::Timestamp,
            #[serde(with = "super::option", default)]
            end: Option<jiff::Timestamp>,
        }
        let times: Times = serde_json::from_str(r#"{"at": "2026-05-01T12:00:00Z"}"#).unwrap();
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(text, r#"{"at":"2026-05-01T12:00:00.000Z","end":null}"#);
        let times = Times { end: Some("2026-05-01T12:00:00.1239Z".parse().unwrap()), ..times };
        assert!(serde_json::to_string(&times).unwrap().contains(r#""end":"2026-05-01T12:00:00.123Z""#));
    }
}
