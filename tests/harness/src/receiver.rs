//! Endpoints of webhooks on loopback addresses, which check what they receive without code of the server.

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
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};

/// Far longer than any request here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What an endpoint answers.
#[derive(Debug, Clone)]
pub enum Reply {
    /// With this status, these headers and this body.
    With(u16, Vec<(&'static str, String)>, String),
    /// Never.
    Hang,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self::With(status, Vec::new(), "body".to_owned())
    }

    pub fn header(status: u16, name: &'static str, value: impl Into<String>) -> Self {
        Self::With(status, vec![(name, value.into())], String::new())
    }
}

/// A received request.
#[derive(Debug, Clone)]
pub struct Seen {
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap().to_owned()
    }

    pub fn signatures(&self) -> Vec<&str> {
        self.header("webhook-signature").split(' ').collect()
    }

    /// Whether one of the signatures is that of this secret.
    pub fn is_signed_by(&self, secret: &str) -> bool {
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
pub struct Receiver {
    pub address: SocketAddr,
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
    pub async fn start() -> Self {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    pub async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = ReceiverState(Arc::default(), watch::channel(0).0);
        let router = Router::new().fallback(take).with_state(state.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state, serving }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Answers with these one after the other, and then with 200.
    pub fn answers(&self, script: impl IntoIterator<Item = Reply>) {
        self.state.0.lock().unwrap().script.extend(script);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.0.lock().unwrap().seen.clone()
    }

    /// Waits for this number of requests, and returns them.
    pub async fn wait(&self, count: usize) -> Vec<Seen> {
        let mut count_receiver = self.state.1.subscribe();
        let came = timeout(PATIENCE, count_receiver.wait_for(|seen| *seen >= count)).await.is_ok();
        assert!(came, "{} of {count} came: {:#?}", self.seen().len(), self.seen());
        self.seen()
    }
}

async fn take(
    State(ReceiverState(received, count_sender)): State<ReceiverState>,
    request: Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    // A sender that is killed may leave its request incomplete.
    let Ok(body) = body.collect().await else { return StatusCode::BAD_REQUEST.into_response() };
    let body = body.to_bytes();
    assert_eq!(parts.method, "POST");
    let (reply, count) = {
        let mut received = received.lock().unwrap();
        received.seen.push(Seen { headers: parts.headers, body });
        (received.script.pop_front().unwrap_or_else(|| Reply::status(200)), received.seen.len())
    };
    count_sender.send_replace(count);
    match reply {
        Reply::Hang => std::future::pending().await,
        Reply::With(status, headers, body) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}
