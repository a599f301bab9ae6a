//! Permission bits as octal digits in JSON, such as `"0644"`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{ErrorCode, Failure};

/// The largest mode that can be set: setuid and setgid cannot.
const MAX_MODE: u32 = 0o1777;

/// Parses permission bits.
///
/// # Errors
/// `invalid_value` if the text is not octal digits from 0000 to 1777.
pub fn parse_mode(text: &str) -> Result<u32, Failure> {
    let has_octal_digits = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let is_mode = has_octal_digits && (1..=5).contains(&text.len());
    let mode = if is_mode { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= MAX_MODE).ok_or_else(|| {
        let message = format!(
            "`mode` is `{text}`; give octal digits from 0000 to 1777, such as `0644`: setuid and setgid cannot be given"
        );
        Failure::new(ErrorCode::InvalidValue, message)
    })
}

#[expect(clippy::ref_option, reason = "the signature that serde calls")]
pub(crate) fn serialize<S: Serializer>(mode: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    mode.map(|mode| format!("{mode:04o}")).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    parse_mode(&text)
        .map(Some)
        .map_err(|failure| D::Error::custom(failure.message.trim_start_matches("`mode` ")))
}
