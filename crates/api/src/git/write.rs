//! Operations that change repositories, without network access.

use serde::{Deserialize, Serialize};

use super::{Person, WRITE};
use crate::{
    Failure,
    endpoint::{Endpoint, Route, Success, check_argument},
    path::AbsolutePath,
};

/// Stages files for the next commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AddBody))]
pub struct GitAdd {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// Literal names, relative to the top of the repository. Default: all files.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = json!(["src/main.rs"])))]
    pub files: Option<Vec<String>>,
}

impl Endpoint for GitAdd {
    const ROUTE: Route = Route {
        path: "/api/git/add",
        id: "git_add",
        summary: "Stage files",
        description: "Stages new, changed and removed files. The answer lists everything that is staged.",
        example: r#"{"path": "/srv/workspace/project", "files": ["src/main.rs"]}"#,
        success: Success::Done("What is staged"),
        body_limit: 16 << 20,
        ..WRITE
    };
}

/// Commits the staged changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CommitBody))]
pub struct GitCommit {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The message.
    #[cfg_attr(feature = "openapi", schema(example = "Say hello"))]
    pub message: String,
    /// The author. Default: the calling key.
    #[serde(default)]
    pub author: Option<Person>,
    /// Whether to stage the changes of tracked files first.
    #[serde(default)]
    pub all: bool,
    /// Whether to replace the last commit.
    #[serde(default)]
    pub amend: bool,
    /// Whether to allow a commit without changes.
    #[serde(default)]
    pub allow_empty: bool,
}

impl Endpoint for GitCommit {
    const ROUTE: Route = Route {
        path: "/api/git/commit",
        id: "git_commit",
        summary: "Commit",
        description: "Commits what is staged. The committer is the calling key, and so is the author unless `author` \
            is given. Hooks do not run.",
        example: r#"{"path": "/srv/workspace/project", "message": "Say hello"}"#,
        success: Success::Created("The commit"),
        ..WRITE
    };
}

/// Checks out a branch or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CheckoutBody))]
pub struct GitCheckout {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// A branch, a tag or a commit.
    #[serde(rename = "ref")]
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub revision: String,
    /// Whether to create the branch from the current commit.
    #[serde(default)]
    pub create: bool,
}

impl Endpoint for GitCheckout {
    const ROUTE: Route = Route {
        path: "/api/git/checkout",
        id: "git_checkout",
        summary: "Check out a branch or a commit",
        description: "Uncommitted changes are kept; if they conflict with the checkout, it is refused with 409.",
        example: r#"{"path": "/srv/workspace/project", "ref": "topic", "create": true}"#,
        success: Success::Done("What is checked out"),
        uses_network: true,
        ..WRITE
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("ref", &self.revision)
    }
}

/// Creates or deletes a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = BranchBody))]
pub struct GitChangeBranch {
    /// The repository, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The name of the branch.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub name: String,
    /// The start of the branch. Default: the current commit.
    #[serde(default)]
    pub from: Option<String>,
    /// Whether to delete the branch.
    #[serde(default)]
    pub delete: bool,
    /// Whether to delete it even if its commits are on no other branch.
    #[serde(default)]
    pub force: bool,
}

impl Endpoint for GitChangeBranch {
    const ROUTE: Route = Route {
        path: "/api/git/branch",
        id: "git_change_branch",
        summary: "Create or delete a branch",
        description: "A new branch is not checked out.",
        example: r#"{"path": "/srv/workspace/project", "name": "topic"}"#,
        success: Success::Done("It was created or deleted"),
        ..WRITE
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("name", &self.name)
    }
}

/// Adds or removes a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = WorktreeBody))]
pub struct GitChangeWorktree {
    /// The repository, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The folder of the work tree, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/topic"))]
    pub worktree: AbsolutePath,
    /// The commit, branch or tag to check out. Default: a new branch with the name of the folder.
    #[serde(rename = "ref")]
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub revision: Option<String>,
    /// Whether to remove the work tree.
    #[serde(default)]
    pub remove: bool,
}

impl Endpoint for GitChangeWorktree {
    const ROUTE: Route = Route {
        path: "/api/git/worktree",
        id: "git_change_worktree",
        summary: "Add or remove a work tree",
        description: "A work tree with uncommitted changes is not removed.",
        example: r#"{"path": "/srv/workspace/project", "worktree": "/srv/workspace/topic", "ref": "topic"}"#,
        success: Success::Done("It was added or removed"),
        paths: &["path", "worktree"],
        uses_network: true,
        ..WRITE
    };
}

/// What a reset changes besides the current branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResetMode {
    /// Nothing else.
    Soft,
    /// The index.
    #[default]
    Mixed,
    /// The index and the work tree.
    Hard,
}

/// Moves the current branch to another commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ResetBody))]
pub struct GitReset {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The commit. Default: the current one.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "HEAD~1"))]
    pub to: Option<String>,
    /// What to reset besides the branch; default `mixed`.
    #[serde(default)]
    pub mode: ResetMode,
}

impl Endpoint for GitReset {
    const ROUTE: Route = Route {
        path: "/api/git/reset",
        id: "git_reset",
        summary: "Reset",
        description: "Moves the current branch to a commit. With `mode: hard`, uncommitted changes are lost.",
        example: r#"{"path": "/srv/workspace/project", "to": "HEAD~1"}"#,
        success: Success::Done("The new position of the branch"),
        uses_network: true,
        ..WRITE
    };
}

/// An operation on stashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StashAction {
    /// Stashes all changes, including untracked files.
    Push,
    /// Applies the newest stash and drops it.
    Pop,
    /// Applies the newest stash and keeps it.
    Apply,
    /// Drops the newest stash.
    Drop,
    /// Lists the stashes without a change.
    List,
}

/// Stashes changes, or applies them again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = StashBody))]
pub struct GitStash {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The operation.
    pub action: StashAction,
    /// The message of a new stash.
    #[serde(default)]
    pub message: Option<String>,
}

impl Endpoint for GitStash {
    const ROUTE: Route = Route {
        path: "/api/git/stash",
        id: "git_stash",
        summary: "Stash changes",
        description: "Stashes changes, applies or drops a stash, or lists them. The answer lists all stashes.",
        example: r#"{"path": "/srv/workspace/project", "action": "push"}"#,
        success: Success::Done("The stashes"),
        ..WRITE
    };
}
