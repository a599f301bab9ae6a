//! Changes repositories, without network access.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    exec::VmField,
    git::{
        BranchChanged, CheckedOut, Committed, GitAdd, GitChangeBranch, GitChangeWorktree, GitCheckout,
        GitCommit, GitReset, GitStash, Person, ResetDone, ResetMode, Staged, StashAction, Stashes,
        WorktreeChanged,
    },
    path::PathEncoding,
};
use utoipa::ToSchema;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitState, check_argument, key_as_person, path, place_of_write};
use crate::{
    body::Body,
    extract::{Caller, GitWrite, NoParameters, Query, RequestInfo},
    json::Json,
    openapi::refusals::GitWriteRefused,
    routes::{Answer, Created, Routes, created},
};

pub(super) fn routes(state: &GitState) -> Routes {
    vec![
        routes!(add).with_state(state.clone()),
        routes!(commit).with_state(state.clone()),
        routes!(checkout).with_state(state.clone()),
        routes!(change_branch).with_state(state.clone()),
        routes!(change_worktree).with_state(state.clone()),
        routes!(reset).with_state(state.clone()),
        routes!(stash).with_state(state.clone()),
    ]
}

/// Files to stage.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AddBody {
    /// The work tree or a folder in it, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// Literal names, relative to the top of the repository. Default: all files.
    #[schema(example = json!(["src/main.rs"]))]
    files: Option<Vec<String>>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Stage files
///
/// Stages new, changed and removed files. The answer lists everything that is staged. In a VM it also needs the scope
/// `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/add", tag = "git", operation_id = "git_add", security(("bearer" = ["git:write"])),
    request_body(content = AddBody, example = json!({"path": "/srv/workspace/project", "files": ["src/main.rs"]})),
    responses((status = 200, description = "What is staged", body = Staged), GitWriteRefused)
)]
async fn add(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<AddBody>,
) -> Answer<Staged> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitAdd { path: path("path", &body.path, body.path_encoding)?, files: body.files };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A commit to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CommitBody {
    /// The work tree or a folder in it, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The message.
    #[schema(example = "Say hello")]
    message: String,
    /// The author. Default: the calling key.
    author: Option<PersonBody>,
    /// Whether to stage the changes of tracked files first.
    all: Option<bool>,
    /// Whether to replace the last commit.
    amend: Option<bool>,
    /// Whether to allow a commit without changes.
    allow_empty: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// An author.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PersonBody {
    /// The name.
    #[schema(example = "Ada")]
    name: String,
    /// The email address.
    #[schema(example = "ada@example.com")]
    email: String,
}

/// Commit
///
/// Commits what is staged. The committer is the calling key, and so is the author unless `author` is given. Hooks do
/// not run. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/commit", tag = "git", operation_id = "git_commit", security(("bearer" = ["git:write"])),
    request_body(content = CommitBody, example = json!({"path": "/srv/workspace/project", "message": "Say hello"})),
    responses((status = 201, description = "The commit", body = Committed), GitWriteRefused)
)]
async fn commit(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<CommitBody>,
) -> Created<Committed> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitCommit {
        path: path("path", &body.path, body.path_encoding)?,
        message: body.message,
        author: body.author.map(|author| Person { name: author.name, email: author.email }),
        committer: key_as_person(&caller),
        all: body.all.unwrap_or(false),
        amend: body.amend.unwrap_or(false),
        allow_empty: body.allow_empty.unwrap_or(false),
    };
    created(state.places.run(&caller, chosen, operation).await?)
}

/// A checkout.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckoutBody {
    /// The work tree or a folder in it, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// A branch, a tag or a commit.
    #[schema(example = "topic")]
    r#ref: String,
    /// Whether to create the branch from the current commit.
    create: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Check out a branch or a commit
