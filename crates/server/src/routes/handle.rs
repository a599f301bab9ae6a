//! Serves endpoints: checks the caller, reads the operation from the request, and writes the answer.

use std::{future::Future, marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRequestParts, Request as HttpRequest, State},
    handler::Handler,
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter},
};
use http::StatusCode;
use skep_api::{
    Endpoint, Scope,
    endpoint::{Access, Method, PathFields, Success},
};
use utoipa::{
    ToSchema,
    openapi::{RefOr, path::Paths, schema::Schema},
};
use utoipa_axum::router::{UtoipaMethodRouter, UtoipaMethodRouterExt};

use crate::{
    auth::Identity,
    body::{BodyLimit, read_request},
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, Requirement, segments},
    json::Json,
    openapi::endpoint::describe,
};

/// An endpoint that the server answers itself, with JSON.
pub(crate) trait Handle: Endpoint {
    /// What the operations of a subject need of the server.
    type State: Clone + Send + Sync + 'static;

    /// Carries out the operation. The caller has the scopes of the route, and the operation is checked.
    fn handle(
        self,
        state: Self::State,
        request: Request<Self::Path>,
    ) -> impl Future<Output = Result<Self::Answer, Refusal>> + Send;
}

/// The request that an operation arrived with.
#[derive(Debug)]
pub(crate) struct Request<P> {
    /// The variable segments of its path.
    pub path: P,
    pub caller: Arc<Identity>,
    pub info: RequestInfo,
}

impl<P> Request<P> {
    /// The id of the request, as it is stored.
    pub(crate) fn id(&self) -> Option<String> {
        Some(self.info.id.as_str().to_owned())
    }
}

/// The routes of endpoints, which share a state.
macro_rules! endpoints {
    ($state:expr; $($operation:ty),+ $(,)?) => {
        vec![$($crate::routes::handle::answered::<$operation>($state.clone())),+]
    };
}
pub(super) use endpoints;

/// The route of an endpoint that the server answers itself.
pub(super) fn answered<O>(state: O::State) -> UtoipaMethodRouter
where
    O: Handle + ToSchema,
    O::Answer: ToSchema,
{
    const {
        assert!(
            !matches!(O::ROUTE.access, Access::Public),
            "`Handle` passes on the caller, whose key it needs"
        )
    }
    route::<O, _, _, _>(describe::<O>(), answer::<O>, state)
}

/// The route of an endpoint with this description and this handler.
pub(super) fn route<O, H, T, S>(
    (schemas, paths): (Vec<(String, RefOr<Schema>)>, Paths),
    handler: H,
    state: S,
) -> UtoipaMethodRouter
where
    O: Endpoint,
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    let filter = match O::ROUTE.method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Patch => MethodFilter::PATCH,
        Method::Delete => MethodFilter::DELETE,
    };
    (schemas, paths, MethodRouter::new().on(filter, handler)).with_state(state)
}

/// The scopes of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScopesOf<O>(PhantomData<O>);

impl<O: Endpoint> Requirement for ScopesOf<O> {
    const SCOPES: &'static [Scope] = O::ROUTE.access.scopes();
    const VM_KEYS: bool = matches!(O::ROUTE.access, Access::AnyKey(_));
}

async fn answer<O: Handle>(State(state): State<O::State>, request: HttpRequest) -> Result<Response, Refusal> {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<ScopesOf<O>>::from_request_parts(&mut parts, &()).await?.identity();
    let info = RequestInfo::from_request_parts(&mut parts, &()).await?;
    let segments = if O::Path::FIELDS.is_empty() { Vec::new() } else { segments(&mut parts).await? };
    let operation: O = if O::ROUTE.method.has_body() {
        Query::<NoParameters>::from_request_parts(&mut parts, &()).await?;
        read_request(HttpRequest::from_parts(parts, body), BodyLimit::of_route(&O::ROUTE)).await?
    } else {
        Query::from_request_parts(&mut parts, &()).await?.0
    };
    operation.check()?;
    let path = O::Path::parse(&segments)?;
    Ok(respond::<O>(operation.handle(state, Request { path, caller, info }).await?))
}

pub(super) fn respond<O: Endpoint>(answer: O::Answer) -> Response {
    let status = match O::ROUTE.success {
        Success::Created(_) => StatusCode::CREATED,
        Success::Accepted(_) => StatusCode::ACCEPTED,
        Success::Either { .. } if O::has_created(&answer) => StatusCode::CREATED,
        Success::Done(_) | Success::Either { .. } => StatusCode::OK,
    };
    (status, Json(answer)).into_response()
}
