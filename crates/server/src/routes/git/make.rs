//! Creates and clones repositories.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure,
    exec::VmField,
    git::{Cloned, GitClone, GitInit, GitReach, Initialized, RelayPlace},
    path::PathEncoding,
};
use utoipa::ToSchema;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    GitState, check_argument,
    exchange::{self, CloneFrom},
    path, place_of_write,
};
use crate::{
    body::Body,
    extract::{Caller, GitWrite, NoParameters, Query, RequestInfo},
    openapi::refusals::{GitNetworkRefused, GitWriteRefused},
    places::Target,
    routes::{Created, Routes, created},
};

pub(super) fn routes(state: &GitState) -> Routes {
    vec![routes!(init).with_state(state.clone()), routes!(clone_repository).with_state(state.clone())]
}

/// A repository to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct InitBody {
    /// Its folder, an absolute path below a root. Created if it is missing.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// Whether to create a bare repository, without a work tree.
    bare: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Create a repository
///
/// Its first branch is `main`. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/init", tag = "git", operation_id = "git_init", security(("bearer" = ["git:write"])),
    request_body(content = InitBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 201, description = "The repository", body = Initialized), GitWriteRefused)
)]
async fn init(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<InitBody>,
) -> Created<Initialized> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation =
        GitInit { path: path("path", &body.path, body.path_encoding)?, bare: body.bare.unwrap_or(false) };
    created(state.places.run(&caller, chosen, operation).await?)
}

/// A repository to clone.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CloneBody {
    /// `https://`, `ssh://`, or an absolute path below a root, in the place `from`, or else in the place of the clone.
    #[schema(example = "https://git.example.com/project.git")]
    url: String,
    /// The place of the path in `url`: `server`, or a VM, by process id, id or name.
    #[schema(value_type = Option<VmField>, example = "server")]
    from: Option<VmField>,
    /// The folder to create, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of `path`, and of `url` if `from` is given.
    path_encoding: Option<PathEncoding>,
    /// The branch to check out. Default: that of the remote.
    branch: Option<String>,
    /// Clone only this many commits of the history.
    depth: Option<u32>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

impl CloneBody {
    /// The source, if the server relays the clone: between two places, or from a remote into a VM, which then needs no
    /// network.
    fn relayed(&self, target: &Target, reach: &GitReach) -> Result<Option<CloneFrom>, Failure> {
        let Some(from) = &self.from else {
            let is_path = self.url.starts_with('/') || *target == Target::Workspace;
            return Ok((!is_path).then(|| CloneFrom::Url(self.url.clone(), reach.clone())));
        };
        let place = match RelayPlace::parse(&from.as_text()) {
            Some(RelayPlace::Server) => Target::Workspace,
            Some(RelayPlace::Vm(vm)) => Target::Vm(vm),
            None => return Err(Failure::unknown_vm(from.as_text())),
        };
        Ok(Some(CloneFrom::Place(place, path("url", &self.url, self.path_encoding)?)))
    }
}

/// Clone
///
/// Clones all branches and tags, with the source as the remote `origin`. Private and loopback addresses need permission
/// of the operator. With `from`, the source is a repository in the workspace or in a VM, and the server relays its
/// commits to the place `vm`; later pulls and pushes of the clone work in the same way. For a clone over https or ssh
/// into a VM, the server fetches the commits: no token enters the VM, and it needs no network. `from` also needs the
/// scope `git:read`, and each VM `swarm:exec`. A failed clone leaves nothing behind.
#[utoipa::path(
    post, path = "/api/git/clone", tag = "git", operation_id = "git_clone", security(("bearer" = ["git:write"])),
    request_body(content = CloneBody, example = json!({"url": "https://git.example.com/project.git", "path": "/srv/workspace/project"})),
    responses((status = 201, description = "The repository", body = Cloned), GitNetworkRefused)
)]
async fn clone_repository(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<CloneBody>,
) -> Created<Cloned> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let reach = state.reach(&caller).await?;
    let from = body.relayed(&chosen, &reach)?;
    let operation = GitClone {
        url: check_argument("url", body.url)?,
        path: path("path", &body.path, body.path_encoding)?,
        branch: body.branch,
        depth: depth(body.depth)?,
        // In a VM its own network decides, and no token enters it.
        reach: if chosen == Target::Workspace { reach } else { GitReach::default() },
    };
    created(match from {
        Some(from) => exchange::clone(&state.places, &caller, from, chosen, operation).await?,
        None => state.places.run(&caller, chosen, operation).await?,
    })
}

fn depth(depth: Option<u32>) -> Result<Option<u32>, Failure> {
    match depth {
        Some(0) => {
            Err(Failure::new(ErrorCode::InvalidValue, "`depth` is 0; it must be a whole number from 1"))
        }
        depth => Ok(depth),
    }
}
