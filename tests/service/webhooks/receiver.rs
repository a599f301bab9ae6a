//! Endpoints on loopback addresses, which check what they receive without code of the server.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};

/// Far longer than any request here takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What an endpoint answers.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// With this status, these headers and this body.
    With(u16, Vec<(&'static str, String)>, String),
    /// Never.
    Hang,
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        Self::With(status, Vec::new(), "said".to_owned())
    }

    pub(super) fn header(status: u16, name: &'static str, value: impl Into<String>) -> Self {
        Self::With(status, vec![(name, value.into())], String::new())
    }
}

/// A received request.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub(super) fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap().to_owned()
    }

    pub(super) fn signatures(&self) -> Vec<&str> {
        self.header("webhook-signature").split(' ').collect()
    }

    /// Whether one of the signatures is that of this secret.
    pub(super) fn is_signed_by(&self, secret: &str) -> bool {
        let key = data_encoding::BASE64.decode(secret.strip_prefix("whsec_").unwrap().as_bytes()).unwrap();
        assert!((24..=64).contains(&key.len()), "{} bytes", key.len());
        let timestamp: i64 = self.header("webhook-timestamp").parse().unwrap();
        let signed =
            [self.id().as_bytes(), b".", timestamp.to_string().as_bytes(), b".", &self.body].concat();
        let expected = format!("v1,{}", data_encoding::BASE64.encode(&hmac(&key, &signed)));
        self.signatures().contains(&expected.as_str())
    }
}

/// HMAC (RFC 2104), for keys of at most one block.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::digest([&pad(0x36)[..], message].concat());
    Sha256::digest([&pad(0x5c)[..], &inner].concat()).to_vec()
}

#[derive(Default)]
struct Received {
    script: VecDeque<Reply>,
    seen: Vec<Seen>,
}

#[derive(Clone)]
struct ReceiverState(Arc<Mutex<Received>>, watch::Sender<usize>);

/// An endpoint, which stops when it is dropped.
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    state: ReceiverState,
    serving: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Receiver {
    /// An endpoint that accepts everything.
    pub(super) async fn start() -> Self {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    pub(super) async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = ReceiverState(Arc::default(), watch::channel(0).0);
        let router = Router::new().fallback(take).with_state(state.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state, serving }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Answers with these one after the other, and then with 200.
    pub(super) fn answers(&self, script: impl IntoIterator<Item = Reply>) {
        self.state.0.lock().unwrap().script.extend(script);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.0.lock().unwrap().seen.clone()
    }

    /// Waits for this number of requests, and returns them.
    pub(super) async fn wait(&self, count: usize) -> Vec<Seen> {
        let mut count_receiver = self.state.1.subscribe();
        let came = timeout(PATIENCE, count_receiver.wait_for(|seen| *seen >= count)).await.is_ok();
        assert!(came, "{} of {count} came: {:#?}", self.seen().len(), self.seen());
        self.seen()
    }
}

async fn take(State(ReceiverState(book, told)): State<ReceiverState>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    assert_eq!(parts.method, "POST");
    let (reply, count) = {
        let mut book = book.lock().unwrap();
        book.seen.push(Seen { headers: parts.headers, body });
        (book.script.pop_front().unwrap_or_else(|| Reply::status(200)), book.seen.len())
    };
    told.send_replace(count);
    match reply {
        Reply::Hang => std::future::pending().await,
        Reply::With(status, headers, body) => {
            let mut response = (http::StatusCode::from_u16(status).unwrap(), body).into_response();
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}
