//! Serves the operations on files and repositories, of the server's workspace or of a VM: one generic route for all that
//! take JSON and answer with JSON.

mod exchange;
mod relayed;
mod remote;
mod request;

use std::{marker::PhantomData, sync::Arc};

use axum::{
    extract::State,
    handler::Handler,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter},
};
use skep_api::{
    Call, CallContext, Endpoint, Scope,
    endpoint::Method,
    for_each_endpoint,
    git::{GitReach, Person},
};
use skep_workspace::Run;
use utoipa::ToSchema;
use utoipa_axum::router::{UtoipaMethodRouter, UtoipaMethodRouterExt};

pub(crate) use self::request::{OperationRequest, precondition};
use super::Routes;
use crate::{
    auth::Identity,
    error::Refusal,
    extract::{Caller, Requirement},
    json::Json,
    openapi::endpoint::describe,
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
    let mut all = for_each_endpoint!(generic);
    all.extend(relayed::routes(state));
    all
}

/// The route of an endpoint, with its description.
pub(super) fn route<O, H, T, S>(handler: H, state: S) -> UtoipaMethodRouter
where
    O: Endpoint + ToSchema,
    O::Answer: ToSchema,
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    let filter = match O::ROUTE.method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    };
    let (schemas, paths) = describe::<O>();
    (schemas, paths, MethodRouter::new().on(filter, handler)).with_state(state)
}

/// The scopes of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScopesOf<O>(PhantomData<O>);

impl<O: Endpoint + 'static> Requirement for ScopesOf<O> {
    const SCOPES: &'static [Scope] = O::ROUTE.scopes;
    const VM_KEYS: bool = true;
}

async fn serve<O>(
    State(state): State<OperationsState>,
    caller: Caller<ScopesOf<O>>,
    request: OperationRequest<O>,
) -> Result<Response, Refusal>
where
    O: Endpoint + Run + 'static,
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

fn respond<O: Endpoint>(answer: O::Answer) -> Response {
    let status = if O::has_created(&answer) { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(answer)).into_response()
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
