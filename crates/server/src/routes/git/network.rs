//! Pushes, pulls and fetches.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    exec::VmField,
    git::{FetchedRefs, GitFetchRemote, GitPull, GitPush, PullStrategy, Pulled, Pushed},
    path::PathEncoding,
};
use utoipa::ToSchema;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitState, exchange, key_as_person, optional_path, place_of_write};
use crate::{
    body::Body,
    extract::{Caller, GitWrite, NoParameters, Query, RequestInfo},
    json::Json,
    openapi::refusals::GitNetworkRefused,
    routes::{Answer, Routes},
};

pub(super) fn routes(state: &GitState) -> Routes {
    vec![
        routes!(push).with_state(state.clone()),
        routes!(pull).with_state(state.clone()),
        routes!(fetch).with_state(state.clone()),
    ]
}

/// A branch to push.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PushBody {
    /// The repository, an absolute path below a root. Default: the only one of the place.
    #[schema(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The name of a remote. Default: that of the branch, or `origin`.
    #[schema(example = "origin")]
    remote: Option<String>,
    /// The branch. Default: the current one.
    #[schema(example = "main")]
    branch: Option<String>,
    /// Whether to make the remote's branch the upstream of the branch.
    set_upstream: Option<bool>,
    /// Whether to overwrite the remote's branch if it is unchanged since it was last fetched.
    force_with_lease: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Push
///
/// Sends a branch to a remote. A rejection by the remote is 409 with its message. Tokens are those of
/// `/api/git/credentials`. No hooks run, not even those of a local remote. For a repository in a VM, the server takes
/// the commits out of the VM and sends them: no token enters the VM. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/push", tag = "git", operation_id = "git_push", security(("bearer" = ["git:write"])),
    request_body(content = PushBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 200, description = "The branch was pushed", body = Pushed), GitNetworkRefused)
)]
async fn push(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<PushBody>,
) -> Answer<Pushed> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let reach = state.reach(&caller).await?;
    let operation = GitPush {
        path: optional_path(body.path.as_deref(), body.path_encoding)?,
        remote: body.remote,
        branch: body.branch,
        set_upstream: body.set_upstream.unwrap_or(false),
        force_with_lease: body.force_with_lease.unwrap_or(false),
        reach,
    };
    Ok(Json(exchange::push(&state.places, &caller, chosen, operation).await?))
}

/// A branch to pull.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PullBody {
    /// The repository, an absolute path below a root. Default: the only one of the place.
    #[schema(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The name of a remote. Default: that of the branch, or `origin`.
    #[schema(example = "origin")]
    remote: Option<String>,
    /// The remote's branch. Default: the upstream of the current branch.
    #[schema(example = "main")]
    branch: Option<String>,
    /// How to combine both branches; default `ff-only`.
    strategy: Option<PullStrategy>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Pull
///
/// Fetches a branch and combines it with the current one. A conflict is refused with 409, and the work tree stays as it
/// was. For a repository in a VM, the server fetches the commits: no token enters the VM. In a VM it also needs the
/// scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/pull", tag = "git", operation_id = "git_pull", security(("bearer" = ["git:write"])),
    request_body(content = PullBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 200, description = "The new commits", body = Pulled), GitNetworkRefused)
)]
async fn pull(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<PullBody>,
) -> Answer<Pulled> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let reach = state.reach(&caller).await?;
    let operation = GitPull {
        path: optional_path(body.path.as_deref(), body.path_encoding)?,
        remote: body.remote,
        branch: body.branch,
        strategy: body.strategy.unwrap_or_default(),
        committer: key_as_person(&caller),
        reach,
    };
    Ok(Json(exchange::pull(&state.places, &caller, chosen, operation).await?))
}

/// A remote to fetch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct FetchBody {
    /// The repository, an absolute path below a root. Default: the only one of the place.
    #[schema(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The name of a remote. Default: that of the branch, or `origin`.
    #[schema(example = "origin")]
    remote: Option<String>,
    /// Whether to remove remote-tracking branches that no longer exist on the remote.
    prune: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Fetch
///
/// Fetches all branches of a remote, and their tags. The current branch and the work tree stay unchanged. For a
/// repository in a VM, the server fetches the commits, as for a pull. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/fetch", tag = "git", operation_id = "git_fetch", security(("bearer" = ["git:write"])),
    request_body(content = FetchBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 200, description = "The changed branches and tags", body = FetchedRefs), GitNetworkRefused)
)]
async fn fetch(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<FetchBody>,
) -> Answer<FetchedRefs> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitFetchRemote {
        path: optional_path(body.path.as_deref(), body.path_encoding)?,
        remote: body.remote,
        prune: body.prune.unwrap_or(false),
        reach: state.reach(&caller).await?,
    };
    Ok(Json(exchange::fetch(&state.places, &caller, chosen, operation).await?))
}
