//! Labels of tickets.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The maximum length of a label, in characters.
const MAX_CHARACTERS: usize = 63;

/// A label of a ticket, by which lists and claims select tickets: 1 to 63 lower-case letters, digits, `.`, `_`, `/`
/// and `-`. The first character is a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(
    feature = "openapi",
    schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._/-]{0,62}$", example = "plan/port")
)]
pub struct Label(String);

/// A text that is not a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a label; a label has 1 to 63 characters: lower-case letters, digits, `.`, `_`, `/` and `-`, beginning with \
     a letter or a digit"
)]
pub struct InvalidLabel(String);

impl Label {
    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Label {
    type Error = InvalidLabel;

    fn try_from(text: String) -> Result<Self, InvalidLabel> {
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = match text.as_bytes() {
            [first, rest @ ..] => {
                is_alphanumeric(*first)
                    && rest.len() < MAX_CHARACTERS
                    && rest.iter().all(|byte| is_alphanumeric(*byte) || b"._/-".contains(byte))
            }
            [] => false,
        };
        if fits {
            return Ok(Self(text));
        }
        // The message quotes only the beginning of a long text.
        Err(InvalidLabel(text.chars().take(2 * MAX_CHARACTERS).collect()))
    }
}

impl FromStr for Label {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        text.to_owned().try_into()
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_short_plain_word() {
        let longest = "a".repeat(MAX_CHARACTERS);
        for text in ["a", "0", "plan/port", "a.b_c-d/e", "9-", longest.as_str()] {
            assert_eq!(text.parse::<Label>().unwrap().as_str(), text);
        }
        let too_long = "a".repeat(MAX_CHARACTERS + 1);
        for text in ["", "A", "-a", ".a", "/a", "_a", "a b", "a,b", "ä", "a\n", too_long.as_str()] {
            assert!(text.parse::<Label>().is_err(), "{text:?}");
            assert!(serde_json::from_value::<Label>(text.into()).is_err(), "{text:?}");
        }
    }
}
