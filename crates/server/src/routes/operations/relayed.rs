//! Push, pull, fetch and clone, whose commits the server relays where the repository or its remote is in a VM.

use axum::{extract::State, response::Response};
use skep_api::{
    AbsolutePath, Call, CallContext, Failure, WorkspaceEndpoint,
    git::{GitClone, GitFetchRemote, GitPull, GitPush, RelayPlace},
    path::PathEncoding,
};

use super::{
    OperationRequest, OperationsState,
    exchange::{self, CloneFrom},
    key_as_person, route,
};
use crate::{
    auth::Identity,
    error::Refusal,
    extract::Caller,
    operation_runner::Target,
    routes::{
        Routes,
        handle::{ScopesOf, respond},
    },
};

pub(super) fn routes(state: &OperationsState) -> Routes {
    vec![
        route::<GitPush, _, _, _>(push, state.clone()),
        route::<GitPull, _, _, _>(pull, state.clone()),
        route::<GitFetchRemote, _, _, _>(fetch, state.clone()),
        route::<GitClone, _, _, _>(clone, state.clone()),
    ]
}

async fn push(
    State(state): State<OperationsState>,
    caller: Caller<ScopesOf<GitPush>>,
    request: OperationRequest<GitPush>,
) -> Result<Response, Refusal> {
    let (target, call) = with_context(&state, &caller, request).await?;
    Ok(respond::<GitPush>(exchange::push(&state.runner, &caller, target, call).await?))
}

async fn pull(
    State(state): State<OperationsState>,
    caller: Caller<ScopesOf<GitPull>>,
    request: OperationRequest<GitPull>,
) -> Result<Response, Refusal> {
    let (target, call) = with_context(&state, &caller, request).await?;
    Ok(respond::<GitPull>(exchange::pull(&state.runner, &caller, target, call).await?))
}

async fn fetch(
    State(state): State<OperationsState>,
    caller: Caller<ScopesOf<GitFetchRemote>>,
    request: OperationRequest<GitFetchRemote>,
) -> Result<Response, Refusal> {
    let (target, call) = with_context(&state, &caller, request).await?;
    Ok(respond::<GitFetchRemote>(exchange::fetch(&state.runner, &caller, target, call).await?))
}

async fn clone(
    State(state): State<OperationsState>,
    caller: Caller<ScopesOf<GitClone>>,
    request: OperationRequest<GitClone>,
) -> Result<Response, Refusal> {
    let (target, call) = with_context(&state, &caller, request).await?;
    let cloned = match relayed_source(&call.operation, &target)? {
        Some(from) => exchange::clone(&state.runner, &caller, from, target, call).await?,
        None => state.runner.run(&caller, target.clone(), exchange::for_target(call, &target)).await?,
    };
    Ok(respond::<GitClone>(cloned))
}

/// The operation with the reach of the server, which the exchange uses on the server only.
async fn with_context<O: WorkspaceEndpoint>(
    state: &OperationsState,
    caller: &Identity,
    request: OperationRequest<O>,
) -> Result<(Target, Call<O>), Refusal> {
    let OperationRequest { operation, target, condition } = request;
    let (committer, reach) = (key_as_person(caller), state.reach(caller).await?);
    Ok((target, Call { context: CallContext { committer, reach, condition }, operation }))
}

/// The source of a clone that the server relays: between two places, or from a remote into a VM, which then needs no
/// network.
fn relayed_source(clone: &GitClone, target: &Target) -> Result<Option<CloneFrom>, Failure> {
    let Some(from) = &clone.from else {
        let is_path = clone.url.starts_with('/') || *target == Target::Workspace;
        return Ok((!is_path).then(|| CloneFrom::Url(clone.url.clone())));
    };
    let place = match RelayPlace::parse(&from.as_text()) {
        Some(RelayPlace::Server) => Target::Workspace,
        Some(RelayPlace::Vm(vm)) => Target::Vm(vm),
        None => return Err(Failure::unknown_vm(from.as_text())),
    };
    Ok(Some(CloneFrom::Place(place, AbsolutePath::parse("url", &clone.url, PathEncoding::Percent)?)))
}
