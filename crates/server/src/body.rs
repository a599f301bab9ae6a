//! JSON bodies: read with a counted limit, and refused by name of the field that is wrong.

use std::{
    fmt,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use axum::{
    body::{Body as HttpBody, HttpBody as _},
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use skep_api::{ErrorCode, Failure};

use crate::error::Refusal;

/// The largest JSON body, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 48 << 20;

/// How long a body may take to arrive. Stands beside each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTimes {
    /// The whole of it.
    pub whole: Duration,
    /// A part of it, while nothing comes.
    pub stall: Duration,
}

impl Default for BodyTimes {
    fn default() -> Self {
        Self { whole: Duration::from_secs(300), stall: Duration::from_secs(30) }
    }
}

/// A body read into a request. An absent or empty body counts as `{}`.
#[derive(Debug)]
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let object = Object::from_request(request, state).await?;
        Ok(Self(object.read()?))
    }
}

/// The body of a request that takes none: absent, empty or `{}`.
#[derive(Debug)]
pub(crate) struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let Nothing {} = Object::from_request(request, state).await?.read()?;
        Ok(Self)
    }
}

/// A JSON object whose fields are yet to be checked. No field stands twice.
#[derive(Debug, Default)]
pub(crate) struct Object(Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Object {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok(Self::default());
        }
        if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(too_large().into());
        }
        let times = parts.extensions.get().copied().unwrap_or_default();
        let bytes = collect(body, times).await?;
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        check_content_type(&parts.headers)?;
        Ok(Self::parse(&bytes)?)
    }
}

