//! The client: address and key of a server, and the handling of answers and errors that all requests share.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header::AUTHORIZATION};
use reqwest::{Certificate, RequestBuilder, Response, Url};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use skep_api::{
    Endpoint, ErrorBody, ErrorCode,
    endpoint::{self, PathField, PathFields},
};

use crate::{Answered, ConnectionFault, Error, Result};

const SKEP_ERROR: &str = "skep-error";
const REQUEST_ID: &str = "x-request-id";
/// The time limit for establishing a connection. Answers have none, because they may take as long as a command runs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one server. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
}

impl Client {
    /// Creates a client for the server at `url`, such as `http://127.0.0.1:7700`. `key`, if given, is sent with every
    /// request. Over https the certificate authorities of this machine are trusted.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Key`].
    pub fn new(url: &str, key: Option<&str>) -> Result<Self> {
        Self::with_roots(url, key, None)
    }

    /// Like [`Self::new`], but over https trusts only the certificates in `roots`, in PEM format.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Key`], [`Error::Roots`].
    pub fn with_roots(url: &str, key: Option<&str>, roots: Option<&[u8]>) -> Result<Self> {
        let wrong = || Error::Url { url: url.to_owned() };
        let mut base = Url::parse(url).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong());
        }
        // `Url::join` would replace a last segment without a slash.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| Error::Key)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // A crypto provider that the process has already installed is kept.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder();
        if let Some(roots) = trusted_roots(base.scheme(), roots)? {
            builder = builder.tls_certs_only(roots);
        }
        let http = builder
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            // The key must not pass through a proxy that only the environment configures.
            .no_proxy()
            .build()
            .map_err(|error| Error::UnexpectedAnswer { url: url.to_owned(), why: error.to_string() })?;
        Ok(Self { http, base })
    }

    /// `GET /api/openapi.json`.
    ///
    /// # Errors
    /// Those of every request: see [`Error`].
    pub async fn openapi(&self) -> Result<Answered<serde_json::Value>> {
        self.get("api/openapi.json").await
    }

    /// Runs an operation: `POST /api/keys` for `CreateKey`, and so on. One on a workspace runs on that of the server;
    /// [`Self::at`] names a VM.
    ///
    /// # Errors
    /// Those of the operation's route, and those of every request: see [`Error`].
    pub async fn run<O: Endpoint<Path = ()>>(&self, operation: &O) -> Result<Answered<O::Answer>> {
        self.run_on((), operation).await
    }

    /// Runs an operation on one resource: `DELETE /api/keys/{id}` for `RevokeKey` and a key's id, and so on.
    ///
    /// # Errors
    /// Those of the operation's route, and those of every request: see [`Error`].
    pub async fn run_on<O: Endpoint>(&self, resource: O::Path, operation: &O) -> Result<Answered<O::Answer>> {
        let fields = self.fields_of(operation)?;
        self.read(self.operation_request::<O>(resource, fields)?).await
    }

    pub(crate) fn fields_of(&self, operation: &impl Endpoint) -> Result<Map<String, Value>> {
        operation.to_fields().map_err(|error| self.unexpected_answer(error.to_string()))
    }

    /// The request of an operation with these fields.
    pub(crate) fn operation_request<O: Endpoint>(
        &self,
        resource: O::Path,
        fields: Map<String, Value>,
    ) -> Result<RequestBuilder> {
        let segments = resource.to_segments();
        let path = path_of(O::ROUTE.path, O::Path::FIELDS, &segments);
        // Such a segment would be resolved, and name another resource.
        if segments.iter().any(|segment| matches!(segment.as_str(), "" | "." | "..")) {
            return Err(Error::Url { url: format!("{}{path}", self.base) });
        }
        self.request_with_fields(O::ROUTE.method, &path, fields)
    }

    /// Not generic, so that it is compiled once.
    fn request_with_fields(
        &self,
        method: endpoint::Method,
        path: &str,
        fields: Map<String, Value>,
    ) -> Result<RequestBuilder> {
        let http_method = match method {
            endpoint::Method::Get => Method::GET,
            endpoint::Method::Post => Method::POST,
            endpoint::Method::Patch => Method::PATCH,
            endpoint::Method::Delete => Method::DELETE,
        };
        if method.has_body() {
            return Ok(self.request(http_method, path)?.json(&Value::Object(fields)));
        }
        // A query cannot contain null, which in a body removes a value.
        let given = fields.iter().filter(|(_, value)| !value.is_null());
        let pairs: Vec<_> = given.map(|(name, value)| (name.as_str(), Some(query_text(value)))).collect();
        self.request(http_method, &with_query(path, &pairs))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answered<T>> {
        self.read(self.request(Method::GET, path)?).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<Answered<T>> {
        self.read(self.request(Method::DELETE, path)?).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Answered<T>> {
        self.read(self.request(Method::POST, path)?.json(body)).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Answered<T>> {
        self.read(self.request(Method::PATCH, path)?.json(body)).await
    }

    /// Creates a request for a path relative to the server's address.
    pub(crate) fn request(&self, method: Method, path: &str) -> Result<RequestBuilder> {
        let url = self.base.join(path).map_err(|_| Error::Url { url: format!("{}{path}", self.base) })?;
        Ok(self.http.request(method, url))
    }

    /// Sends a request. An error status becomes [`Error::Refused`].
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        self.check_status(request.send().await.map_err(|error| self.request_failed(error))?).await
    }

    /// Returns the response unless it has an error status, which becomes [`Error::Refused`].
    pub(crate) async fn check_status(&self, response: Response) -> Result<Response> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let code = header(SKEP_ERROR).and_then(parse_code);
        let request_id = header(REQUEST_ID).map(str::to_owned);
        let text = response.bytes().await.map_err(|error| self.request_failed(error))?;
        match serde_json::from_slice(&text) {
            Ok(body) => Err(Error::Refused { status: status.as_u16(), code, request_id, body }),
            Err(_) => Err(self.unexpected_answer(format!("status {status} without an error message"))),
        }
    }

    pub(crate) async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<Answered<T>> {
        let text = self.read_text(request).await?;
        let value =
            serde_json::from_slice(&text).map_err(|error| self.unexpected_answer(error.to_string()))?;
        Ok(Answered { value, text })
    }

    /// Not generic, so that it is compiled once, and not for each type of answer.
    async fn read_text(&self, request: RequestBuilder) -> Result<Bytes> {
        let response = self.send(request).await?;
        response.bytes().await.map_err(|error| self.request_failed(error))
    }

    /// The server's address, which ends with `/`.
    pub(crate) fn base(&self) -> &str {
        self.base.as_str()
    }

    pub(crate) fn unexpected_answer(&self, why: String) -> Error {
        Error::UnexpectedAnswer { url: self.base.to_string(), why }
    }

    /// The error for a connection that was lost or stayed silent.
    pub(crate) fn connection_lost(&self, why: String) -> Error {
        Error::Unreachable { url: self.base.to_string(), fault: ConnectionFault::Other, why }
    }

    /// Uses the innermost error as reason, because the outer ones only repeat the address.
    pub(crate) fn request_failed(&self, error: reqwest::Error) -> Error {
        let mut deepest: &dyn std::error::Error = &error;
        while let Some(deeper) = deepest.source() {
            deepest = deeper;
        }
        let fault = ConnectionFault::classify(&error);
        Error::Unreachable { url: self.base.to_string(), fault, why: deepest.to_string() }
    }
}

fn parse_code(text: &str) -> Option<ErrorCode> {
    ErrorCode::ALL.iter().copied().find(|code| code.as_str() == text)
}

/// An error that the server sent inside a stream.
pub(crate) fn error_in_stream(code: ErrorCode, error: String, message: String) -> Error {
    // The stream itself was answered with status 200; the status of the error is not sent.
    Error::Refused { status: 200, code: Some(code), request_id: None, body: ErrorBody { error, message } }
}

/// Percent-encodes a text as one segment of a path or as a query value.
pub(crate) fn encode_segment(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// Appends query parameters to a path. Parameters that are `None` are omitted.
pub(crate) fn with_query(path: &str, given: &[(&str, Option<String>)]) -> String {
    let given = given.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", encode_segment(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// The path of a route with its variable segments, relative to the server's address.
fn path_of(path: &str, fields: &[PathField], segments: &[String]) -> String {
    let mut path = path.trim_start_matches('/').to_owned();
    for (field, segment) in fields.iter().zip(segments) {
        path = path.replace(&format!("{{{}}}", field.name), &encode_segment(segment));
    }
    path
}

/// A value as the text of a query parameter.
fn query_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The certificates to trust. `None` means those of the machine; without TLS they need not be loaded.
fn trusted_roots(scheme: &str, roots: Option<&[u8]>) -> Result<Option<Vec<Certificate>>> {
    match roots {
        Some(pem) => match Certificate::from_pem_bundle(pem) {
            Ok(roots) if !roots.is_empty() => Ok(Some(roots)),
            _ => Err(Error::Roots),
        },
        None if scheme == "http" => Ok(Some(Vec::new())),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use skep_api::{
        AccountId, KeyId,
        accounts::ChangeAccount,
        keys::{ListKeys, RevokeAllKeys, RevokeKey},
        waitlist::{RemoveFromWaitlist, WaitlistRef},
        webhooks::{DeliveryPath, Redeliver},
    };

    use super::*;

    #[test]
    fn only_http_urls_are_accepted() {
        for good in ["http://127.0.0.1:7700", "http://[::1]:1/", "http://skep.example/below"] {
            assert!(Client::new(good, None).is_ok(), "{good}");
        }
        for wrong in ["", "127.0.0.1:7700", "localhost:7700", "ftp://x", "unix:/run/skep"] {
            assert!(matches!(Client::new(wrong, None), Err(Error::Url { .. })), "{wrong}");
        }
        assert!(matches!(Client::new("http://x", Some("a\nb")), Err(Error::Key)));
        assert!(Client::new("https://skep.example", None).is_ok());
        for nothing in [&b""[..], b"no certificate"] {
            assert!(matches!(Client::with_roots("https://x", None, Some(nothing)), Err(Error::Roots)));
        }
    }

    #[test]
    fn a_server_url_can_have_a_path() {
        let client = Client::new("http://x/below", None).unwrap();
        let request = client.request(Method::GET, "api/health").unwrap().build().unwrap();
        assert_eq!(request.url().as_str(), "http://x/below/api/health");
    }

    #[test]
    fn an_operation_is_sent_as_its_route_says() {
        fn sent<O: Endpoint>(resource: O::Path, operation: &O) -> (String, Option<String>) {
            let client = Client::new("http://x", None).unwrap();
            let fields = client.fields_of(operation).unwrap();
            let request = client.operation_request::<O>(resource, fields).unwrap().build().unwrap();
            let body =
                request.body().map(|body| String::from_utf8_lossy(body.as_bytes().unwrap()).into_owned());
            (format!("{} {}", request.method(), request.url().as_str()), body)
        }
        let key: KeyId = "key_01jv0000000000000000000000".parse().unwrap();
        let account: AccountId = "acc_01jv0000000000000000000000".parse().unwrap();
        let path = DeliveryPath {
            webhook: "wh_01jv0000000000000000000000".parse().unwrap(),
            delivery: "dlv_01jv0000000000000000000000".parse().unwrap(),
        };
        let revoked = sent(key, &RevokeKey {});
        assert_eq!(revoked, (format!("DELETE http://x/api/keys/{key}"), None));
        let all = sent((), &RevokeAllKeys { all: true, own: false, account: None });
        assert_eq!(all, ("DELETE http://x/api/keys?all=true&own=false".to_owned(), None));
        let listed = sent((), &ListKeys { limit: Some(7), cursor: Some("a&b".to_owned()) });
        assert_eq!(listed.0, "GET http://x/api/keys?cursor=a%26b&limit=7");
        // Null removes a limit, and absent fields stay.
        let changed = sent(account, &ChangeAccount { max_vms: Some(None), ..ChangeAccount::default() });
        assert_eq!(changed.0, format!("PATCH http://x/api/accounts/{account}"));
        assert_eq!(changed.1.as_deref(), Some(r#"{"max_vms":null}"#));
        let again =
            format!("POST http://x/api/webhooks/{}/deliveries/{}/redeliver", path.webhook, path.delivery);
        assert_eq!(sent(path, &Redeliver {}), (again, Some("{}".to_owned())));
        let removed = sent(WaitlistRef::Email("a/b@example.com".to_owned()), &RemoveFromWaitlist {});
        assert_eq!(removed.0, "DELETE http://x/api/waitlist/a%2Fb%40example.com");
    }

    #[test]
    fn a_segment_that_would_be_resolved_is_refused() {
        let client = Client::new("http://x", None).unwrap();
        for text in ["", ".", ".."] {
            let resource = WaitlistRef::Email(text.to_owned());
            let refused = client.operation_request::<RemoveFromWaitlist>(resource, Map::new());
            assert!(matches!(refused, Err(Error::Url { .. })), "{text}");
        }
    }

    #[test]
    fn segments_are_percent_encoded() {
        assert_eq!(encode_segment("4242"), "4242");
        assert_eq!(encode_segment("../a b"), "..%2Fa%20b");
    }
}
