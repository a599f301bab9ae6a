//! Serves the operations on files and repositories, of the server's workspace or of a VM: one generic route for all that
//! take JSON and answer with JSON.

mod exchange;
mod relayed;
mod remote;
mod request;

use std::sync::Arc;

use axum::{extract::State, handler::Handler, response::Response};
use skep_api::{
    Call, CallContext, WorkspaceEndpoint, for_each_workspace_endpoint,
    git::{GitReach, Person},
};
use skep_workspace::Run;
use utoipa::ToSchema;
use utoipa_axum::router::UtoipaMethodRouter;

pub(crate) use self::request::{OperationRequest, precondition};
use super::{
    Routes,
    handle::{self, ScopesOf, respond},
};
use crate::{
    auth::Identity,
    error::Refusal,
    extract::Caller,
    openapi::endpoint::describe_on_workspace,
    operation_runner::{OperationRunner, Target},
    vault::Vault,
};

#[derive(Clone)]
pub(crate) struct OperationsState {
    pub runner: OperationRunner,
    pub vault: Vault,
    /// Private addresses and hosts that git may reach.
    pub allow: Arc<[String]>,
    /// Networks and hosts that nothing reaches.
    pub deny: Arc<[String]>,
}

pub(crate) fn routes(state: &OperationsState) -> Routes {
    use skep_api::{files, git};

    macro_rules! generic {
        ([$($generic:path),* $(,)?] [$($special:path),* $(,)?]) => {
            vec![$(route::<$generic, _, _, _>(serve::<$generic>, state.clone())),*]
        };
    }
    let mut all = for_each_workspace_endpoint!(generic);
    all.extend(relayed::routes(state));
    all
}

/// The route of an operation on a workspace.
pub(super) fn route<O, H, T, S>(handler: H, state: S) -> UtoipaMethodRouter
where
    O: WorkspaceEndpoint + ToSchema,
    O::Answer: ToSchema,
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    handle::route::<O, _, _, _>(describe_on_workspace::<O>(), handler, state)
}

async fn serve<O>(
    State(state): State<OperationsState>,
    caller: Caller<ScopesOf<O>>,
    request: OperationRequest<O>,
) -> Result<Response, Refusal>
where
    O: WorkspaceEndpoint + Run,
{
    let OperationRequest { operation, target, condition } = request;
    let reach = match target {
        Target::Workspace if O::ROUTE.uses_network => state.reach(&caller).await?,
        // The operator's hosts and the credentials are for the server only.
        _ => GitReach::default(),
    };
    let context = CallContext { committer: key_as_person(&caller), reach, condition };
    let answer = state.runner.run(&caller, target, Call { context, operation }).await?;
    Ok(respond::<O>(answer))
}

impl OperationsState {
    /// The hosts that git on the server may reach, and its credentials.
    async fn reach(&self, caller: &Identity) -> Result<GitReach, Refusal> {
        let credentials = self.vault.open(caller.account.id).await?;
        let (allow, deny) = (self.allow.to_vec(), self.deny.to_vec());
        Ok(GitReach { allow, deny, anywhere: false, policy: None, credentials })
    }
}

/// The committer of commits, derived from the calling key.
fn key_as_person(caller: &Identity) -> Person {
    let is_stripped_by_git = |character: char| character <= ' ' || ".,:;<>\"\\'".contains(character);
    let name = if caller.key.name.chars().all(is_stripped_by_git) {
        "skep".to_owned()
    } else {
        caller.key.name.clone()
    };
    Person { name, email: format!("{}@skep.invalid", caller.key.id) }
}
