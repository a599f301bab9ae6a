//! What is done to a repository, without a network.

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

use super::{GitDesk, key_as_person, path, word, written};
use crate::{
    body::Body,
    extract::{Call, Caller, GitWrite, NoParameters, Query},
    json::Json,
    openapi::refusals::GitWriteRefused,
    routes::{Answer, Created, Routes, created},
};

pub(super) fn routes(desk: &GitDesk) -> Routes {
    vec![
        routes!(add).with_state(desk.clone()),
        routes!(commit).with_state(desk.clone()),
        routes!(checkout).with_state(desk.clone()),
        routes!(change_branch).with_state(desk.clone()),
        routes!(change_worktree).with_state(desk.clone()),
        routes!(reset).with_state(desk.clone()),
        routes!(stash).with_state(desk.clone()),
    ]
}

/// What is staged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AddBody {
    /// The work tree, or a folder in it: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// Literal names below the repository's top; all files unless given.
    #[schema(example = json!(["src/main.rs"]))]
    files: Option<Vec<String>>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Stage files
///
/// New, changed and removed ones. The answer is all that is staged then. In a VM it needs the scope `swarm:exec`
/// besides.
#[utoipa::path(
    post, path = "/api/git/add", tag = "git", operation_id = "git_add", security(("bearer" = ["git:write"])),
    request_body(content = AddBody, example = json!({"path": "/srv/workspace/project", "files": ["src/main.rs"]})),
    responses((status = 200, description = "What is staged", body = Staged), GitWriteRefused)
)]
async fn add(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<AddBody>,
) -> Answer<Staged> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitAdd { path: path("path", &body.path, body.path_encoding)?, files: body.files };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// A commit to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CommitBody {
    /// The work tree, or a folder in it: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// What it says.
    #[schema(example = "Say hello")]
    message: String,
    /// Who wrote it; the key unless given.
    author: Option<PersonBody>,
    /// Whether changes of files that git knows are staged first.
    all: Option<bool>,
    /// Whether the last commit is replaced.
    amend: Option<bool>,
    /// Whether it may change nothing.
    allow_empty: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Somebody.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PersonBody {
    /// The name.
    #[schema(example = "Ada")]
    name: String,
    /// The address.
    #[schema(example = "ada@example.com")]
    email: String,
}

/// Commit
///
/// What is staged. Author and committer are the key's name unless `author` says otherwise; hooks do not run. In a
/// VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/commit", tag = "git", operation_id = "git_commit", security(("bearer" = ["git:write"])),
    request_body(content = CommitBody, example = json!({"path": "/srv/workspace/project", "message": "Say hello"})),
    responses((status = 201, description = "The commit", body = Committed), GitWriteRefused)
)]
async fn commit(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<CommitBody>,
) -> Created<Committed> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitCommit {
        path: path("path", &body.path, body.path_encoding)?,
        message: body.message,
        author: body.author.map(|author| Person { name: author.name, email: author.email }),
        committer: key_as_person(&caller),
        all: body.all.unwrap_or(false),
        amend: body.amend.unwrap_or(false),
        allow_empty: body.allow_empty.unwrap_or(false),
    };
    created(desk.places.run(&caller, chosen, operation).await?)
}

/// What is checked out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckoutBody {
    /// The work tree, or a folder in it: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// A branch, a tag or a commit.
    #[schema(example = "topic")]
    r#ref: String,
    /// Whether the branch is made, from the current commit.
    create: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Check out a branch or a commit
