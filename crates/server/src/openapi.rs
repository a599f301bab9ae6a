//! The OpenAPI document: what the routes say of themselves, and what holds for all of them.

use skep_api::{ErrorBody, ErrorCode, ErrorKind, Failure, exec::StreamRefusal};
use utoipa::{
    OpenApi, ToSchema,
    openapi::{
        self, Content, HeaderBuilder, InfoBuilder, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Tag,
        path::Operation,
        schema::{Components, Type},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use crate::{error::status_number, request::API_VERSION, session::PLAIN_COOKIE};

/// The kinds of refusal that any operation may answer, and with what it needs to be possible.
const COMMON: &[(ErrorKind, Needs, &str)] = &[
    (ErrorKind::BadRequest, Needs::Nothing, "A parameter is missing, unknown or malformed"),
    (ErrorKind::Unauthenticated, Needs::Key, "`Missing token` or `Invalid token`"),
    (ErrorKind::Forbidden, Needs::Key, "`Token expired`, or the key lacks the scope"),
    (ErrorKind::TooLarge, Needs::Body, "The body is larger than 48 MiB"),
    (ErrorKind::UnsupportedMediaType, Needs::Body, "The body is not JSON"),
    (
        ErrorKind::RateLimited,
        Needs::Nothing,
        "Too many requests of this key or address, or too many wrong keys",
    ),
    (ErrorKind::Internal, Needs::Nothing, "A fault of ours; tell its `X-Request-Id`"),
    (ErrorKind::Unavailable, Needs::Key, "The store is away; try again after `Retry-After` seconds"),
];

/// The operation that needs the key itself.
const BEGINS_SESSION: &str = "create_session";

#[derive(PartialEq)]
enum Needs {
    Nothing,
    Key,
    Body,
}

#[derive(OpenApi)]
#[openapi(components(schemas(ErrorBody, StreamRefusal)))]
struct Shared;

/// The document without routes.
pub(crate) fn beginning() -> openapi::OpenApi {
    let mut document = Shared::openapi();
    document.info =
        InfoBuilder::new().title("skep").version(API_VERSION).description(Some(DESCRIPTION)).build();
    document.tags = Some(vec![
        tag("public", "Without a key"),
        tag("keys", "Keys, and who the caller is"),
        tag("accounts", "Tenants: each with keys, VMs and files that no other one sees"),
        tag("session", "Sessions of browsers"),
        tag("swarm", "MicroVMs, restored from a snapshot"),
        tag("exec", "Commands inside VMs"),
        tag("metrics", "What the server does, in figures"),
        tag("audit", "Who did what from where, and how it ended"),
        tag("waitlist", "Who asked to be told when there is room"),
    ]);
    let components = document.components.get_or_insert_with(Components::new);
    components.add_security_scheme(
        "bearer",
        SecurityScheme::Http(
            HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .description(Some(
                    "A key: `Authorization: Bearer sk-skep-...`. The scopes named are all needed.",
                ))
                .build(),
        ),
    );
    let cookie = ApiKeyValue::with_description(
        PLAIN_COOKIE,
        "What `POST /api/session` sets; under TLS its name is `__Host-skep_session`. It counts on requests of the same \
         origin alone. The scopes are those of its key.",
    );
    components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    components.schemas.insert("ErrorCode".to_owned(), codes());
    document
}

/// What a reader needs to know before the first call.
const DESCRIPTION: &str = "Boots microVMs for AI agents from a snapshot and runs commands in them.\n\n\
    Every refusal is `{error, message}` with its stable code in the header `Skep-Error`. Every answer carries \
    `X-Request-Id` and `Skep-Version`. An unknown field or query parameter is refused by name.\n\n\
    Behind a proxy that the server trusts, whatever did not come by https is 403 `HTTPS required`.";

fn tag(name: &str, description: &str) -> Tag {
    openapi::tag::TagBuilder::new().name(name).description(Some(description)).build()
}

/// The schema of `Skep-Error`: every code, and the status that it comes with.
fn codes() -> RefOr<openapi::schema::Schema> {
    let lines: Vec<String> = ErrorCode::ALL
        .iter()
        .map(|code| format!("- `{}`: {}", code.as_str(), status_number(code.kind())))
        .collect();
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(format!("The stable code of a refusal, and its status:\n{}", lines.join("\n"))))
        .enum_values(Some(ErrorCode::ALL.iter().map(|code| code.as_str())))
        .into()
}

/// Adds to every operation what all of them answer.
pub(crate) fn complete(document: &mut openapi::OpenApi) {
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
            &mut item.patch,
            &mut item.head,
            &mut item.options,
            &mut item.trace,
        ];
        operations.into_iter().flatten().for_each(complete_operation);
    }
}

fn complete_operation(operation: &mut Operation) {
    let has_key = !is_public(operation);
    let has_body = operation.request_body.is_some();
    add_session(operation);
    for (kind, needs, description) in COMMON {
        let possible = match needs {
            Needs::Nothing => true,
            Needs::Key => has_key,
            Needs::Body => has_body,
        };
        let status = status_number(*kind).to_string();
        if possible && !operation.responses.responses.contains_key(&status) {
            let response = ResponseBuilder::new()
                .description(*description)
                .content("application/json", Content::new(Some(Ref::from_schema_name(ErrorBody::name()))))
                .build();
            operation.responses.responses.insert(status, response.into());
        }
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response {
            add_headers(status, response);
        }
    }
}

/// What takes a key takes a session in its place, but for the operation that begins one.
fn add_session(operation: &mut Operation) {
    if is_public(operation) || operation.operation_id.as_deref() == Some(BEGINS_SESSION) {
        return;
    }
    let Some(security) = &mut operation.security else { return };
    // Their scopes can be read in no other way.
    let scopes = security.first().and_then(|one| serde_json::to_value(one).ok());
    let scopes =
        scopes.and_then(|one| serde_json::from_value::<Vec<String>>(one.get("bearer")?.clone()).ok());
    security.push(SecurityRequirement::new("session", scopes.unwrap_or_default()));
}

fn add_headers(status: &str, response: &mut Response) {
    let mut add = |name: &str, description: &str, schema: RefOr<openapi::schema::Schema>| {
        let header = HeaderBuilder::new().description(Some(description)).schema(Some(schema)).build();
        response.headers.insert(name.to_owned(), header.into());
    };
    let text = || RefOr::from(ObjectBuilder::new().schema_type(Type::String));
    add("X-Request-Id", "The caller's, where it is `[A-Za-z0-9._-]{1,128}`, else a new one", text());
    add("Skep-Version", "The version of the API", text());
    if status.starts_with(['4', '5']) {
        add("Skep-Error", "The stable code", Ref::from_schema_name("ErrorCode").into());
    }
    if status == "429" {
        add("RateLimit", "What is left, and in how many seconds there is more: `\"key\";r=0;t=7`", text());
        add("RateLimit-Policy", "The limit: how many in how many seconds: `\"key\";q=60;w=60`", text());
    }
    if matches!(status, "429" | "503") {
        add("Retry-After", "Seconds", ObjectBuilder::new().schema_type(Type::Integer).into());
    }
}

/// Whether an operation says that it needs no key.
pub(crate) fn is_public(operation: &Operation) -> bool {
    operation.security.as_ref().is_some_and(|list| list.iter().all(|one| *one == Default::default()))
}

/// The document as it is served.
///
/// # Errors
/// A fault of ours where it cannot be written as JSON.
pub(crate) fn text(document: &openapi::OpenApi) -> Result<String, Failure> {
    document.to_json().map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
}
