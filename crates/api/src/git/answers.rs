//! What git operations answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::path::PathEncoding;

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its content or mode differs.
    Modified,
    /// It is gone.
    Deleted,
    /// It has another path.
    Renamed,
    /// It is a copy of another one.
    Copied,
    /// It became something else: a link, a file, a submodule.
    Typechange,
}

/// One that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedPath {
    /// Below the repository's top.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// What happened to it.
    pub change: ChangeKind,
    /// Its earlier path, where it was renamed or copied.
    pub from: Option<String>,
}

/// A path below the repository's top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePath {
    /// Below the repository's top.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
}

/// What is changed in a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryStatus {
    /// As it was asked for, or found.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The current branch; null where no branch is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The current commit; null before the first.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// Whether no branch is checked out.
    pub detached: bool,
    /// The branch that it follows.
    #[cfg_attr(feature = "openapi", schema(example = "origin/main"))]
    pub upstream: Option<String>,
    /// Commits that the upstream lacks.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub ahead: Option<u64>,
    /// Commits that it lacks.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub behind: Option<u64>,
    /// What a commit would hold.
    pub staged: Vec<ChangedPath>,
    /// What is changed and not staged.
    pub modified: Vec<ChangedPath>,
    /// Files that git does not know.
    pub untracked: Vec<FilePath>,
    /// Files in which two changes meet.
    pub conflicted: Vec<FilePath>,
    /// Whether there is none of all these.
    pub clean: bool,
    /// Whether 16 MiB of JSON were reached, and there is more.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// A file of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffFile {
    /// Below the repository's top.
    #[cfg_attr(feature = "openapi", schema(example = "src/main.rs"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// What happened to it.
    pub change: ChangeKind,
    /// Its earlier path, where it was renamed or copied.
    pub from: Option<String>,
    /// Lines that are new.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub additions: u64,
    /// Lines that are gone.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub deletions: u64,
    /// Whether it has no lines.
    pub binary: bool,
}

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Diff {
    /// As `git diff` writes it. What is not UTF-8 is replaced.
    #[cfg_attr(feature = "openapi", schema(example = "diff --git a/notes.md b/notes.md\n"))]
    pub diff: String,
    /// Each file.
    pub files: Vec<DiffFile>,
    /// Whether `diff` and `files` together would take more than 16 MiB of JSON.
    pub truncated: bool,
}

/// Who.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Person {
    /// The name.
    #[cfg_attr(feature = "openapi", schema(example = "Ada"))]
    pub name: String,
    /// The address.
    #[cfg_attr(feature = "openapi", schema(example = "ada@example.com"))]
    pub email: String,
}

/// Who, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Signature {
    /// The name.
    #[cfg_attr(feature = "openapi", schema(example = "Ada"))]
    pub name: String,
    /// The address.
    #[cfg_attr(feature = "openapi", schema(example = "ada@example.com"))]
    pub email: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub date: Timestamp,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Commit {
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub id: String,
    /// Those before it.
    #[cfg_attr(feature = "openapi", schema(example = json!(["8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"])))]
    pub parents: Vec<String>,
    /// Who wrote it.
    pub author: Signature,
    /// Who committed it.
    pub committer: Signature,
    /// The first paragraph of its message, as one line.
    #[cfg_attr(feature = "openapi", schema(example = "Say hello"))]
    pub subject: String,
    /// The rest of its message.
    #[cfg_attr(feature = "openapi", schema(example = "It is polite."))]
    pub body: String,
}

/// A page of commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Log {
    /// Newest first.
    pub commits: Vec<Commit>,
    /// What the next page begins with; null on the last.
    pub next_cursor: Option<String>,
}

/// A branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Branch {
    /// Its name; a remote's begins with that remote's.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub name: String,
    /// Where it is.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The branch that it follows.
    #[cfg_attr(feature = "openapi", schema(example = "origin/main"))]
    pub upstream: Option<String>,
    /// Commits that the upstream lacks; null without one.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub ahead: Option<u64>,
    /// Commits that it lacks; null without an upstream.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub behind: Option<u64>,
    /// Whether it is a remote's, as it was last seen.
    pub remote: bool,
}

/// The branches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Branches {
    /// The one that is checked out, which may have no commit yet.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub current: Option<String>,
    /// Whether none is checked out.
    pub detached: bool,
    /// By name.
    pub branches: Vec<Branch>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// What is staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Staged {
    /// All that the next commit would hold.
    pub staged: Vec<ChangedPath>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// A commit that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Committed {
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The branch that it is on.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The first paragraph of its message, as one line.
    #[cfg_attr(feature = "openapi", schema(example = "Say hello"))]
    pub subject: String,
    /// Files that it changed.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub files_changed: u64,
    /// Lines that it added.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub additions: u64,
    /// Lines that it took away.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub deletions: u64,
}

/// A branch that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pushed {
    /// Where to.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: String,
    /// Which.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: String,
    /// Where it was there; null where it was not.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub from: Option<String>,
    /// Where it is there now.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub to: String,
    /// Whether it is new there.
    pub created: bool,
}

/// What came with a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pulled {
    /// The commit before; null where there was none.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub from: Option<String>,
    /// The commit now.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub to: String,
    /// Commits that are new here.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub commits: u64,
    /// Files that differ now.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub files_changed: u64,
}

/// A repository that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Initialized {
    /// As it was asked for, or found.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The branch that the first commit will be on.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: String,
}

/// A repository that was cloned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cloned {
    /// As it was asked for, or found.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The branch that is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// Its commit; null where the remote has none.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
}

/// What is checked out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckedOut {
    /// The branch; null where a commit was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// Whether no branch is checked out.
    pub detached: bool,
}

/// A branch that was made or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BranchChanged {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub name: String,
    /// Where it is, or was.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// A work tree of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Worktree {
    /// Its folder.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/topic"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Its commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// Its branch.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub branch: Option<String>,
    /// Whether it has no branch.
    pub detached: bool,
    /// Whether it has no files: a bare repository itself.
    pub bare: bool,
}

/// The work trees of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Worktrees {
    /// The main one first.
    pub worktrees: Vec<Worktree>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// A work tree that was added or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorktreeChanged {
    /// Its folder.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/topic"))]
    pub worktree: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Its commit; null where it was removed.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// Its branch.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub branch: Option<String>,
    /// Whether it was removed.
    pub removed: bool,
}

/// Where the branch is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResetDone {
    /// The commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: String,
}

/// Changes that were put away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stash {
    /// What git calls it.
    #[cfg_attr(feature = "openapi", schema(example = "stash@{0}"))]
    pub name: String,
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// What it says.
    #[cfg_attr(feature = "openapi", schema(example = "On main: half done"))]
    pub message: String,
}

/// What is put away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stashes {
    /// Newest first.
    pub stashes: Vec<Stash>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// A repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryPath {
    /// Its folder.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// How paths are written here, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
}

/// The repositories of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Repositories {
    /// By path.
    pub repositories: Vec<RepositoryPath>,
    /// Whether there may be more: a folder has more than 10,000 entries, or 16 MiB of JSON were reached.
    pub truncated: bool,
}
