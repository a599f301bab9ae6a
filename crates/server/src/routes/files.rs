//! `/api/files/read`: a file as JSON, or its bytes. The other operations on files are generic.

use axum::{extract::State, http::HeaderMap, response::Response};
use skep_api::{
    Call, ErrorCode,
    files::{ContentEncoding, ReadFile},
};
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, RefOr, Required, ResponseBuilder,
    path::{ParameterBuilder, ParameterIn},
    schema::Type,
};
use utoipa_axum::{
    router::{UtoipaMethodRouter, UtoipaMethodRouterExt},
    routes,
};

use super::{
    Routes, content,
    handle::ScopesOf,
    operations::{OperationRequest, route},
    raw::{self, FilesState},
    watch,
};
use crate::{
    error::Refusal,
    extract::Caller,
    negotiate::{MediaType, content_media_type},
};

pub(crate) fn routes(state: FilesState) -> Routes {
    vec![
        read_route(state.clone()),
        routes!(raw::write_raw).with_state(state.clone()),
        routes!(watch::watch).with_state(state),
    ]
}

async fn read(
    State(state): State<FilesState>,
    caller: Caller<ScopesOf<ReadFile>>,
    headers: HeaderMap,
    request: OperationRequest<ReadFile>,
) -> Result<Response, Refusal> {
    let OperationRequest { operation, target, .. } = request;
    if content_media_type(&headers)? == MediaType::Raw {
        let ReadFile { path, encoding, offset, limit } = operation;
        if encoding != ContentEncoding::default() || offset != 0 || limit.is_some() {
            let message =
                "`encoding`, `offset` and `limit` are for JSON; use `Range` for a part of the raw bytes";
            return Err(Refusal::new(ErrorCode::InvalidValue, message));
        }
        return raw::read(&state, &caller, target, path, &headers).await;
    }
    content::answer(state.runner.run(&caller, target, Call::from(operation)).await?).await
}

/// The route, whose description has the raw bytes too.
fn read_route(state: FilesState) -> UtoipaMethodRouter {
    const RAW: &str = "application/octet-stream";
    let (schemas, mut paths, router) = route::<ReadFile, _, _, _>(read, state);
    let bytes = |example: &str| {
        let text = ObjectBuilder::new().schema_type(Type::String);
        ContentBuilder::new().schema(Some(text)).example(Some(example.into())).build()
    };
    for operation in paths.paths.values_mut().filter_map(|item| item.get.as_mut()) {
        if let Some(RefOr::T(whole)) = operation.responses.responses.get_mut("200") {
            whole.content.insert(RAW.to_owned(), bytes("# Notes\n").into());
        }
        let part = ResponseBuilder::new().description("A part of the bytes").content(RAW, bytes("# No"));
        operation.responses.responses.insert("206".to_owned(), part.build().into());
        let headers = [
            ("Range", "One part, such as `bytes=0-1023`; for raw bytes only"),
            ("If-Range", "Ignore `Range` unless the file has this tag"),
        ];
        operation.parameters.get_or_insert_default().extend(headers.map(|(name, description)| {
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Header)
                .required(Required::False)
                .description(Some(description))
                .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
                .build()
                .into()
        }));
    }
    (schemas, paths, router)
}
