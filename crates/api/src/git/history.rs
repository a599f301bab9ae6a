//! Operations on commits, files of commits, tags and merges.

use serde::{Deserialize, Serialize};

use super::{Commit, Diff, GitReach, Person};
use crate::path::AbsolutePath;

/// Returns a commit with its changes, or the content of a file in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitShow {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The commit; the current commit if `None`.
    pub revision: Option<String>,
    /// The path of the file relative to the top of the repository.
    pub file: Option<String>,
}

/// A commit, with its changes or one of its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Shown {
    /// The commit.
    pub commit: Commit,
    /// The difference from the first parent; null if a file was requested.
    pub changes: Option<Diff>,
    /// The requested file; null if none was requested.
    pub file: Option<ShownFile>,
}

/// The content of a file in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShownFile {
    /// The path relative to the top of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// The content, in the encoding given by `encoding`.
    pub content: String,
    /// The encoding of `content`.
    pub encoding: BlobEncoding,
    /// The size of the whole file, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 14))]
    pub size_bytes: u64,
    /// Whether the content was cut off at 16 MiB of JSON.
    pub truncated: bool,
}

/// The encoding of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BlobEncoding {
    /// Plain UTF-8 text.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64, because the content is not valid UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

/// Lists the tags of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitTags {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
}

/// A tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tag {
    /// The name of the tag.
    #[cfg_attr(feature = "openapi", schema(example = "v1.0"))]
    pub name: String,
    /// The hash of the tagged object, usually a commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The first paragraph of the tag's message; null for a lightweight tag.
    #[cfg_attr(feature = "openapi", schema(example = "The first release"))]
    pub message: Option<String>,
}

/// The tags of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tags {
    /// The tags, sorted by name.
    pub tags: Vec<Tag>,
    /// Whether the list was cut off at 16 MiB of JSON.
    pub truncated: bool,
}

/// Creates or deletes a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeTag {
    /// The repository.
    pub path: AbsolutePath,
    /// The name of the tag.
    pub name: String,
    /// The commit to tag; the current commit if `None`.
    pub revision: Option<String>,
    /// The message of an annotated tag; a lightweight tag is created if `None`.
    pub message: Option<String>,
    /// Whether the tag is deleted.
    pub delete: bool,
    /// The tagger of an annotated tag.
    pub tagger: Person,
}

/// The result of creating or deleting a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TagChanged {
    /// The name of the tag.
    #[cfg_attr(feature = "openapi", schema(example = "v1.0"))]
    pub name: String,
    /// The hash of the tagged object.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// Whether the tag was deleted.
    pub deleted: bool,
}

/// Merges a commit into the current branch. A conflict leaves branch and work tree unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitMerge {
    /// The work tree.
    pub path: AbsolutePath,
    /// The branch, tag or commit to merge.
    pub revision: String,
    /// Whether the merge fails if the current branch has commits of its own.
    pub ff_only: bool,
    /// The message of a merge commit; git's default if `None`.
    pub message: Option<String>,
    /// The committer of a merge commit.
    pub committer: Person,
    /// The addresses that filters, such as Git LFS, may connect to.
    pub reach: GitReach,
}
