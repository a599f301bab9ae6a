//! Sends one request to an endpoint. Redirects are not followed, and every address is checked before it is connected
//! to.

use std::{
    error::Error as StdError,
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use jiff::Timestamp;
use reqwest::{
    Client, Response, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use skep_api::webhooks::{ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER};
use skep_egress::{Lookup, Reach, Resolver, Rules};
use tokio::{
    sync::OnceCell,
    time::{sleep_until, timeout_at},
};

use crate::webhooks::{retry::parse_retry_after, target};

/// How much of an answer is read, and how much of it is stored, in bytes.
const MAX_READ_BYTES: usize = 64 << 10;
const MAX_KEPT_BYTES: usize = 1 << 10;
/// How long an idle connection to an endpoint is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct SignedMessage {
    pub(super) id: String,
    pub(super) timestamp: i64,
    pub(super) signatures: String,
    pub(super) body: Vec<u8>,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// The status of the answer, if there was one.
    pub(super) status: Option<u16>,
    /// Why there was no answer, or why it is incomplete.
    pub(super) failure: Option<SendError>,
    /// The beginning of the answer.
    pub(super) answer: Option<String>,
    /// The delay that the endpoint asks for.
    pub(super) retry_after: Option<Duration>,
    /// The duration of the request.
    pub(super) duration: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SendError {
    /// The address of the endpoint is not allowed.
    Refused(String),
    /// The endpoint could not be reached, or closed the connection.
    Unreachable(String),
    Timeout(String),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) | Self::Unreachable(message) | Self::Timeout(message) => {
                f.write_str(message)
            }
        }
    }
}

pub(super) struct Sender {
    resolver: Resolver,
    timeout: Duration,
    https: OnceCell<Client>,
    http: OnceCell<Client>,
}

impl Sender {
    pub(super) fn new(rules: Arc<Rules>, lookup: Arc<dyn Lookup>, limit: Duration) -> Self {
        Self {
            resolver: Resolver::new(rules, lookup),
            timeout: limit,
            https: OnceCell::new(),
            http: OnceCell::new(),
        }
    }

    /// Sends a message, and reads the answer.
    pub(super) async fn send(&self, url: &str, message: SignedMessage) -> Reply {
        let begun = Instant::now();
        let deadline = tokio::time::Instant::from_std(begun + self.timeout);
        let mut reply = match timeout_at(deadline, self.request(url, message)).await {
            Ok(Ok(response)) => self.read(response, deadline).await,
            Ok(Err(trouble)) => Reply::failed(trouble),
            Err(_) => Reply::failed(self.timed_out("no answer")),
        };
        reply.duration = begun.elapsed();
        reply
    }

