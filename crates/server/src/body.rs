//! JSON bodies: read within a size limit, and refused with the name of the wrong field.

mod collect;
mod limits;
#[cfg(test)]
mod tests;
mod throughput;

use std::{fmt, ops::RangeInclusive, sync::Arc};

use axum::{
    body::HttpBody as _,
    extract::{FromRequest, MatchedPath, Request},
};
use bytes::Bytes;
use http::{HeaderMap, header::CONTENT_TYPE};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use skep_api::{ErrorCode, Failure};

use self::{
    collect::collect,
    limits::{MAX_VALUES, count_values},
};
pub(crate) use self::{
    limits::BodyLimit,
    throughput::{Throughput, too_slow},
};
use crate::{auth::Identity, error::Refusal};

/// Bodies larger than this, in bytes, are parsed on a blocking thread.
const LARGE_BYTES: usize = 64 << 10;

/// A JSON body deserialized into a request. An absent or empty body counts as `{}`.
#[derive(Debug)]
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let limit = limit_of(&request);
        read_request(request, limit).await.map(Self)
    }
}

/// Extracts nothing from a request that takes no body: the body must be absent, empty or `{}`.
#[derive(Debug)]
pub(crate) struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let Body(Nothing {}) = Body::from_request(request, state).await?;
        Ok(Self)
    }
}

/// A JSON object whose fields are not yet checked. No field occurs twice.
#[derive(Debug, Default)]
pub(crate) struct Object(Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Object {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let limit = limit_of(&request);
        let bytes = read_bytes(request, limit).await?;
        parse_body(bytes, Self::parse).await
    }
}

/// Reads a request from a JSON body; a large one is parsed on a blocking thread.
///
/// # Errors
/// Those of [`parse`]; `body_too_large`, `not_json`.
pub(crate) async fn read_request<T: DeserializeOwned + Send + 'static>(
    request: Request,
    limit: BodyLimit,
) -> Result<T, Refusal> {
    let bytes = read_bytes(request, limit).await?;
    parse_body(bytes, parse).await
}

/// Reads a JSON object, and converts it; a large one on a blocking thread.
///
/// # Errors
/// Those of [`Object::parse`] and of `convert`; `body_too_large`, `not_json`.
pub(crate) async fn read_object<T: Send + 'static>(
    request: Request,
    limit: BodyLimit,
    convert: fn(Object) -> Result<T, Failure>,
) -> Result<T, Refusal> {
    let bytes = read_bytes(request, limit).await?;
    parse_body(bytes, move |bytes| convert(Object::parse(bytes)?)).await
}

/// The bytes of a body, within its limit. An absent or empty one is `{}`.
async fn read_bytes(request: Request, limit: BodyLimit) -> Result<Bytes, Refusal> {
    const EMPTY: Bytes = Bytes::from_static(b"{}");
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(EMPTY);
    }
    let times = parts.extensions.get().copied().unwrap_or_default();
    let memory = parts.extensions.get::<Arc<Identity>>().map(|caller| &caller.memory);
    let bytes = collect(body, limit, times, memory).await?;
    if bytes.is_empty() {
        return Ok(EMPTY);
    }
    check_content_type(&parts.headers)?;
    Ok(bytes)
}

fn limit_of(request: &Request) -> BodyLimit {
    let extensions = request.extensions();
    let route = extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    BodyLimit::for_operation(request.method(), route, extensions.get::<Arc<Identity>>().is_none())
}

/// Parses a body; a large one on a blocking thread.
async fn parse_body<T: Send + 'static>(
    bytes: Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Refusal> {
    let is_large = bytes.len() > LARGE_BYTES;
    let parsing = move || {
        if count_values(&bytes) > MAX_VALUES {
            let message = format!("the body holds more than {MAX_VALUES} values; send fewer");
            return Err(Failure::new(ErrorCode::BodyTooLarge, message));
        }
        parse(&bytes)
    };
    if !is_large {
        return Ok(parsing()?);
    }
    let parsed = tokio::task::spawn_blocking(parsing).await;
    Ok(parsed.map_err(|error| Refusal::internal(format!("a body was not parsed: {error}")))??)
}

/// Deserializes a request from JSON.
///
/// # Errors
/// `malformed_body` where the text is no JSON object or has a field twice; else as [`Object::into_request`].
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    // serde would also accept an array of the fields for a struct.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Object::parse(bytes).and_then(Object::into_request);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let request = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        parse_failure::<T>(bytes, &path, &error.into_inner())
    })?;
    deserializer.end().map_err(|error| malformed(&error))?;
    Ok(request)
}

