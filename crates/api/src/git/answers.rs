//! Answers of the operations in `read` and `write`: status, differences and commits.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::path::PathEncoding;

/// The kind of a file's change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ChangeKind {
    /// The file was added.
    Added,
    /// The content or the mode was changed.
    Modified,
    /// The file was deleted.
    Deleted,
    /// The file was renamed.
    Renamed,
    /// The file is a copy of another one.
    Copied,
    /// The type changed, for example from a file to a symbolic link or a submodule.
    Typechange,
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedPath {
    /// The path relative to the top of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// The encoding of the paths; absent if they are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The kind of the change.
    pub change: ChangeKind,
    /// The previous path of a renamed file, or the source of a copied one.
    pub from: Option<String>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePath {
    /// The path relative to the top of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
}

/// The state of a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryStatus {
    /// The path of the repository, as requested or found.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The current branch; null if none is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The hash of the current commit; null before the first commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// Whether a commit is checked out instead of a branch.
    pub detached: bool,
    /// The upstream of the current branch.
    #[cfg_attr(feature = "openapi", schema(example = "origin/main"))]
    pub upstream: Option<String>,
    /// The number of commits that the branch has and the upstream lacks.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub ahead: Option<u64>,
    /// The number of commits that the upstream has and the branch lacks.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub behind: Option<u64>,
    /// The changes in the index: the content of the next commit.
    pub staged: Vec<ChangedPath>,
    /// The changes in the work tree that are not staged.
    pub modified: Vec<ChangedPath>,
    /// The untracked files.
    pub untracked: Vec<FilePath>,
    /// The files with merge conflicts.
    pub conflicted: Vec<FilePath>,
    /// Whether all these lists are empty.
    pub clean: bool,
    /// Whether the lists were cut off at 16 MiB of JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// A file of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffFile {
    /// The path relative to the top of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// The encoding of the paths; absent if they are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The kind of the change.
    pub change: ChangeKind,
    /// The previous path of a renamed file, or the source of a copied one.
    pub from: Option<String>,
    /// The number of added lines.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub additions: u64,
    /// The number of deleted lines.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub deletions: u64,
    /// Whether the content is binary, so that lines are not counted.
    pub binary: bool,
}

/// The difference between two states of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Diff {
    /// The difference in the format of `git diff`. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[cfg_attr(feature = "openapi", schema(example = "diff --git a/notes.md b/notes.md\n"))]
    pub diff: String,
    /// The changed files.
    pub files: Vec<DiffFile>,
    /// Whether the diff was cut off, because `diff` and `files` together would exceed 16 MiB of JSON.
    pub truncated: bool,
}

/// The name and address of an author, a committer or a tagger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = PersonBody))]
pub struct Person {
    /// The name of the person.
    #[cfg_attr(feature = "openapi", schema(example = "Ada"))]
    pub name: String,
    /// The email address of the person.
    #[cfg_attr(feature = "openapi", schema(example = "ada@example.com"))]
    pub email: String,
}

impl Default for Person {
    fn default() -> Self {
        Self { name: "skep".to_owned(), email: "skep@skep.invalid".to_owned() }
    }
}

/// The author or committer of a commit, with a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Signature {
    /// The name of the person.
    #[cfg_attr(feature = "openapi", schema(example = "Ada"))]
    pub name: String,
    /// The email address of the person.
    #[cfg_attr(feature = "openapi", schema(example = "ada@example.com"))]
    pub email: String,
    /// The time of authorship or of the commit.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub date: Timestamp,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Commit {
    /// The hash of the commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub id: String,
    /// The hashes of the parents.
    #[cfg_attr(feature = "openapi", schema(example = json!(["8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"])))]
    pub parents: Vec<String>,
    /// The author of the changes.
    pub author: Signature,
    /// The committer, who may differ from the author.
    pub committer: Signature,
    /// The first paragraph of the message, joined to one line.
    #[cfg_attr(feature = "openapi", schema(example = "Say hello"))]
    pub subject: String,
    /// The remaining paragraphs of the message.
    #[cfg_attr(feature = "openapi", schema(example = "It is polite."))]
    pub body: String,
}

/// A page of commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Log {
    /// The commits, newest first.
    pub commits: Vec<Commit>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The state of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Staged {
    /// All changes in the index: the content of the next commit.
    pub staged: Vec<ChangedPath>,
    /// Whether the list was cut off at 16 MiB of JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Committed {
    /// The hash of the new commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The branch of the new commit; null if none is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The first paragraph of the message, joined to one line.
    #[cfg_attr(feature = "openapi", schema(example = "Say hello"))]
    pub subject: String,
    /// The number of changed files.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub files_changed: u64,
    /// The number of added lines.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub additions: u64,
    /// The number of deleted lines.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub deletions: u64,
}

/// The result of a reset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResetDone {
    /// The hash of the commit that the branch is at now.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: String,
}

/// A repository of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryPath {
    /// The folder of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
}

/// The repositories of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Repositories {
    /// The repositories, sorted by path.
    pub repositories: Vec<RepositoryPath>,
    /// Whether there may be more repositories: a folder has more than 10,000 entries, or 16 MiB of JSON were reached.
    pub truncated: bool,
}
