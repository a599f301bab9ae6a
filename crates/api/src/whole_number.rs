//! Deserialization of whole numbers in any JSON notation: `7`, `7.0` and `70e-1` are the same number.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

/// 2^53: up to here, a float represents every whole number exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Number)
    }
}

struct Number;

impl Visitor<'_> for Number {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
        Ok(Whole(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
        u64::try_from(number).map(Whole).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
        if number.fract() != 0.0 || !(0.0..EXACT).contains(&number) {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        Ok(Whole(number as u64))
    }
}

/// Deserializes a number that must be present.
pub(crate) fn required<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    convert(Whole::deserialize(from)?)
}

/// Deserializes a number that may be absent or null.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<Option<T>, D::Error> {
    Option::<Whole>::deserialize(from)?.map(convert).transpose()
}

/// Deserializes a number that may be absent, but not null.
pub(crate) fn present<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<Option<T>, D::Error> {
    crate::patch::not_null(optional(from)?)
}

/// Deserializes a number in a change request, where absent and null differ; see [`crate::patch`].
pub(crate) fn patch<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    optional(from).map(Some)
}

fn convert<T: TryFrom<u64>, E: Error>(Whole(number): Whole) -> Result<T, E> {
    T::try_from(number).map_err(|_| E::custom(format!("{number} is too large")))
}

#[cfg(test)]
mod tests {
    use crate::{
        accounts::{ChangeAccount, CreateAccount},
        exec::VmField,
    };

    #[test]
    fn one_number_has_many_spellings() {
        for text in ["42", "42.0", "4.2e1", "420e-1"] {
            assert_eq!(serde_json::from_str::<VmField>(text).unwrap(), VmField::Pid(42), "{text}");
            let body = format!("{{\"max_vms\": {text}, \"max_memory_mb\": {text}}}");
            let change: ChangeAccount = serde_json::from_str(&body).unwrap();
            assert_eq!((change.max_vms, change.max_memory_mb), (Some(Some(42)), Some(Some(42))), "{text}");
            let body = format!("{{\"name\": \"acme\", \"max_vms\": {text}, \"max_memory_mb\": {text}}}");
            let made: CreateAccount = serde_json::from_str(&body).unwrap();
            assert_eq!((made.max_vms, made.max_memory_mb), (Some(42), Some(42)), "{text}");
        }
        for wrong in ["1.5", "-1", "-1.0", "1e300", "true", "[]", "4294967296", "\"7\""] {
            let body = format!("{{\"max_vms\": {wrong}}}");
            assert!(serde_json::from_str::<ChangeAccount>(&body).is_err(), "{wrong}");
        }
        for wrong in ["1.5", "-1", "1e300", "null", "true"] {
            assert!(serde_json::from_str::<VmField>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(serde_json::from_str::<VmField>("\"7\"").unwrap(), VmField::Text("7".to_owned()));
    }
}
