//! Files as byte streams: operations with bytes behind the request, or behind the answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    files::{FileWritten, WriteCondition},
    operation::Operation,
    path::{AbsolutePath, PathEncoding},
};

/// Reads a file, or one part of it. Its bytes follow the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFile {
    /// The file.
    pub path: AbsolutePath,
    /// The part; all where `None`.
    pub range: Option<ByteRange>,
    /// The part is only wanted while the file has this tag; else all of it.
    pub if_range: Option<String>,
}

/// A part of a file (RFC 9110, section 14.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ByteRange {
    /// From this byte to the end.
    From(u64),
    /// From the first to the second, both included.
    Between(u64, u64),
    /// As many at the end.
    Last(u64),
}

impl ByteRange {
    /// The first byte and how many there are, in a file of this size. `None` where it has none of them.
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first) => (first, size),
            Self::Between(first, last) => (first, size.min(last.saturating_add(1))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

/// The file whose bytes follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedFile {
    /// Of the whole file.
    pub size_bytes: u64,
    /// When its content last changed.
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
    /// Changes with the file.
    pub etag: String,
    /// Which bytes follow.
    pub part: Part,
}

/// Which bytes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// All.
    Whole,
    /// This many from this one on.
    Range {
        /// The first.
        first: u64,
        /// How many.
        length: u64,
    },
    /// None: the file has none of those that were asked for.
    Unsatisfiable,
}

/// Writes a file, whole. Its bytes follow the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadFile {
    /// The file.
    pub path: AbsolutePath,
    /// Permission bits of a new file, and of a replaced one where it is given.
    pub mode: Option<u32>,
    /// Whether folders that are missing are made.
    pub create_parents: bool,
    /// What has to hold.
    pub condition: WriteCondition,
}

/// Watches a folder and all below it. Each change follows the answer, as a line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchFolder {
    /// The folder.
    pub path: AbsolutePath,
}

/// A folder that is watched from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderWatched {
    /// How many folders that are.
    pub folders: u64,
}

/// What happened below a folder that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChange {
    /// What happened.
    pub r#type: ChangeType,
    /// To what.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How it was called before, where it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/draft.md"))]
    pub from: Option<String>,
    /// How `path` and `from` are written, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
}

/// What happened to a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ChangeType {
    /// It is new.
    Created,
    /// Its content, its mode or its owner is another.
    Modified,
    /// It is gone, or went where nobody watches.
    Deleted,
    /// It has another name.
    Renamed,
    /// Changes came faster than they were read, and some were lost: look at the folder `path` again.
    Overflow,
}

impl Operation for StreamFile {
    const NAME: &'static str = "stream-file";
    type Answer = StreamedFile;
}

impl Operation for UploadFile {
    const NAME: &'static str = "upload-file";
    type Answer = FileWritten;
}

impl Operation for WatchFolder {
    const NAME: &'static str = "watch-folder";
    type Answer = FolderWatched;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_end_where_the_file_does() {
        for (range, size, expected) in [
            (ByteRange::From(0), 10, Some((0, 10))),
            (ByteRange::From(9), 10, Some((9, 1))),
            (ByteRange::From(10), 10, None),
            (ByteRange::Between(2, 4), 10, Some((2, 3))),
            (ByteRange::Between(2, u64::MAX), 10, Some((2, 8))),
            (ByteRange::Between(4, 2), 10, None),
            (ByteRange::Last(3), 10, Some((7, 3))),
            (ByteRange::Last(30), 10, Some((0, 10))),
            (ByteRange::Last(0), 10, None),
            (ByteRange::From(0), 0, None),
        ] {
            assert_eq!(range.within(size), expected, "{range:?} of {size}");
        }
    }

    proptest! {
        #[test]
        fn no_part_lies_outside(a in any::<u64>(), b in any::<u64>(), size in any::<u64>()) {
            for range in [ByteRange::From(a), ByteRange::Between(a, b), ByteRange::Last(a)] {
                if let Some((first, length)) = range.within(size) {
                    prop_assert!(length > 0 && first.checked_add(length).unwrap() <= size);
                }
            }
        }
    }
}
