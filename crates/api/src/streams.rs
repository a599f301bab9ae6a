//! Operations on files with a stream of bytes after the request or after the answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    files::{FileWritten, WriteCondition},
    operation::Operation,
    path::{AbsolutePath, PathEncoding},
};

/// Reads a file or a range of it. The bytes follow the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFile {
    /// The file to read.
    pub path: AbsolutePath,
    /// The range to read; the whole file if `None`.
    pub range: Option<ByteRange>,
    /// Applies the range only if the file has this entity tag; otherwise the whole file is read.
    pub if_range: Option<String>,
}

/// A byte range of a file (RFC 9110, section 14.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ByteRange {
    /// From this offset to the end.
    From(u64),
    /// From the first to the second offset, both inclusive.
    Between(u64, u64),
    /// The last bytes of the file, as many as given.
    Last(u64),
}

impl ByteRange {
    /// The offset and the length of the range in a file of `size` bytes. `None` if the range contains no byte of the
    /// file.
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first) => (first, size),
            Self::Between(first, last) => (first, size.min(last.saturating_add(1))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

/// The metadata of a file whose bytes follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedFile {
    /// The size of the whole file, in bytes.
    pub size_bytes: u64,
    /// The time of the last change of the content.
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
    /// The entity tag of this version of the file.
    pub etag: String,
    /// The part of the file that follows.
    pub part: FilePart,
}

/// The part of a file that follows an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilePart {
    /// The whole file.
    Whole,
    /// A range of bytes.
    Range {
        /// The offset of the first byte.
        first: u64,
        /// The number of bytes.
        length: u64,
    },
    /// No bytes: the file has none of the requested range.
    Unsatisfiable,
}

/// Replaces the content of a file. The bytes follow the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadFile {
    /// The file to write.
    pub path: AbsolutePath,
    /// Permission bits of a new file. If given, a replaced file gets them as well.
    pub mode: Option<u32>,
    /// Whether missing parent folders are created.
    pub create_parents: bool,
    /// The condition under which the file is written.
    pub condition: WriteCondition,
}

/// Watches a folder and its subfolders. Each change follows the answer as a line of JSON, a [`FileChange`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchFolder {
    /// The folder to watch.
    pub path: AbsolutePath,
}

/// The answer of [`WatchFolder`]. Changes are reported from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderWatched {
    /// The number of folders that are watched.
    pub folders: u64,
}

/// A change below a watched folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChange {
    /// The kind of the change.
    pub r#type: ChangeType,
    /// The path that changed.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The previous path of a renamed file or folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/draft.md"))]
    pub from: Option<String>,
    /// The encoding of `path` and `from`; absent if both are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
}

/// The kind of a change to a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ChangeType {
    /// The path was created.
    Created,
    /// The content, the mode or the owner changed.
    Modified,
    /// The path was deleted, or moved out of the watched folder.
    Deleted,
    /// The path was renamed within the watched folder.
    Renamed,
    /// Changes were lost because they came faster than they were read. The client must read the folder `path` again.
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
    fn ranges_are_clamped_to_the_file() {
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
        fn ranges_stay_within_the_file(a in any::<u64>(), b in any::<u64>(), size in any::<u64>()) {
            for range in [ByteRange::From(a), ByteRange::Between(a, b), ByteRange::Last(a)] {
                if let Some((first, length)) = range.within(size) {
                    prop_assert!(length > 0 && first.checked_add(length).unwrap() <= size);
                }
            }
        }
    }
}
