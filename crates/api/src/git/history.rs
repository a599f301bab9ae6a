//! Operations on commits, files of commits, tags and merges.

use serde::{Deserialize, Serialize};

use super::{CHECK_OUT, Commit, Diff, READ, WRITE, read::check_file};
use crate::{
    Failure,
    endpoint::{Route, Success, WorkspaceEndpoint, check_argument},
    path::AbsolutePath,
};

/// Returns a commit with its changes, or the content of a file in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitShow {
    /// The repository. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// The commit, branch or tag. Default: the current commit.
    #[serde(rename = "ref")]
    #[serde(default)]
    pub revision: Option<String>,
    /// A file, relative to the top of the repository, whose content in that commit is returned.
    #[serde(default)]
    pub file: Option<String>,
}

impl WorkspaceEndpoint for GitShow {
    const ROUTE: Route = Route {
        path: "/api/git/show",
        id: "git_show",
        summary: "Show a commit",
        description: "Returns the commit with its changes to the first parent. With `file`, returns the content of \
            that file instead of the changes, in base64 if it is not UTF-8. Both are cut at 16 MiB, which \
            `truncated` indicates.",
        success: Success::Done("The commit"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_file(self.file.as_deref())
    }
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
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitTags {
    /// The repository. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
}

impl WorkspaceEndpoint for GitTags {
    const ROUTE: Route = Route {
        path: "/api/git/tag",
        id: "git_tags",
        summary: "List tags",
        description: "Sorted by name.",
        success: Success::Done("The tags"),
        ..READ
    };
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
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TagBody))]
pub struct GitChangeTag {
    /// The repository, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The name of the tag.
    #[cfg_attr(feature = "openapi", schema(example = "v1.0"))]
    pub name: String,
    /// The commit to tag. Default: the current one.
    #[serde(rename = "ref")]
    #[serde(default)]
    pub revision: Option<String>,
    /// The message of an annotated tag. Without it, the tag is lightweight.
    #[serde(default)]
    pub message: Option<String>,
    /// Whether to delete the tag.
    #[serde(default)]
    pub delete: bool,
}

impl WorkspaceEndpoint for GitChangeTag {
    const ROUTE: Route = Route {
        path: "/api/git/tag",
        id: "git_change_tag",
        summary: "Create or delete a tag",
        description: "The tagger of an annotated tag is the calling key. An existing name is refused with 409.",
        example: r#"{"path": "/srv/workspace/project", "name": "v1.0"}"#,
        success: Success::Done("It was created or deleted"),
        ..WRITE
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("name", &self.name)
    }
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
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MergeBody))]
pub struct GitMerge {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The branch, tag or commit to merge into the current branch.
    #[serde(rename = "ref")]
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub revision: String,
    /// Whether to refuse the merge if the current branch has commits of its own.
    #[serde(default)]
    pub ff_only: bool,
    /// The message of a merge commit. Default: that of git.
    #[serde(default)]
    pub message: Option<String>,
}

impl WorkspaceEndpoint for GitMerge {
    const ROUTE: Route = Route {
        path: "/api/git/merge",
        id: "git_merge",
        summary: "Merge",
        description: "Merges into the current branch, as a fast-forward if that has no commits of its own. A conflict \
            is refused with 409 and the conflicting files; branch and work tree then stay as they were.",
        example: r#"{"path": "/srv/workspace/project", "ref": "topic"}"#,
        success: Success::Done("The new commits"),
        ..CHECK_OUT
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("ref", &self.revision)
    }
}
