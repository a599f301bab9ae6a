//! Lists and changes the remotes of a repository.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure,
    exec::VmField,
    git::{GitChangeRemote, GitRemotes, RemoteChange, RemoteChanged, Remotes},
    path::PathEncoding,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitState, check_argument, optional_path, path, place_of_write};
use crate::{
    body::Body,
    extract::{Caller, GitRead, GitWrite, NoParameters, Query, RequestInfo},
    json::Json,
    openapi::refusals::{GitNetworkRefused, GitRefused},
    places::Target,
    routes::{Answer, Routes},
};

pub(super) fn routes(state: &GitState) -> Routes {
    vec![routes!(remotes).with_state(state.clone()), routes!(change_remote).with_state(state.clone())]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemotesQuery {
    /// The repository. Default: the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// List remotes
///
/// `skep://server/PATH` and `skep://VM/PATH` are repositories in other places of this server. In a VM it also needs the
/// scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/remote", tag = "git", operation_id = "git_remotes", params(RemotesQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The remotes", body = Remotes), GitRefused)
)]
async fn remotes(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<RemotesQuery>,
) -> Answer<Remotes> {
    let operation = GitRemotes { path: optional_path(query.path.as_deref(), query.path_encoding)? };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A remote to add, change or remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RemoteBody {
    /// The repository, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The name of the remote.
    #[schema(example = "origin")]
    name: String,
    /// `https://`, `ssh://`, a path, or `skep://server/PATH` and `skep://VM/PATH` of a repository in another place.
    #[schema(example = "https://git.example.com/project.git")]
    url: Option<String>,
    /// Whether to change the URL of an existing remote.
    replace: Option<bool>,
    /// Whether to remove the remote and its remote-tracking branches.
    remove: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Add, change or remove a remote
///
/// With `url` the remote is added, or with `url` and `replace` its URL is changed. Nothing is fetched. In a VM it also
/// needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/remote", tag = "git", operation_id = "git_change_remote", security(("bearer" = ["git:write"])),
    request_body(content = RemoteBody, example = json!({"path": "/srv/workspace/project", "name": "origin", "url": "https://git.example.com/project.git"})),
    responses((status = 200, description = "It was added, changed or removed", body = RemoteChanged), GitNetworkRefused)
)]
async fn change_remote(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<RemoteBody>,
) -> Answer<RemoteChanged> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitChangeRemote {
        path: path("path", &body.path, body.path_encoding)?,
        name: check_argument("name", body.name)?,
        change: change(body.url, body.replace.unwrap_or(false), body.remove.unwrap_or(false))?,
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

fn change(url: Option<String>, replace: bool, remove: bool) -> Result<RemoteChange, Failure> {
    match (url, replace, remove) {
        (Some(url), false, false) => Ok(RemoteChange::Add(check_argument("url", url)?)),
        (Some(url), true, false) => Ok(RemoteChange::SetUrl(check_argument("url", url)?)),
        (None, false, true) => Ok(RemoteChange::Remove),
        _ => Err(Failure::new(
            ErrorCode::InvalidValue,
            "give `url`, with `replace` for an existing remote, or `remove` alone",
        )),
    }
}
