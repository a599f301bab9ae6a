//! What needs another repository, and perhaps a network.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    exec::VmField,
    git::{FetchedRefs, GitFetchRemote, GitPull, GitPush, PullStrategy, Pulled, Pushed},
    path::PathEncoding,
};
use utoipa::ToSchema;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitDesk, any_path, exchange, key_as_person, written};
use crate::{
    body::Body,
    extract::{Call, Caller, GitWrite, NoParameters, Query},
    json::Json,
    openapi::refusals::GitNetworkRefused,
    routes::{Answer, Routes},
};

pub(super) fn routes(desk: &GitDesk) -> Routes {
    vec![
        routes!(push).with_state(desk.clone()),
        routes!(pull).with_state(desk.clone()),
        routes!(fetch).with_state(desk.clone()),
    ]
}

/// What is sent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PushBody {
    /// The repository: absolute, below a root; unless given, the one that the roots have.
    #[schema(example = "/srv/workspace/project")]
    path: Option<String>,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// A remote's name; that of the branch, or `origin`, unless given.
    #[schema(example = "origin")]
    remote: Option<String>,
    /// The branch; the current one unless given.
    #[schema(example = "main")]
    branch: Option<String>,
    /// Whether the branch follows the remote's from now on.
    set_upstream: Option<bool>,
    /// Whether commits may be lost there, where the remote's branch is as it was last seen.
    force_with_lease: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Push
///
/// Sends a branch to a remote. A rejection is 409 with the remote's words. Tokens are those of
/// `/api/git/credentials`; no hook runs, of a local remote neither. What a VM pushes, the server takes out of it and sends:
/// no token enters the VM. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/push", tag = "git", operation_id = "git_push", security(("bearer" = ["git:write"])),
    request_body(content = PushBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 200, description = "The branch is there", body = Pushed), GitNetworkRefused)
)]
async fn push(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<PushBody>,
) -> Answer<Pushed> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let reach = desk.reach(&caller).await?;
    let operation = GitPush {
        path: any_path(body.path.as_deref(), body.path_encoding)?,
        remote: body.remote,
        branch: body.branch,
        set_upstream: body.set_upstream.unwrap_or(false),
        force_with_lease: body.force_with_lease.unwrap_or(false),
        reach,
    };
    Ok(Json(exchange::push(&desk.places, &caller, chosen, operation).await?))
}

/// What is fetched.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PullBody {
    /// The repository: absolute, below a root; unless given, the one that the roots have.
    #[schema(example = "/srv/workspace/project")]
    path: Option<String>,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// A remote's name; that of the branch, or `origin`, unless given.
    #[schema(example = "origin")]
    remote: Option<String>,
    /// The remote's branch; the one that the current branch follows unless given.
    #[schema(example = "main")]
    branch: Option<String>,
    /// How both are joined; `ff-only` unless given.
    strategy: Option<PullStrategy>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Pull
///
/// Fetches a branch and joins it with the current one. Where they conflict it is 409, and the work tree is as it
/// was before. What a VM pulls, the server fetches for it: no token enters the VM. In a VM it needs the scope
/// `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/pull", tag = "git", operation_id = "git_pull", security(("bearer" = ["git:write"])),
    request_body(content = PullBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 200, description = "What is new", body = Pulled), GitNetworkRefused)
)]
async fn pull(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<PullBody>,
) -> Answer<Pulled> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let reach = desk.reach(&caller).await?;
    let operation = GitPull {
        path: any_path(body.path.as_deref(), body.path_encoding)?,
        remote: body.remote,
        branch: body.branch,
        strategy: body.strategy.unwrap_or_default(),
        committer: key_as_person(&caller),
        reach,
    };
    Ok(Json(exchange::pull(&desk.places, &caller, chosen, operation).await?))
}

/// Which remote is fetched.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct FetchBody {
    /// The repository: absolute, below a root; unless given, the only one of the place.
    #[schema(example = "/srv/workspace/project")]
    path: Option<String>,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// A remote's name; that of the branch, or `origin`, unless given.
    #[schema(example = "origin")]
    remote: Option<String>,
    /// Whether branches are forgotten that the remote has no longer.
    prune: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Fetch
///
/// All branches of a remote, and the tags that belong to them. The current branch and the work tree stay. What a VM fetches, the
/// server fetches for it, as with a pull. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/fetch", tag = "git", operation_id = "git_fetch", security(("bearer" = ["git:write"])),
    request_body(content = FetchBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 200, description = "What changed", body = FetchedRefs), GitNetworkRefused)
)]
async fn fetch(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<FetchBody>,
) -> Answer<FetchedRefs> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitFetchRemote {
        path: any_path(body.path.as_deref(), body.path_encoding)?,
        remote: body.remote,
        prune: body.prune.unwrap_or(false),
        reach: desk.reach(&caller).await?,
    };
    Ok(Json(exchange::fetch(&desk.places, &caller, chosen, operation).await?))
}
