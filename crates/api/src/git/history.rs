//! Commits, files of commits, tags and merges.

use serde::{Deserialize, Serialize};

use super::{Commit, Diff, GitReach, Person};
use crate::path::AbsolutePath;

/// Shows a commit with its changes, or a file as it is in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitShow {
    /// The repository; the only one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// The commit; the current one where `None`.
    pub revision: Option<String>,
    /// The file, below the repository's top.
    pub file: Option<String>,
}

/// A commit, with its changes or one of its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Shown {
    /// The commit.
    pub commit: Commit,
    /// What differs from its first parent; null where a file was asked for.
    pub changes: Option<Diff>,
    /// The file; null where none was asked for.
    pub file: Option<ShownFile>,
}

/// A file as it is in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShownFile {
    /// Below the repository's top.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// The content, as text or in base64.
    pub content: String,
    /// How the content is written.
    pub encoding: BlobEncoding,
    /// The size of the whole file.
    #[cfg_attr(feature = "openapi", schema(example = 14))]
    pub size_bytes: u64,
    /// Whether the content ends before the file does, since 16 MiB of JSON were reached.
    pub truncated: bool,
}

/// How the content of a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BlobEncoding {
    /// As it is.
    #[serde(rename = "utf-8")]
    Utf8,
    /// In base64, since it is not UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

/// Lists tags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitTags {
    /// The repository; the only one of the place where `None`.
    pub path: Option<AbsolutePath>,
}

/// A tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tag {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "v1.0"))]
    pub name: String,
    /// The object that it names: a commit as a rule.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The first paragraph of its message; null of a tag without one.
    #[cfg_attr(feature = "openapi", schema(example = "The first release"))]
    pub message: Option<String>,
}

/// The tags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tags {
    /// By name.
    pub tags: Vec<Tag>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    pub truncated: bool,
}

/// Makes or deletes a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeTag {
    /// The repository.
    pub path: AbsolutePath,
    /// The tag.
    pub name: String,
    /// The commit that it names; the current one where `None`.
    pub revision: Option<String>,
    /// Its message; without one it is no more than a name.
    pub message: Option<String>,
    /// Whether it is deleted.
    pub delete: bool,
    /// Who makes it.
    pub tagger: Person,
}

/// A tag that was made or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TagChanged {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "v1.0"))]
    pub name: String,
    /// The object that it names, or named.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// Merges a commit into the current branch. A conflict leaves branch and work tree as they were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitMerge {
    /// The work tree.
    pub path: AbsolutePath,
    /// The branch, tag or commit that is merged.
    pub revision: String,
    /// Whether it is refused where the current branch has commits of its own.
    pub ff_only: bool,
    /// The message of a merge commit; git's own where `None`.
    pub message: Option<String>,
    /// Who commits the merge.
    pub committer: Person,
    /// What filters may reach.
    pub reach: GitReach,
}
