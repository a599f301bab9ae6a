//! A field of a change: absent, null and a value are three things. With `#[serde(default, with = "crate::patch")]` absent
//! is `None`, and null is `Some(None)`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer, T: Serialize>(
    field: &Option<Option<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    field.as_ref().and_then(Option::as_ref).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// For a field that cannot be null: absent is `None` by `#[serde(default)]`, and null is refused.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
