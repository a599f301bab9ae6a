//! Serves endpoints: checks the caller, reads the operation from the request, and writes the answer.

use std::{future::Future, marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRequest, FromRequestParts, Request as HttpRequest, State},
    handler::Handler,
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter},
};
use http::StatusCode;
use skep_api::{
    Endpoint, Failure, Scope,
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
    extract::{Caller, NoParameters, Query, RequestInfo, Requirement, Segments},
    json::Json,
    openapi::endpoint::describe,
};

/// An endpoint that the server answers itself, with JSON. `S` is what the operations of a subject need of the server.
pub(crate) trait Handle<S>: Endpoint {
    /// Carries out the operation. The caller has the scopes of the route, and the operation is checked.
    fn handle(
        self,
        state: S,
        request: Request<Self::Path>,
    ) -> impl Future<Output = Result<Self::Answer, Refusal>> + Send;
}

/// The request that an operation arrived with.
#[derive(Debug)]
pub(crate) struct Request<P> {
    pub caller: Arc<Identity>,
    pub info: RequestInfo,
    /// The variable segments of its path.
    segments: Vec<String>,
    of: PhantomData<P>,
}

impl<P: PathFields> Request<P> {
    /// The resource that the path names. Handlers call this once they have checked the fields, because a wrong field is
    /// reported before a resource that does not exist.
    ///
    /// # Errors
    /// Those of [`PathFields::parse`].
    pub(crate) fn path(&self) -> Result<P, Failure> {
        P::parse(&self.segments)
    }

    /// The id of the request.
    pub(crate) fn id(&self) -> &str {
        self.info.id.as_str()
    }
}

/// An operation that is read from a request, and checked.
#[derive(Debug)]
pub(crate) struct Operation<O>(pub O);

impl<O: Endpoint, S: Send + Sync> FromRequest<S> for Operation<O> {
    type Rejection = Refusal;

    async fn from_request(request: HttpRequest, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let operation: O = if O::ROUTE.method.has_body() {
            Query::<NoParameters>::from_request_parts(&mut parts, state).await?;
            read_request(HttpRequest::from_parts(parts, body), BodyLimit::of_route(&O::ROUTE)).await?
        } else {
            Query::from_request_parts(&mut parts, state).await?.0
        };
        operation.check()?;
        Ok(Self(operation))
    }
}

/// The routes of endpoints, which share a state.
macro_rules! endpoints {
    ($state:expr; $($operation:ty),+ $(,)?) => {
        vec![$($crate::routes::handle::handled::<$operation, _>($state.clone())),+]
    };
}
pub(super) use endpoints;

/// The route of an endpoint that the server answers itself.
pub(super) fn handled<O, S>(state: S) -> UtoipaMethodRouter
where
    O: Handle<S> + ToSchema,
    O::Answer: ToSchema,
    S: Clone + Send + Sync + 'static,
{
    const {
        assert!(
            !matches!(O::ROUTE.access, Access::Public),
            "`Handle` passes on the caller; a public operation has none"
        )
    }
    route::<O, _, _, _>(describe::<O>(), serve::<O, S>, state)
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

/// The order of the arguments is the order of the checks.
async fn serve<O: Handle<S>, S>(
    State(state): State<S>,
    caller: Caller<ScopesOf<O>>,
    info: RequestInfo,
    Segments(segments): Segments,
    Operation(operation): Operation<O>,
) -> Result<Response, Refusal> {
    let request = Request { caller: caller.identity(), info, segments, of: PhantomData };
    Ok(respond::<O>(operation.handle(state, request).await?))
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
