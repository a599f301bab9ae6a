//! Refusals as HTTP responses. Only this module maps kinds of refusals to status codes.

use std::error::Error as StdError;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use skep_accounts::redact_keys;
use skep_api::{ErrorBody, ErrorCode, ErrorKind, Failure, exec::StreamRefusal};

/// The header that carries the stable code of a refusal.
pub const SKEP_ERROR: HeaderName = HeaderName::from_static("skep-error");

/// Seconds after which a caller should retry a refusal for lack of capacity or by a rate limit.
const RETRY_AFTER_SECONDS: &str = "5";

/// The message of every internal error: its cause is only logged.
const INTERNAL: &str = "internal error";

/// A refusal: the message for the caller, and the cause for the log.
#[derive(Debug)]
pub(crate) struct Refusal {
    failure: Failure,
    cause: Option<String>,
    headers: Option<Box<HeaderMap>>,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Failure::new(code, message).into()
    }

    /// An internal error. The cause goes to the log, never to the caller.
    pub(crate) fn internal(cause: impl Into<String>) -> Self {
        Self {
            failure: Failure::new(ErrorCode::Internal, INTERNAL),
            cause: Some(cause.into()),
            headers: None,
        }
    }

    /// Adds headers to the answer, in place of those that its status implies.
    pub(crate) fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers = Some(Box::new(headers));
        self
    }

    /// Combines the failure and the cause of an inner layer's error.
    fn from_parts(failure: Failure, cause: String) -> Self {
        match failure.kind() {
            ErrorKind::Internal => Self::internal(cause),
            // A cause that equals the caller's message adds nothing to the log.
            ErrorKind::Unavailable if cause != failure.message => {
                Self { failure, cause: Some(cause), headers: None }
            }
            _ => Self { failure, cause: None, headers: None },
        }
    }

    /// The cause, for the log only.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// What the caller reads as the last event of a stream. Logs the cause, because the request log has no more of a
    /// stream than its beginning; `of` names the stream there, such as `a command`.
    pub(crate) fn log_and_end_stream(&self, of: &'static str) -> StreamRefusal {
        if let Some(cause) = self.cause() {
            tracing::error!("the stream of {of} ended with an error: {}", redact_keys(cause));
        }
        let Failure { code, message } = &self.failure;
        StreamRefusal {
            error: reason_phrase(code.kind()).to_owned(),
            message: redact_keys(message).into_owned(),
            code: *code,
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        if failure.kind() == ErrorKind::Internal {
            return Self::internal(failure.message);
        }
        Self { failure, cause: None, headers: None }
    }
}

impl From<skep_accounts::Error> for Refusal {
    fn from(refusal: skep_accounts::Error) -> Self {
        Failure::from(refusal).into()
    }
}

impl From<skep_tickets::Error> for Refusal {
    fn from(refusal: skep_tickets::Error) -> Self {
        Failure::from(refusal).into()
    }
}

impl From<skep_store::Error> for Refusal {
    fn from(error: skep_store::Error) -> Self {
        let cause = error_chain(&error);
        Self::from_parts(error.into(), cause)
    }
}

impl From<skep_swarm::Error> for Refusal {
    fn from(error: skep_swarm::Error) -> Self {
        let cause = error_chain(&error);
        Self::from_parts(error.into(), cause)
    }
}

/// An error and all its sources on one line.
fn error_chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let message = inner.to_string();
        // A transparent variant repeats the text of its source.
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        source = inner.source();
    }
    text
}

/// Why a request failed, for the log. It is an extension of the response and not sent.
#[derive(Debug, Clone)]
pub(crate) struct Cause(pub(crate) String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = error_response(status_of(self.failure.kind()), &self.failure);
        if let Some(headers) = self.headers {
            response.headers_mut().extend(*headers);
        }
        if let Some(cause) = self.cause {
            response.extensions_mut().insert(Cause(redact_keys(&cause).into_owned()));
        }
        response
    }
}

fn error_response(status: StatusCode, failure: &Failure) -> Response {
    let mut response = Response::new(Body::from(body_of(status, &failure.message)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(SKEP_ERROR, HeaderValue::from_static(failure.code.as_str()));
    add_standard_headers(headers, status);
    response
}

fn add_standard_headers(headers: &mut HeaderMap, status: StatusCode) {
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"skep\""));
        }
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        _ => {}
    }
}

/// The reason phrase in the field `error` of the body.
pub(crate) fn reason_phrase(kind: ErrorKind) -> &'static str {
    status_of(kind).canonical_reason().unwrap_or("Error")
}

fn body_of(status: StatusCode, message: &str) -> String {
    let error = status.canonical_reason().unwrap_or("Error");
    // A message may repeat input of the caller, which may be a key in the wrong field: keys are redacted.
    let body = ErrorBody { error: error.to_owned(), message: redact_keys(message).into_owned() };
    // Two strings always serialize.
    serde_json::to_string(&body).unwrap_or_default()
}

const fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::BadRequest => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorKind::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
        ErrorKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::GuestTimeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// The number of the status, for the OpenAPI document.
pub(crate) fn status_number(kind: ErrorKind) -> u16 {
    status_of(kind).as_u16()
}

/// Replaces the body of an error response of the framework by one in the API's format; other responses pass unchanged.
pub(crate) fn normalize_error(response: Response) -> Response {
    let status = response.status();
    let refused = status.is_client_error() || status.is_server_error();
    if !refused || response.headers().contains_key(&SKEP_ERROR) {
        return response;
    }
    let (code, message) = framework_refusal(status, response.headers());
    let mut normalized = Refusal::new(code, message).into_response();
    if let Some(allow) = response.headers().get(ALLOW) {
        normalized.headers_mut().insert(ALLOW, allow.clone());
    }
    normalized
}

fn framework_refusal(status: StatusCode, headers: &HeaderMap) -> (ErrorCode, String) {
    match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            let allow = headers.get(ALLOW).and_then(|value| value.to_str().ok()).unwrap_or("none");
            (ErrorCode::MethodNotAllowed, format!("this path does not take that method; it takes {allow}"))
        }
        StatusCode::NOT_FOUND => (ErrorCode::UnknownRoute, UNKNOWN_ROUTE.to_owned()),
        StatusCode::PAYLOAD_TOO_LARGE => {
            (ErrorCode::BodyTooLarge, "the body is too large; send less".to_owned())
        }
        _ if status.is_client_error() => {
            let message =
                "the request is malformed; the OpenAPI document describes what each operation takes";
            (ErrorCode::MalformedRequest, message.to_owned())
        }
        _ => (ErrorCode::Internal, INTERNAL.to_owned()),
    }
}

/// The message for an unknown path.
pub(crate) const UNKNOWN_ROUTE: &str = "no such path; GET /api/openapi.json lists all paths";

/// The message for a request without https.
pub(crate) const HTTPS_REQUIRED: &str = "HTTPS required";

/// The code and the body of the answer to plain HTTP where TLS is expected.
pub(crate) fn https_required() -> (ErrorCode, String) {
    (ErrorCode::HttpsRequired, body_of(StatusCode::FORBIDDEN, HTTPS_REQUIRED))
}

/// Why the head of an HTTP/1.1 request was refused before the HTTP library parsed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadRefusal {
    /// It is not HTTP, or it is ambiguous.
    Malformed,
    /// Its path and query are too long.
    TargetTooLong,
    /// Its headers are too large, or too many.
    HeadersTooLarge,
}

impl IntoResponse for HeadRefusal {
    fn into_response(self) -> Response {
        let (status, message) = match self {
            Self::Malformed => (
                StatusCode::BAD_REQUEST,
                "the request is not HTTP/1.1 as it should be: check its path, its headers and their encoding",
            ),
            Self::TargetTooLong => {
                (StatusCode::URI_TOO_LONG, "the path and query are too long; shorten them")
            }
            Self::HeadersTooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the headers are too large or too many; send fewer",
            ),
        };
        error_response(status, &Failure::new(ErrorCode::MalformedRequest, message))
    }
}

#[cfg(test)]
mod tests {
    use skep_accounts::KeySecret;
    use skep_api::Environment;

    use super::*;

    #[test]
    fn every_code_has_a_status_that_is_an_error() {
        for code in ErrorCode::ALL {
            let response = Refusal::new(*code, "why").into_response();
            assert!(response.status().as_u16() >= 400, "{code:?}");
            assert_eq!(response.headers()[SKEP_ERROR], code.as_str());
        }
    }

    #[test]
    fn an_internal_error_does_not_reveal_its_cause() {
        let refusal = Refusal::from(Failure::new(ErrorCode::Internal, "/secret/path is gone"));
        assert_eq!(refusal.failure().message, "internal error");
        assert_eq!(refusal.cause.as_deref(), Some("/secret/path is gone"));
    }

    #[test]
    fn a_key_in_a_message_is_redacted_in_a_body_and_at_the_end_of_a_stream() {
        let secret = KeySecret::from_random(Environment::ALL[0], [7; 32]);
        let key = secret.expose();
        let refusal = Refusal::new(ErrorCode::InvalidValue, format!("`{key}` is no name"));
        let of_stream = refusal.log_and_end_stream("a test").message;
        let of_body = body_of(StatusCode::BAD_REQUEST, &refusal.failure().message);
        for text in [of_stream, of_body] {
            assert!(!text.contains(key) && text.contains("is no name"), "{text}");
        }
    }

    #[test]
    fn temporary_refusals_have_retry_after() {
        let response = Refusal::new(ErrorCode::NoCapacity, "full").into_response();
        assert!(response.headers().contains_key(RETRY_AFTER));
        let response = Refusal::new(ErrorCode::InvalidToken, "Invalid token").into_response();
        assert!(response.headers().contains_key(WWW_AUTHENTICATE));
    }
}