impl Object {
    /// Reads a text of JSON.
    ///
    /// # Errors
    /// `malformed_body` where it is no JSON object.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        serde_json::from_slice(bytes).map_err(|error| {
            Failure::new(ErrorCode::MalformedBody, format!("the body is not a JSON object: {error}"))
        })
    }

    /// An object of one field.
    pub(crate) fn single(field: &str, value: Value) -> Self {
        Self(Map::from_iter([(field.to_owned(), value)]))
    }

    /// The SHA-256 of what it says, however it was spelled.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(Value::Object(self.0.clone()).to_string().as_bytes()).into()
    }

    /// Takes out a field, whatever it holds.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.0.remove(field)
    }

    /// Takes out a field that holds a whole number, in any spelling that JSON has for it.
    ///
    /// # Errors
    /// `invalid_value`, naming the field, what it holds, and the range with what `limit` says of its end.
    pub(crate) fn take_whole(
        &mut self,
        field: &str,
        range: RangeInclusive<u64>,
        limit: &str,
    ) -> Result<Option<u64>, Failure> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match whole(&value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(Failure::new(
                ErrorCode::InvalidValue,
                format!(
                    "`{field}` is {}; it must be a whole number from {} to {}{limit}",
                    shown(&value),
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// The rest, as a request.
    ///
    /// # Errors
    /// `unknown_field`, `missing_parameter` or `invalid_value`, each naming the field.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, Failure> {
        serde_path_to_error::deserialize(Value::Object(self.0)).map_err(|error| {
            let path = error.path().to_string();
            wrong_field(&path, &error.into_inner().to_string())
        })
    }
}

/// The refusal for what serde says of a field. `path` is `.` where it says it of the whole.
pub(crate) fn wrong_field(path: &str, words: &str) -> Failure {
    let code = if words.starts_with("unknown field") {
        ErrorCode::UnknownField
    } else if words.starts_with("missing field") {
        ErrorCode::MissingParameter
    } else {
        ErrorCode::InvalidValue
    };
    let names_it = code != ErrorCode::InvalidValue || path == ".";
    let message = if names_it { words.to_owned() } else { format!("`{path}`: {words}") };
    Failure::new(code, message)
}

fn whole(value: &Value) -> Option<u64> {
    /// Above it, a float no longer tells whole numbers apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = |number: f64| (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
    value.as_u64().or_else(|| value.as_f64().and_then(float).map(|number| number as u64))
}

/// A value as it may stand in a message: cut short, so that nobody gets a book back.
fn shown(value: &Value) -> String {
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

fn too_large() -> Failure {
    let limit = MAX_BODY_BYTES >> 20;
    Failure::new(ErrorCode::BodyTooLarge, format!("the body is larger than {limit} MiB; send less"))
}

/// Reads a body to its end, counting.
async fn collect(mut body: HttpBody, times: BodyTimes) -> Result<Bytes, Failure> {
    let cut = |why: &str| Failure::new(ErrorCode::MalformedBody, format!("the body was cut short: {why}"));
    let mut bytes = BytesMut::new();
    let begun = Instant::now();
    loop {
        let left = times.whole.saturating_sub(begun.elapsed());
        let frame = tokio::time::timeout(times.stall.min(left), body.frame()).await;
        let frame = frame.map_err(|_| match times.stall < left {
            true => cut(&format!("nothing came for {:?}", times.stall)),
            false => cut(&format!("it took longer than {:?}; send it faster, or less", times.whole)),
        })?;
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        let frame = frame.map_err(|_| cut("the connection broke"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY_BYTES {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
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
                        return Err(A::Error::custom(format!("the field `{name}` stands twice")));
                    }
                    fields.insert(name, value);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skep_api::{exec::ExecRequest, keys::CreateKey};

    use super::*;

    fn refused<T: DeserializeOwned + fmt::Debug>(text: &str) -> (ErrorCode, String) {
        let failure = Object::parse(text.as_bytes()).and_then(Object::read::<T>).unwrap_err();
        (failure.code, failure.message)
    }

    #[test]
    fn a_refusal_names_the_field() {
        for (text, code, name) in [
            (r#"{"command": "id", "commnad": 1}"#, ErrorCode::UnknownField, "`commnad`"),
            ("{}", ErrorCode::MissingParameter, "`command`"),
            (r#"{"command": 7}"#, ErrorCode::InvalidValue, "`command`"),
            (r#"{"command": "id", "env": {"A": 1}}"#, ErrorCode::InvalidValue, "`env.A`"),
            (r#"{"command": "id", "vm": 1.5}"#, ErrorCode::InvalidValue, "`vm`"),
            (r#"{"command": "id", "command": "id"}"#, ErrorCode::MalformedBody, "`command`"),
        ] {
            let (found, message) = refused::<ExecRequest>(text);
            assert_eq!(found, code, "{text}: {message}");
            assert!(message.contains(name), "{text}: {message}");
        }
        let (code, message) = refused::<CreateKey>(r#"{"name": "x", "role": "boss"}"#);
        assert_eq!(code, ErrorCode::InvalidValue);
        assert!(message.contains("`role`") && message.contains("boss"), "{message}");
    }

    #[test]
    fn what_is_no_object_is_malformed() {
        for text in ["[]", "null", "1", "\"x\"", "{", "{]", "", "{\"a\": \"\u{0}\"}", "{} {}"] {
            let failure = Object::parse(text.as_bytes()).unwrap_err();
            assert_eq!(failure.code, ErrorCode::MalformedBody, "{text}");
        }
        assert!(Object::parse(b"{\"a\": \"\xff\"}").is_err());
    }

    #[test]
    fn whole_numbers_may_be_spelled_as_json_likes() {
        for (text, expected) in [("7", 7), ("7.0", 7), ("7e0", 7), ("70e-1", 7)] {
            let mut object = Object::parse(format!("{{\"n\": {text}}}").as_bytes()).unwrap();
            assert_eq!(object.take_whole("n", 1..=9, "").unwrap(), Some(expected), "{text}");
        }
        assert_eq!(Object::default().take_whole("n", 1..=9, "").unwrap(), None);
        for text in ["0", "10", "-1", "1.5", "1e9", "\"7\"", "true", "null", "[]", "18446744073709551616"] {
            let mut object = Object::parse(format!("{{\"n\": {text}}}").as_bytes()).unwrap();
            let failure = object.take_whole("n", 1..=9, " (so it is)").unwrap_err();
            assert!(
                failure.message.contains("`n`") && failure.message.contains("1 to 9 (so it is)"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_long_value_is_cut_in_the_message() {
        let mut object = Object::parse(format!("{{\"n\": \"{}\"}}", "é".repeat(9_999)).as_bytes()).unwrap();
        assert!(object.take_whole("n", 1..=9, "").unwrap_err().message.len() < 300);
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Object::parse(&bytes);
        }
    }
}
