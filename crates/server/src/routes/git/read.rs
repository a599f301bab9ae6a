//! Reads repositories: status, differences, commits, branches and work trees.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure,
    git::{
        Branches, Diff, GitBranches, GitDiff, GitLog, GitRepositories, GitStatus, GitWorktrees, Log,
        MAX_LOG_COMMITS, Repositories, RepositoryStatus, Worktrees,
    },
    path::PathEncoding,
};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitState, check_argument, optional_path, path};
use crate::{
    extract::{Caller, GitRead, Query},
    json::Json,
    openapi::refusals::GitRefused,
    places::Target,
    routes::{Answer, Routes},
};

/// Commits on a page without `limit`.
const DEFAULT_LOG: u32 = 50;
/// Lines around a change without `context`, and at most.
const DEFAULT_CONTEXT: u32 = 3;
const MAX_CONTEXT: u32 = 10_000;

pub(super) fn routes(state: &GitState) -> Routes {
    vec![
        routes!(repositories).with_state(state.clone()),
        routes!(status).with_state(state.clone()),
        routes!(diff).with_state(state.clone()),
        routes!(log).with_state(state.clone()),
        routes!(branches).with_state(state.clone()),
        routes!(worktrees).with_state(state.clone()),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RepositoryQuery {
    /// The repository or a folder in its work tree, an absolute path below a root.
    #[param(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PlaceQuery {
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// List repositories
///
/// Lists the roots that are repositories, or else the repositories directly below the roots, in a VM also below
/// `/root`. If there is only one, operations with an optional `path` use it by default. In a VM it also needs the scope
/// `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/repositories", tag = "git", operation_id = "git_repositories", params(PlaceQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The repositories", body = Repositories), GitRefused)
)]
async fn repositories(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<PlaceQuery>,
) -> Answer<Repositories> {
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, GitRepositories {}).await?))
}

/// Show the status
///
/// Returns the branch, its upstream, and every file that is staged, modified, untracked or in conflict. In a VM it also
/// needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/status", tag = "git", operation_id = "git_status", params(RepositoryQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The status", body = RepositoryStatus), GitRefused)
)]
async fn status(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<RepositoryQuery>,
) -> Answer<RepositoryStatus> {
    let operation = GitStatus { path: path("path", &query.path, query.path_encoding)? };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DiffQuery {
    /// The repository. Default: the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// Whether to compare the index instead of the work tree.
    staged: Option<bool>,
    /// The older state: a commit, branch or tag. Default: the index, or with `staged` the last commit.
    from: Option<String>,
    /// The newer state. Default: the work tree.
    to: Option<String>,
    /// Only this file or folder, relative to the top of the repository.
    file: Option<String>,
    /// Lines around each change; default 3.
    #[param(maximum = 10000)]
    context: Option<u32>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Compare two states
///
/// `diff` is cut at 16 MiB, which `truncated` indicates. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/diff", tag = "git", operation_id = "git_diff", params(DiffQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The differences", body = Diff), GitRefused)
)]
async fn diff(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<DiffQuery>,
) -> Answer<Diff> {
    let operation = GitDiff {
        path: optional_path(query.path.as_deref(), query.path_encoding)?,
        staged: query.staged.unwrap_or(false),
        from: query.from,
        to: query.to,
        file: check_file(query.file)?,
        context: check_range("context", query.context.unwrap_or(DEFAULT_CONTEXT), 0, MAX_CONTEXT)?,
    };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogQuery {
    /// The repository. Default: the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// The commit, branch or tag to begin with. Default: the current commit.
    r#ref: Option<String>,
    /// Only commits that changed this file or folder, relative to the top of the repository.
    file: Option<String>,
    /// Commits on the page, 1 to 1,000; default 50.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. The list continues consistently, whatever was committed since.
    cursor: Option<String>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// List commits
///
/// Returns a page of commits, newest first; an empty list if there is no commit yet. In a VM it also needs the scope
/// `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/log", tag = "git", operation_id = "git_log", params(LogQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "A page of commits", body = Log), GitRefused)
)]
async fn log(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<LogQuery>,
) -> Answer<Log> {
    let operation = GitLog {
        path: optional_path(query.path.as_deref(), query.path_encoding)?,
        revision: query.r#ref,
        file: check_file(query.file)?,
        limit: check_range("limit", query.limit.unwrap_or(DEFAULT_LOG), 1, MAX_LOG_COMMITS)?,
        cursor: query.cursor,
    };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BranchesQuery {
    /// The repository. Default: the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// Whether to include remote-tracking branches, as they were last fetched.
    remote: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// List branches
///
/// Also shows which one is checked out. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/branch", tag = "git", operation_id = "git_branches", params(BranchesQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The branches", body = Branches), GitRefused)
)]
async fn branches(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<BranchesQuery>,
) -> Answer<Branches> {
    let path = optional_path(query.path.as_deref(), query.path_encoding)?;
    let operation = GitBranches { path, remote: query.remote.unwrap_or(false) };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// List work trees
///
/// The main one first. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/worktree", tag = "git", operation_id = "git_worktrees", params(RepositoryQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The work trees", body = Worktrees), GitRefused)
)]
async fn worktrees(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<RepositoryQuery>,
) -> Answer<Worktrees> {
    let operation = GitWorktrees { path: path("path", &query.path, query.path_encoding)? };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

pub(super) fn check_file(file: Option<String>) -> Result<Option<String>, Failure> {
    match file {
        Some(empty) if empty.is_empty() => Err(Failure::new(
            ErrorCode::InvalidValue,
            "`file` is empty; name a file or a folder, or leave it out",
        )),
        file => file.map(|file| check_argument("file", file)).transpose(),
    }
}

fn check_range(field: &str, number: u32, min: u32, max: u32) -> Result<u32, Failure> {
    if (min..=max).contains(&number) {
        return Ok(number);
    }
    let message = format!("`{field}` is {number}; it must be a whole number from {min} to {max}");
    Err(Failure::new(ErrorCode::InvalidValue, message))
}
