//! Paths in a workspace, which are bytes as for the kernel, and their encoding as text.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ErrorCode, Failure};

/// The longest path that the kernel accepts, in bytes without the terminating zero (`PATH_MAX` in limits.h).
pub const MAX_PATH_BYTES: usize = 4_095;

/// The encoding of a path or a file name in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PathEncoding {
    /// Plain UTF-8, without escapes.
    #[default]
    Plain,
    /// Percent-encoded: each byte that is not part of valid UTF-8, and each `%`, is `%` and two hexadecimal digits.
    Percent,
}

/// An absolute path, such as `/srv/workspace/src/main.rs`. It is serialized percent-encoded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(PathBuf);

impl AbsolutePath {
    /// Parses a path. `field` is the name of the parameter for error messages.
    ///
    /// # Errors
    /// `invalid_value` if the path is empty, not absolute, longer than [`MAX_PATH_BYTES`], or contains a zero byte.
    pub fn parse(field: &str, text: &str, encoding: PathEncoding) -> Result<Self, Failure> {
        let bytes = decode(field, text, encoding)?;
        if bytes.first() != Some(&b'/') {
            let why = format!("`{field}` is `{text}`, which is not absolute; begin it with `/`");
            return Err(Failure::new(ErrorCode::InvalidValue, why));
        }
        check_path_bytes(field, &bytes)?;
        Ok(Self(OsStr::from_bytes(&bytes).into()))
    }

    /// The path, which is absolute.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for AbsolutePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl fmt::Debug for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for AbsolutePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&percent_encoded(self.0.as_os_str()))
    }
}

impl<'de> Deserialize<'de> for AbsolutePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse("path", &text, PathEncoding::Percent).map_err(|failure| without_field("path", &failure))
    }
}

/// The target of a symbolic link: any relative or absolute path. It is serialized percent-encoded.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkTarget(OsString);

impl LinkTarget {
    /// Parses a target. `field` is the name of the parameter for error messages.
    ///
    /// # Errors
    /// `invalid_value` if the target is empty, longer than [`MAX_PATH_BYTES`], or contains a zero byte.
    pub fn parse(field: &str, text: &str, encoding: PathEncoding) -> Result<Self, Failure> {
        let bytes = decode(field, text, encoding)?;
        if bytes.is_empty() {
            let why = format!("`{field}` is empty; give the path that the link shall lead to");
            return Err(Failure::new(ErrorCode::InvalidValue, why));
        }
        check_path_bytes(field, &bytes)?;
        Ok(Self(OsString::from_vec(bytes)))
    }

    /// The target as it is stored in the link.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }
}

impl fmt::Debug for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for LinkTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&percent_encoded(&self.0))
    }
}

impl<'de> Deserialize<'de> for LinkTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse("target", &text, PathEncoding::Percent)
            .map_err(|failure| without_field("target", &failure))
    }
}

/// The error of a deserializer, which adds the name of the field itself.
fn without_field<E: serde::de::Error>(field: &str, failure: &Failure) -> E {
    E::custom(failure.message.trim_start_matches(&format!("`{field}` ")))
}

fn decode(field: &str, text: &str, encoding: PathEncoding) -> Result<Vec<u8>, Failure> {
    match encoding {
        PathEncoding::Plain => Ok(text.as_bytes().to_vec()),
        PathEncoding::Percent => decoded(text).ok_or_else(|| {
            let why = "is not percent-encoded: a `%` is followed by two hexadecimal digits, and stands for itself as `%25`";
            Failure::new(ErrorCode::InvalidValue, format!("`{field}` {why}"))
        }),
    }
}

/// Rejects bytes that the kernel does not accept as a path.
fn check_path_bytes(field: &str, bytes: &[u8]) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::new(ErrorCode::InvalidValue, format!("`{field}` {why}")));
    if bytes.contains(&0) {
        return refused("holds a zero byte, which no path does".to_owned());
    }
    if bytes.len() > MAX_PATH_BYTES {
        return refused(format!("has {} bytes; a path has at most {MAX_PATH_BYTES}", bytes.len()));
    }
    Ok(())
}

/// Encodes a path or a file name for JSON: plain if it is valid UTF-8, otherwise percent-encoded, with the encoding.
pub fn encode_path(text: &OsStr) -> (String, Option<PathEncoding>) {
    match text.to_str() {
        Some(text) => (text.to_owned(), None),
        None => (percent_encoded(text), Some(PathEncoding::Percent)),
    }
}

/// Percent-encodes a path, also if it is valid UTF-8.
pub fn percent_encoded(text: &OsStr) -> String {
    let mut encoded = String::with_capacity(text.len());
    for chunk in text.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' { encoded.push_str("%25") } else { encoded.push(character) }
        }
        for byte in chunk.invalid() {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Decodes a percent-encoded path that is valid UTF-8; `None` for others.
pub fn plain_path(encoded: &str) -> Option<String> {
    String::from_utf8(decoded(encoded)?).ok()
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(bytes.next())? << 4 | digit(bytes.next())?,
            other => other,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<AbsolutePath, String> {
        AbsolutePath::parse("path", text, PathEncoding::Plain).map_err(|failure| failure.message)
    }

    #[test]
    fn invalid_paths_are_refused_with_the_field_name() {
        for text in ["", "relative", "./here", "~/home", "C:\\", "/zero\0byte"] {
            let message = parse(text).unwrap_err();
            assert!(message.starts_with("`path` "), "{message}");
        }
        assert!(parse(&format!("/{}", "a".repeat(MAX_PATH_BYTES))).is_err());
        assert!(parse(&format!("/{}", "a".repeat(MAX_PATH_BYTES - 1))).is_ok());
        for text in ["/%", "/%2", "/%zz", "/%c"] {
            assert!(AbsolutePath::parse("path", text, PathEncoding::Percent).is_err(), "{text}");
        }
    }

    #[test]
    fn a_percent_sign_stands_for_itself_where_nothing_is_encoded() {
        assert_eq!(parse("/50%25").unwrap().as_path(), Path::new("/50%25"));
        let encoded = AbsolutePath::parse("path", "/50%25", PathEncoding::Percent).unwrap();
        assert_eq!(encoded.as_path(), Path::new("/50%"));
    }

    proptest! {
        #[test]
        fn every_path_comes_back(bytes in prop::collection::vec(1u8..=255, 0..80)) {
            let path = AbsolutePath(Path::new("/").join(OsStr::from_bytes(&bytes)));
            prop_assume!(path.0.is_absolute());
            let json = serde_json::to_string(&path).unwrap();
            prop_assert_eq!(&serde_json::from_str::<AbsolutePath>(&json).unwrap(), &path);
            let (text, encoding) = encode_path(path.0.as_os_str());
            prop_assert_eq!(AbsolutePath::parse("path", &text, encoding.unwrap_or_default()).unwrap(), path);
        }
    }
}
