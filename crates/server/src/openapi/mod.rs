//! The OpenAPI document: the descriptions of the routes, completed with what holds for all of them.

mod constraints;
pub(crate) mod endpoint;
mod examples;
mod integers;
mod messages;
mod parts;
pub(crate) mod refusals;
mod streams;

use std::collections::BTreeMap;

use http::Method;
use skep_api::{
    ErrorBody, ErrorCode, Failure,
    events::{CurrentTicket, KeyEvent, StreamGap, TemplateEvent, VmEvent},
    exec::{ExecData, ExecExit, StreamRefusal},
    exec_stream::{ExecControl, ExecNotice},
    run_log::LogEnd,
    tickets::TicketEvent,
};
use utoipa::{
    OpenApi, ToSchema,
    openapi::{
        self, ContentBuilder, HeaderBuilder, InfoBuilder, ObjectBuilder, Ref, RefOr, Required, Response, Tag,
        example::{Example, ExampleBuilder},
        path::{Operation, Parameter, ParameterBuilder, ParameterIn},
        schema::{Components, Type},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use self::refusals::example_message;
use crate::{
    body::BodyLimit,
    error::{reason_phrase, status_number},
    request::API_VERSION,
    session::PLAIN_COOKIE,
};

/// The refusals that many operations share, and their preconditions.
const COMMON: &[(ErrorCode, Needs)] = &[
    (ErrorCode::MalformedRequest, Needs::Nothing),
    (ErrorCode::UnknownField, Needs::Nothing),
    (ErrorCode::InvalidValue, Needs::Parameters),
    (ErrorCode::MissingParameter, Needs::Required),
    (ErrorCode::MalformedBody, Needs::Body),
    (ErrorCode::MissingToken, Needs::Key),
    (ErrorCode::InvalidToken, Needs::Key),
    (ErrorCode::TokenExpired, Needs::Key),
    (ErrorCode::ScopeMissing, Needs::Scope),
    (ErrorCode::VmKeyLimited, Needs::Key),
    (ErrorCode::AddressNotAllowed, Needs::Key),
    (ErrorCode::HttpsRequired, Needs::Nothing),
    (ErrorCode::VmKeyRequired, Needs::Nothing),
    (ErrorCode::NotAcceptable, Needs::Nothing),
    (ErrorCode::BodyTooLarge, Needs::Body),
    (ErrorCode::NotJson, Needs::Body),
    (ErrorCode::RateLimited, Needs::Nothing),
    (ErrorCode::Internal, Needs::Nothing),
    (ErrorCode::StoreUnavailable, Needs::Key),
    (ErrorCode::Overloaded, Needs::Nothing),
];

/// The operation that takes a key, but no session.
const CREATE_SESSION: &str = "create_session";

#[derive(Debug, Clone, Copy)]
enum Needs {
    Nothing,
    Key,
    Scope,
    /// A query or a body.
    Parameters,
    /// A required query parameter or body.
    Required,
    Body,
}

#[derive(OpenApi)]
#[openapi(components(schemas(
    ErrorBody,
    ExecData,
    LogEnd,
    ExecExit,
    ExecControl,
    ExecNotice,
    StreamRefusal,
    TicketEvent,
    VmEvent,
    TemplateEvent,
    KeyEvent,
    CurrentTicket,
    StreamGap
)))]
struct Shared;

pub(crate) fn base_document() -> openapi::OpenApi {
    let mut document = Shared::openapi();
    document.info =
        InfoBuilder::new().title("skep").version(API_VERSION).description(Some(DESCRIPTION)).build();
    document.tags = Some(vec![
        tag("public", "Operations that need no key"),
        tag("keys", "API keys, and the identity of the caller"),
        tag("accounts", "Tenants: each has its own keys, VMs and files, which no other account sees"),
        tag("session", "Browser sessions"),
        tag("swarm", "MicroVMs, restored from a snapshot"),
        tag("templates", "The snapshots that VMs are restored from"),
        tag("files", "Files of the workspace, or of a VM"),
        tag("git", "Git repositories of the workspace, or of a VM"),
        tag("exec", "Commands, on the server or inside VMs"),
        tag("server", "The server itself"),
        tag("tickets", "Units of work: their order, who works on them, and their results"),
        tag("events", "A live stream of events"),
        tag("webhooks", "Delivery of events to endpoints of the account"),
        tag("metrics", "Prometheus metrics"),
        tag("audit", "The audit log: who did what, from where, and with which outcome"),
        tag("waitlist", "People who asked to be notified when there is room"),
    ]);
    let components = document.components.get_or_insert_with(Components::new);
    components.add_security_scheme(
        "bearer",
        SecurityScheme::Http(
            HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .description(Some(
                    "A key: `Authorization: Bearer sk-skep-...`. All scopes listed are needed.",
                ))
                .build(),
        ),
    );
    let cookie = ApiKeyValue::with_description(
        PLAIN_COOKIE,
        "The cookie that `POST /api/session` sets; under TLS its name is `__Host-skep_session`. It is accepted only on \
        same-origin requests. Its scopes are those of the key, but it neither creates nor rotates keys, and creates no login links.",
    );
    components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    components.schemas.insert("ErrorCode".to_owned(), error_code_schema());
    document
}

