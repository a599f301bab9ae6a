//! Fields of change requests, where absent, null and a value have different meanings. With `#[serde(default, with =
//! "crate::patch")]`, absent is `None` and null is `Some(None)`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

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

/// For a field that cannot be null: absent is `None` through `#[serde(default)]`, and null is an error.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    not_null(Option::deserialize(deserializer)?)
}

pub(crate) fn not_null<T, E: Error>(field: Option<T>) -> Result<Option<T>, E> {
    field.map(Some).ok_or_else(|| E::custom("is null; send a value, or leave it out"))
}

/// A field of a change request, where absent, null and a value have different meanings. Requires the attribute
/// `#[serde(default, skip_serializing_if = "Patch::is_absent")]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// The field is absent: no change.
    #[default]
    Absent,
    /// The field is null: the value is removed.
    Null,
    /// The field has a new value.
    Value(T),
}

impl<T> Patch<T> {
    /// Whether the field is absent.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// The new value; `None` if the field is absent or null.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }

    /// Converts to nested options: `None` is no change, `Some(None)` removes the value.
    pub fn into_nested_option(self) -> Option<Option<T>> {
        match self {
            Self::Absent => None,
            Self::Null => Some(None),
            Self::Value(value) => Some(Some(value)),
        }
    }
}

impl<T: Serialize> Serialize for Patch<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}