///
/// Uncommitted changes are kept; if they conflict with the checkout, it is refused with 409. In a VM it also needs the
/// scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/checkout", tag = "git", operation_id = "git_checkout", security(("bearer" = ["git:write"])),
    request_body(content = CheckoutBody, example = json!({"path": "/srv/workspace/project", "ref": "topic", "create": true})),
    responses((status = 200, description = "What is checked out", body = CheckedOut), GitWriteRefused)
)]
async fn checkout(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<CheckoutBody>,
) -> Answer<CheckedOut> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitCheckout {
        path: path("path", &body.path, body.path_encoding)?,
        revision: check_argument("ref", body.r#ref)?,
        create: body.create.unwrap_or(false),
        reach: state.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A branch to create or delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BranchBody {
    /// The repository, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The name of the branch.
    #[schema(example = "topic")]
    name: String,
    /// The start of the branch. Default: the current commit.
    from: Option<String>,
    /// Whether to delete the branch.
    delete: Option<bool>,
    /// Whether to delete it even if its commits are on no other branch.
    force: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Create or delete a branch
///
/// A new branch is not checked out. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/branch", tag = "git", operation_id = "git_change_branch", security(("bearer" = ["git:write"])),
    request_body(content = BranchBody, example = json!({"path": "/srv/workspace/project", "name": "topic"})),
    responses((status = 200, description = "It was created or deleted", body = BranchChanged), GitWriteRefused)
)]
async fn change_branch(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<BranchBody>,
) -> Answer<BranchChanged> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitChangeBranch {
        path: path("path", &body.path, body.path_encoding)?,
        name: check_argument("name", body.name)?,
        from: body.from,
        delete: body.delete.unwrap_or(false),
        force: body.force.unwrap_or(false),
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A work tree to add or remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WorktreeBody {
    /// The repository, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The folder of the work tree, an absolute path below a root.
    #[schema(example = "/srv/workspace/topic")]
    worktree: String,
    /// The commit, branch or tag to check out. Default: a new branch with the name of the folder.
    #[schema(example = "topic")]
    r#ref: Option<String>,
    /// Whether to remove the work tree.
    remove: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Add or remove a work tree
///
/// A work tree with uncommitted changes is not removed. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/worktree", tag = "git", operation_id = "git_change_worktree", security(("bearer" = ["git:write"])),
    request_body(content = WorktreeBody, example = json!({"path": "/srv/workspace/project", "worktree": "/srv/workspace/topic", "ref": "topic"})),
    responses((status = 200, description = "It was added or removed", body = WorktreeChanged), GitWriteRefused)
)]
async fn change_worktree(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<WorktreeBody>,
) -> Answer<WorktreeChanged> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitChangeWorktree {
        path: path("path", &body.path, body.path_encoding)?,
        worktree: path("worktree", &body.worktree, body.path_encoding)?,
        revision: body.r#ref,
        remove: body.remove.unwrap_or(false),
        reach: state.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A reset of the current branch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ResetBody {
    /// The work tree or a folder in it, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The commit. Default: the current one.
    #[schema(example = "HEAD~1")]
    to: Option<String>,
    /// What to reset besides the branch; default `mixed`.
    mode: Option<ResetMode>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Reset
///
/// Moves the current branch to a commit. With `mode: hard`, uncommitted changes are lost. In a VM it also needs the
/// scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/reset", tag = "git", operation_id = "git_reset", security(("bearer" = ["git:write"])),
    request_body(content = ResetBody, example = json!({"path": "/srv/workspace/project", "to": "HEAD~1"})),
    responses((status = 200, description = "The new position of the branch", body = ResetDone), GitWriteRefused)
)]
async fn reset(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<ResetBody>,
) -> Answer<ResetDone> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitReset {
        path: path("path", &body.path, body.path_encoding)?,
        to: body.to,
        mode: body.mode.unwrap_or_default(),
        reach: state.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// An operation on stashes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StashBody {
    /// The work tree or a folder in it, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The operation.
    action: StashAction,
    /// The message of a new stash.
    message: Option<String>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Stash changes
///
/// Stashes changes, applies or drops a stash, or lists them. The answer lists all stashes. In a VM it also needs the
/// scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/stash", tag = "git", operation_id = "git_stash", security(("bearer" = ["git:write"])),
    request_body(content = StashBody, example = json!({"path": "/srv/workspace/project", "action": "push"})),
    responses((status = 200, description = "The stashes", body = Stashes), GitWriteRefused)
)]
async fn stash(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<StashBody>,
) -> Answer<Stashes> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitStash {
        path: path("path", &body.path, body.path_encoding)?,
        action: body.action,
        message: body.message,
        committer: key_as_person(&caller),
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}