/// The refusal for an error of serde.
fn parse_failure<T: DeserializeOwned>(bytes: &[u8], path: &str, error: &serde_json::Error) -> Failure {
    if !error.is_data() {
        // serde_json reports a value of an enum that has another type as an error of syntax, without its field.
        let by_field = Object::parse(bytes).and_then(Object::into_request::<T>);
        return by_field.err().unwrap_or_else(|| malformed(error));
    }
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&position).unwrap_or(&message);
    match message.strip_prefix("duplicate field ") {
        Some(field) => Failure::new(
            ErrorCode::MalformedBody,
            format!("the body is not a JSON object: the field {field} occurs twice"),
        ),
        None => field_failure(path, message),
    }
}

fn malformed(error: &serde_json::Error) -> Failure {
    Failure::new(ErrorCode::MalformedBody, format!("the body is not a JSON object: {error}"))
}

impl Object {
    /// Parses JSON text.
    ///
    /// # Errors
    /// `malformed_body` where the text is no JSON object.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        serde_json::from_slice(bytes).map_err(|error| malformed(&error))
    }

    /// An object with a single field.
    pub(crate) fn single(field: &str, value: Value) -> Self {
        Self(Map::from_iter([(field.to_owned(), value)]))
    }

    pub(crate) fn from_fields(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    pub(crate) fn into_fields(self) -> Map<String, Value> {
        self.0
    }

    /// The SHA-256 of the value. It does not depend on white space, the order of fields or escapes in the text.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(Value::Object(self.0.clone()).to_string().as_bytes()).into()
    }

    /// The same object with another field, for a fingerprint that covers more than the body.
    pub(crate) fn with(&self, field: &str, value: impl Into<Value>) -> Self {
        let mut fields = self.0.clone();
        fields.insert(field.to_owned(), value.into());
        Self(fields)
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    /// Removes a field and returns its value.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.0.remove(field)
    }

    /// Removes a field and returns its whole number, which may be written as `1`, `1.0` or `1e0`.
    ///
    /// # Errors
    /// `invalid_value`, naming the field, its value and the range. `limit` is appended to the message.
    pub(crate) fn take_integer(
        &mut self,
        field: &str,
        range: RangeInclusive<u64>,
        limit: &str,
    ) -> Result<Option<u64>, Failure> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match as_integer(&value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(Failure::new(
                ErrorCode::InvalidValue,
                format!(
                    "`{field}` is {}; it must be a whole number from {} to {}{limit}",
                    abbreviated(&value),
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// Deserializes one field, which exists.
    ///
    /// # Errors
    /// `invalid_value`, naming the field.
    pub(crate) fn into_field<T: DeserializeOwned>(mut self, field: &str) -> Result<T, Failure> {
        let value = self.take(field).unwrap_or_default();
        serde_path_to_error::deserialize(value)
            .map_err(|error| field_failure(field, &error.into_inner().to_string()))
    }

    /// Deserializes the remaining fields.
    ///
    /// # Errors
    /// `unknown_field`, `missing_parameter` or `invalid_value`, each naming the field.
    pub(crate) fn into_request<T: DeserializeOwned>(self) -> Result<T, Failure> {
        serde_path_to_error::deserialize(Value::Object(self.0)).map_err(|error| {
            let path = error.path().to_string();
            field_failure(&path, &error.into_inner().to_string())
        })
    }
}

/// The refusal for an error of serde about a field. `path` is `.` where the error is about the whole value.
pub(crate) fn field_failure(path: &str, detail: &str) -> Failure {
    let code = if detail.starts_with("unknown field") {
        ErrorCode::UnknownField
    } else if detail.starts_with("missing field") {
        ErrorCode::MissingParameter
    } else {
        ErrorCode::InvalidValue
    };
    let names_it = code != ErrorCode::InvalidValue || path == ".";
    // serde_json names both shapes that an enum can have. The enums in bodies are only strings.
    let detail = &detail.replace("expected string or map", "expected a string");
    // The types of the API describe a wrong value by a predicate.
    let is_predicate = ["is ", "has ", "holds "].iter().any(|verb| detail.starts_with(verb));
    let message = match (names_it, is_predicate) {
        (true, _) => detail.to_owned(),
        (false, true) => format!("`{path}` {detail}"),
        (false, false) => format!("`{path}`: {detail}"),
    };
    Failure::new(code, message)
}

fn as_integer(value: &Value) -> Option<u64> {
    /// 2^53: above it, an `f64` cannot represent every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = |number: f64| (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
    value.as_u64().or_else(|| value.as_f64().and_then(float).map(|number| number as u64))
}

/// A value for a message, cut to 64 characters.
fn abbreviated(value: &Value) -> String {
    const LONGEST: usize = 64;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Failure> {
    let given = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = given.as_deref().unwrap_or_default().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    let is_json =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        return Ok(());
    }
    let what = if essence.is_empty() { "missing".to_owned() } else { format!("`{essence}`") };
    Err(Failure::new(ErrorCode::NotJson, format!("`Content-Type` is {what}; send `application/json`")))
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("the field `{name}` occurs twice")));
                    }
                    fields.insert(name, value);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