/// The introduction of the document.
const DESCRIPTION: &str = "Boots microVMs for AI agents from a snapshot and runs commands in them, or on the server.\n\n\
    Every refusal is `{error, message}` with its stable code in the header `Skep-Error`. Every answer carries \
    `X-Request-Id` and `Skep-Version`. An unknown field or query parameter is refused by name.\n\n\
    Behind a trusted proxy, a request that did not arrive over https is refused with 403 `HTTPS required`.\n\n\
    A VM that was booted for a ticket reaches this API over HTTP/1.1 at the address in its variable `SKEP_URL`, with its \
    own key, `SKEP_API_KEY`. At that address any other key is refused with 403 `vm_key_required`, `allowed_ips` is not \
    checked, and the health check is the only operation that is served without a key.";

fn tag(name: &str, description: &str) -> Tag {
    openapi::tag::TagBuilder::new().name(name).description(Some(description)).build()
}

/// The schema of `Skep-Error`: every code with its status.
fn error_code_schema() -> RefOr<openapi::schema::Schema> {
    let lines: Vec<String> = ErrorCode::ALL
        .iter()
        .map(|code| format!("- `{}` ({}): {}", code.as_str(), status_number(code.kind()), code.meaning()))
        .collect();
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(format!("The stable code of a refusal, and its status:\n{}", lines.join("\n"))))
        .enum_values(Some(ErrorCode::ALL.iter().map(|code| code.as_str())))
        .into()
}

/// Adds to every operation the refusals, headers and limits that all operations share.
pub(crate) fn complete(document: &mut openapi::OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let operations = [
            (Method::GET, &mut item.get),
            (Method::PUT, &mut item.put),
            (Method::POST, &mut item.post),
            (Method::DELETE, &mut item.delete),
            (Method::PATCH, &mut item.patch),
            (Method::HEAD, &mut item.head),
            (Method::OPTIONS, &mut item.options),
            (Method::TRACE, &mut item.trace),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                add_body_limit(operation, &method, path);
                complete_operation(operation);
            }
        }
    }
}

/// Adds the size limit of the JSON body of an operation. That of an endpoint is described with its body.
fn add_body_limit(operation: &mut Operation, method: &Method, path: &str) {
    let limit = BodyLimit::for_operation(method, path, is_public(operation));
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    let is_described = body.description.as_deref().is_some_and(|text| text.starts_with("At most "));
    if body.content.contains_key("application/json") && !is_described {
        let description = body.description.take().map_or_else(String::new, |text| format!("{text} "));
        body.description = Some(format!("{description}At most {limit}."));
    }
}

fn complete_operation(operation: &mut Operation) {
    add_session(operation);
    for (code, needs) in COMMON {
        if meets(operation, *needs) {
            add_code(operation, *code);
        }
    }
    operation.parameters.get_or_insert_default().push(request_id().into());
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response {
            describe_refusals(response);
            add_headers(status, response);
        }
    }
}

/// The header that every operation takes. An invalid value is replaced, not refused.
fn request_id() -> Parameter {
    ParameterBuilder::new()
        .name("X-Request-Id")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "The id of this request in answer, log and audit: `[A-Za-z0-9._-]{1,128}`; others are replaced",
        ))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .example(Some("deploy-17.3".into()))
        .build()
}

fn meets(operation: &Operation, needs: Needs) -> bool {
    let has_key = !is_public(operation);
    let body = operation.request_body.as_ref().and_then(inline_value);
    let parameters = operation.parameters.iter().flatten().filter_map(inline_value);
    let mut query = parameters.filter(|one| one.parameter_in == ParameterIn::Query);
    match needs {
        Needs::Nothing => true,
        Needs::Key => has_key,
        Needs::Scope => has_key && !scopes(operation).is_empty(),
        Needs::Parameters => body.is_some() || query.next().is_some(),
        Needs::Required => {
            let is_body_required = body.is_some_and(|body| body.required != Some(Required::False));
            is_body_required || query.any(|one| one.required == Required::True)
        }
        Needs::Body => body.is_some(),
    }
}

