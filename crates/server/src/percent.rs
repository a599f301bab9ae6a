//! Percent-encoding of paths.

/// Decodes `%xx`. An incomplete or invalid escape stays as it is.
pub(crate) fn percent_decoded(path: &str) -> Result<String, std::string::FromUtf8Error> {
    let digit = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            #[expect(clippy::cast_possible_truncation, reason = "two hex digits are one byte")]
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_utf8_is_refused() {
        assert_eq!(percent_decoded("/a%20%C3%A9").as_deref(), Ok("/a é"));
        assert_eq!(percent_decoded("/100%").as_deref(), Ok("/100%"));
        assert!(percent_decoded("/%ff").is_err());
    }
}