///
/// What is changed and not committed stays; where that cannot be, it is 409. In a VM it needs the scope
/// `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/checkout", tag = "git", operation_id = "git_checkout", security(("bearer" = ["git:write"])),
    request_body(content = CheckoutBody, example = json!({"path": "/srv/workspace/project", "ref": "topic", "create": true})),
    responses((status = 200, description = "What is checked out", body = CheckedOut), GitWriteRefused)
)]
async fn checkout(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<CheckoutBody>,
) -> Answer<CheckedOut> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitCheckout {
        path: path("path", &body.path, body.path_encoding)?,
        revision: word("ref", body.r#ref)?,
        create: body.create.unwrap_or(false),
        reach: desk.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// A branch to make or delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BranchBody {
    /// The repository: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// Its name.
    #[schema(example = "topic")]
    name: String,
    /// What it begins at; the current commit unless given.
    from: Option<String>,
    /// Whether it is deleted.
    delete: Option<bool>,
    /// Whether it is deleted though its commits are on no other branch.
    force: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Make or delete a branch
///
/// It is not checked out. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/branch", tag = "git", operation_id = "git_change_branch", security(("bearer" = ["git:write"])),
    request_body(content = BranchBody, example = json!({"path": "/srv/workspace/project", "name": "topic"})),
    responses((status = 200, description = "It was made, or deleted", body = BranchChanged), GitWriteRefused)
)]
async fn change_branch(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<BranchBody>,
) -> Answer<BranchChanged> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitChangeBranch {
        path: path("path", &body.path, body.path_encoding)?,
        name: word("name", body.name)?,
        from: body.from,
        delete: body.delete.unwrap_or(false),
        force: body.force.unwrap_or(false),
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// A work tree to add or remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WorktreeBody {
    /// The repository: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// The work tree's folder: absolute, below a root.
    #[schema(example = "/srv/workspace/topic")]
    worktree: String,
    /// What is put into it; a new branch of the folder's name unless given.
    #[schema(example = "topic")]
    r#ref: Option<String>,
    /// Whether it is removed.
    remove: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Add or remove a work tree
///
/// One with changes that are not committed is not removed. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/worktree", tag = "git", operation_id = "git_change_worktree", security(("bearer" = ["git:write"])),
    request_body(content = WorktreeBody, example = json!({"path": "/srv/workspace/project", "worktree": "/srv/workspace/topic", "ref": "topic"})),
    responses((status = 200, description = "It was added, or removed", body = WorktreeChanged), GitWriteRefused)
)]
async fn change_worktree(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<WorktreeBody>,
) -> Answer<WorktreeChanged> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitChangeWorktree {
        path: path("path", &body.path, body.path_encoding)?,
        worktree: path("worktree", &body.worktree, body.path_encoding)?,
        revision: body.r#ref,
        remove: body.remove.unwrap_or(false),
        reach: desk.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// Where the branch is put.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ResetBody {
    /// The work tree, or a folder in it: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// A commit; the current one unless given.
    #[schema(example = "HEAD~1")]
    to: Option<String>,
    /// What is taken back; `mixed` unless given.
    mode: Option<ResetMode>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Reset
///
/// Puts the current branch at a commit. With `mode: hard` what is not committed is lost. In a VM it needs the scope
/// `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/reset", tag = "git", operation_id = "git_reset", security(("bearer" = ["git:write"])),
    request_body(content = ResetBody, example = json!({"path": "/srv/workspace/project", "to": "HEAD~1"})),
    responses((status = 200, description = "Where the branch is", body = ResetDone), GitWriteRefused)
)]
async fn reset(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<ResetBody>,
) -> Answer<ResetDone> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitReset {
        path: path("path", &body.path, body.path_encoding)?,
        to: body.to,
        mode: body.mode.unwrap_or_default(),
        reach: desk.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// What is done with stashes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StashBody {
    /// The work tree, or a folder in it: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// What is done.
    action: StashAction,
    /// What a new stash says.
    message: Option<String>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Put changes away
///
/// Or bring them back, drop or list them. The answer is what is put away then. In a VM it needs the scope
/// `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/stash", tag = "git", operation_id = "git_stash", security(("bearer" = ["git:write"])),
    request_body(content = StashBody, example = json!({"path": "/srv/workspace/project", "action": "push"})),
    responses((status = 200, description = "What is put away", body = Stashes), GitWriteRefused)
)]
async fn stash(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<StashBody>,
) -> Answer<Stashes> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitStash {
        path: path("path", &body.path, body.path_encoding)?,
        action: body.action,
        message: body.message,
        committer: key_as_person(&caller),
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}
