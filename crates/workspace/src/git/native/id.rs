//! Object ids.

use std::fmt;

/// A SHA-1 hash. Repositories with other hashes are left to git.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectId([u8; 20]);

impl ObjectId {
    /// Parses 40 hexadecimal digits.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }

    pub(super) const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// The zero id, which stands for a missing object.
    pub(super) const fn zero() -> Self {
        Self([0; 20])
    }

    /// Whether this is the id of an empty file.
    pub(super) fn is_empty_blob(&self) -> bool {
        data_encoding::HEXLOWER.encode(&self.0) == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    }

    pub(super) fn bytes(&self) -> &[u8; 20] {
        &self.0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