/// The inline value. This document uses no references here.
fn inline_value<T>(value: &RefOr<T>) -> Option<&T> {
    match value {
        RefOr::T(value) => Some(value),
        RefOr::Ref(_) => None,
    }
}

/// Adds a code to the response of its status.
fn add_code(operation: &mut Operation, code: ErrorCode) {
    let status = status_number(code.kind()).to_string();
    let response = operation
        .responses
        .responses
        .entry(status)
        .or_insert_with(|| refusals::response_with_codes(&[]).into());
    let RefOr::T(response) = response else { return };
    let mut codes = refusals::take_codes(response);
    if !codes.contains(&code) {
        codes.push(code);
    }
    response.extensions = refusals::response_with_codes(&codes).extensions;
}

/// Turns the codes of a response into its description, its header and an example of each code.
fn describe_refusals(response: &mut Response) {
    let codes = refusals::take_codes(response);
    if codes.is_empty() {
        return;
    }
    let lines = codes.iter().map(|code| format!("- `{}`: {}", code.as_str(), code.meaning()));
    response.description = lines.collect::<Vec<_>>().join("\n");
    let examples = codes.iter().map(|code| {
        let body = ErrorBody {
            error: reason_phrase(code.kind()).to_owned(),
            message: example_message(*code).to_owned(),
        };
        let example = ExampleBuilder::new().summary(code.meaning()).value(serde_json::to_value(body).ok());
        (code.as_str().to_owned(), example.build().into())
    });
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name())));
    let content = content.examples_from_iter(examples.collect::<BTreeMap<String, RefOr<Example>>>()).build();
    response.content.insert("application/json".to_owned(), content.into());
    let names = codes.iter().map(|code| code.as_str());
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names));
    let header = HeaderBuilder::new().description(Some("The stable code")).schema(Some(schema)).build();
    response.headers.insert("Skep-Error".to_owned(), header.into());
}

/// Every operation that takes a key also takes a session, except the one that creates a session.
fn add_session(operation: &mut Operation) {
    if is_public(operation) || operation.operation_id.as_deref() == Some(CREATE_SESSION) {
        return;
    }
    let all: Vec<Vec<String>> = operation.security.iter().flatten().map(scopes_of).collect();
    if let Some(security) = &mut operation.security {
        security.extend(all.into_iter().map(|scopes| SecurityRequirement::new("session", scopes)));
    }
}

/// The scopes that an operation needs. Of several alternatives, those of the first.
fn scopes(operation: &Operation) -> Vec<String> {
    operation.security.iter().flatten().map(scopes_of).next().unwrap_or_default()
}

// `SecurityRequirement` has no accessor, so it is read through its JSON.
fn scopes_of(requirement: &SecurityRequirement) -> Vec<String> {
    let written = serde_json::to_value(requirement).ok();
    written.and_then(|one| serde_json::from_value(one.get("bearer")?.clone()).ok()).unwrap_or_default()
}

fn add_headers(status: &str, response: &mut Response) {
    let mut add = |name: &str, description: &str, schema: RefOr<openapi::schema::Schema>| {
        let header = HeaderBuilder::new().description(Some(description)).schema(Some(schema)).build();
        response.headers.insert(name.to_owned(), header.into());
    };
    let text = || RefOr::from(ObjectBuilder::new().schema_type(Type::String));
    add(
        "X-Request-Id",
        "The id given by the caller if it is `[A-Za-z0-9._-]{1,128}`, else a new one",
        text(),
    );
    add("Skep-Version", "The version of the API", text());
    if status == "429" {
        add("RateLimit", "Requests left, and seconds until there are more: `\"key\";r=0;t=7`", text());
        add(
            "RateLimit-Policy",
            "The limit: requests, and the window in seconds: `\"key\";q=60;w=60`",
            text(),
        );
    }
    if matches!(status, "429" | "503") {
        add("Retry-After", "Seconds", ObjectBuilder::new().schema_type(Type::Integer).into());
    }
}

/// Whether an operation needs no key.
pub(crate) fn is_public(operation: &Operation) -> bool {
    operation.security.as_ref().is_some_and(|list| list.iter().all(|one| *one == Default::default()))
}

/// The final document as JSON.
///
/// # Errors
/// `internal` if it cannot be serialized, or if a constraint is for a part that it does not have.
pub(crate) fn to_json(document: &openapi::OpenApi) -> Result<String, Failure> {
    let value = serde_json::to_value(document);
    let mut value = value.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
    constraints::refine(&mut value).map_err(|missing| Failure::new(ErrorCode::Internal, missing))?;
    integers::widen_formats(&mut value);
    examples::add_examples(&mut value);
    Ok(value.to_string())
}