    async fn request(&self, url: &str, message: SignedMessage) -> Result<Response, SendError> {
        // Checked again, because the operator's list may have changed since the webhook was created, and because
        // literal addresses do not pass the resolver.
        let url = target::parse_target(url, self.resolver.rules())
            .map_err(|refusal| SendError::Refused(refusal.message))?;
        let client = self.client(&url).await?;
        let request = client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("skep/", env!("CARGO_PKG_VERSION")))
            .header(ID_HEADER, message.id)
            .header(TIMESTAMP_HEADER, message.timestamp)
            .header(SIGNATURE_HEADER, message.signatures)
            .body(message.body);
        request.send().await.map_err(|error| send_error(&error))
    }

    /// Reads the beginning of an answer.
    async fn read(&self, mut response: Response, deadline: tokio::time::Instant) -> Reply {
        let status = response.status().as_u16();
        let retry_after_text = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let asked = retry_after_text.and_then(|text| parse_retry_after(text, Timestamp::now()));
        let (mut read, mut kept, mut failure) = (0, Vec::<u8>::new(), None);
        while read < MAX_READ_BYTES {
            let chunk = tokio::select! {
                chunk = response.chunk() => chunk,
                () = sleep_until(deadline) => {
                    failure = Some(self.timed_out("an answer without an end"));
                    break;
                }
            };
            match chunk {
                Ok(Some(bytes)) => {
                    read += bytes.len();
                    kept.extend(bytes.iter().take(MAX_KEPT_BYTES.saturating_sub(kept.len())));
                }
                Ok(None) => break,
                Err(error) => {
                    failure = Some(send_error(&error));
                    break;
                }
            }
        }
        let answer = (!kept.is_empty()).then(|| excerpt(&kept));
        Reply { status: Some(status), failure, answer, retry_after: asked, duration: Duration::ZERO }
    }

    fn timed_out(&self, what: &str) -> SendError {
        SendError::Timeout(format!("{what} within {} ms", self.timeout.as_millis()))
    }

    /// The client for the scheme of a URL. With http, each address must be one that the operator allows.
    async fn client(&self, url: &Url) -> Result<&Client, SendError> {
        let plain = url.scheme() == "http";
        let cell = if plain { &self.http } else { &self.https };
        cell.get_or_try_init(|| async {
            let reach = if plain { Reach::Listed } else { Reach::PublicOrListed };
            let guard = CheckedResolver { resolver: self.resolver.clone(), reach };
            // Loading the certificates of the system blocks.
            let built = tokio::task::spawn_blocking(move || client(guard)).await;
            built.map_err(|error| SendError::Unreachable(error.to_string()))?.map_err(|error| {
                let message = root_cause(&error);
                tracing::error!(
                    %error,
                    "webhooks cannot be sent: {message}; install the system's CA certificates, or name a file by SSL_CERT_FILE"
                );
                SendError::Unreachable("this server has no CA certificates, which https needs".to_owned())
            })
        })
        .await
    }
}

fn client(guard: CheckedResolver) -> reqwest::Result<Client> {
    // Fails if the process has a default provider already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder();
    if guard.reach == Reach::Listed {
        // No certificates are needed, so none have to be installed.
        builder = builder.tls_certs_only([]);
    }
    builder
        .dns_resolver(guard)
        // A redirect would lead to an unchecked address, and Standard Webhooks counts it as a failure.
        .redirect(Policy::none())
        // A proxy would resolve the name itself, and connect to an unchecked address.
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build()
}

impl Reply {
    fn failed(trouble: SendError) -> Self {
        let (status, answer, retry_after) = (None, None, None);
        Self { status, failure: Some(trouble), answer, retry_after, duration: Duration::ZERO }
    }
}

/// The resolver of a client: it returns only addresses that may be connected to.
struct CheckedResolver {
    resolver: Resolver,
    reach: Reach,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolver, reach) = (self.resolver.clone(), self.reach);
        Box::pin(async move {
            let pinned = resolver.resolve(name.as_str(), reach).await?;
            let addresses: Vec<_> = pinned.addresses().collect();
            // The port is that of the URL.
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

fn send_error(error: &reqwest::Error) -> SendError {
    let mut deeper = error.source();
    while let Some(cause) = deeper {
        if let Some(refused @ skep_egress::Error::Refused { .. }) = cause.downcast_ref() {
            return SendError::Refused(format!("{refused}; {}", target::ALLOW_ADVICE));
        }
        deeper = cause.source();
    }
    SendError::Unreachable(root_cause(error))
}

/// The innermost error, because the outer ones only repeat the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut deepest: &dyn StdError = error;
    while let Some(deeper) = deepest.source() {
        deepest = deeper;
    }
    deepest.to_string()
}

/// Lossy text of the beginning of an answer, without a character that was cut at the end.
fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = if bytes.len() < MAX_KEPT_BYTES {
        &*text
    } else {
        text.trim_end_matches(char::REPLACEMENT_CHARACTER)
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_ends_between_characters() {
        let long = "ü".repeat(MAX_KEPT_BYTES);
        let cut = excerpt(&long.as_bytes()[1..=MAX_KEPT_BYTES]);
        assert!(cut.len() <= MAX_KEPT_BYTES + 2 && !cut.ends_with(char::REPLACEMENT_CHARACTER), "{cut}");
        assert_eq!(excerpt(b"ok"), "ok");
    }
}
