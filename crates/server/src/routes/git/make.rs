//! How repositories are made.

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
    GitDesk,
    exchange::{self, CloneFrom},
    path, word, written,
};
use crate::{
    body::Body,
    extract::{Call, Caller, GitWrite, NoParameters, Query},
    openapi::refusals::{GitNetworkRefused, GitWriteRefused},
    places::Chosen,
    routes::{Created, Routes, created},
};

pub(super) fn routes(desk: &GitDesk) -> Routes {
    vec![routes!(init).with_state(desk.clone()), routes!(clone_repository).with_state(desk.clone())]
}

/// A repository to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct InitBody {
    /// Its folder, which is made where it is missing: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// Whether it has no work tree: others push to it.
    bare: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Make a repository
///
/// Its first branch is `main`. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/init", tag = "git", operation_id = "git_init", security(("bearer" = ["git:write"])),
    request_body(content = InitBody, example = json!({"path": "/srv/workspace/project"})),
    responses((status = 201, description = "The repository", body = Initialized), GitWriteRefused)
)]
async fn init(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<InitBody>,
) -> Created<Initialized> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation =
        GitInit { path: path("path", &body.path, body.path_encoding)?, bare: body.bare.unwrap_or(false) };
    created(desk.places.run(&caller, chosen, operation).await?)
}

/// What is cloned, and to where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CloneBody {
    /// `https://`, `ssh://`, or an absolute path below a root: in the place that `from` names, else in the place of the clone.
    #[schema(example = "https://git.example.com/project.git")]
    url: String,
    /// Where the repository at the path `url` is: `server`, or a VM, by process id, id or name.
    #[schema(value_type = Option<VmField>, example = "server")]
    from: Option<VmField>,
    /// The folder, which is made: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How `path` is written, and `url` beside `from`.
    path_encoding: Option<PathEncoding>,
    /// The branch that is checked out; the remote's own unless given.
    branch: Option<String>,
    /// Only so many commits of its history.
    depth: Option<u32>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

impl CloneBody {
    /// What is passed on by the server: between two places, and from a remote into a VM, which needs no network then.
    fn relayed(&self, target: &Chosen, reach: &GitReach) -> Result<Option<CloneFrom>, Failure> {
        let Some(from) = &self.from else {
            let is_path = self.url.starts_with('/') || *target == Chosen::Workspace;
            return Ok((!is_path).then(|| CloneFrom::Url(self.url.clone(), reach.clone())));
        };
        let place = match RelayPlace::parse(&from.as_text()) {
            Some(RelayPlace::Server) => Chosen::Workspace,
            Some(RelayPlace::Vm(vm)) => Chosen::Vm(vm),
            None => return Err(Failure::unknown_vm(from.as_text())),
        };
        Ok(Some(CloneFrom::Place(place, path("url", &self.url, self.path_encoding)?)))
    }
}

/// Clone
///
/// All branches and tags, with the source as the remote `origin`. Private and loopback addresses only where the operator
/// allows them. With `from` the source is a repository in the workspace or in a VM, and the server passes its commits on to
/// where `vm` says; a pull or a push with `vm` of such a clone does the same. What a VM clones by https or ssh, the server
/// fetches for it: no token enters the VM, and it needs no network. `from` needs the scope `git:read` besides, and each VM
/// `swarm:exec`. A clone that fails leaves nothing behind.
#[utoipa::path(
    post, path = "/api/git/clone", tag = "git", operation_id = "git_clone", security(("bearer" = ["git:write"])),
    request_body(content = CloneBody, example = json!({"url": "https://git.example.com/project.git", "path": "/srv/workspace/project"})),
    responses((status = 201, description = "The repository", body = Cloned), GitNetworkRefused)
)]
async fn clone_repository(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<CloneBody>,
) -> Created<Cloned> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let reach = desk.reach(&caller).await?;
    let from = body.relayed(&chosen, &reach)?;
    let operation = GitClone {
        url: word("url", body.url)?,
        path: path("path", &body.path, body.path_encoding)?,
        branch: body.branch,
        depth: depth(body.depth)?,
        // Of what is in a VM its own network decides, and no token enters it.
        reach: if chosen == Chosen::Workspace { reach } else { GitReach::default() },
    };
    created(match from {
        Some(from) => exchange::clone(&desk.places, &caller, from, chosen, operation).await?,
        None => desk.places.run(&caller, chosen, operation).await?,
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
