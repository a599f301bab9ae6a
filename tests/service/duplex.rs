//! Commands over a WebSocket, on the server's own workspace.

mod ends;
mod exact_bytes;
mod flow_control;
mod messages;
mod upgrade;

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::Value;
use skep_api::exec::{ExecExit, ExecRequest};
use skep_client::{DuplexEvent, DuplexInput, DuplexOutput};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Message, client::IntoClientRequest, error::Error as SocketError, http::HeaderValue},
};

use crate::harness::Skep;

/// How long a test waits for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn start(skep: &Skep, command: &str) -> (DuplexInput, DuplexOutput) {
    let request = ExecRequest { command: command.to_owned(), ..ExecRequest::default() };
    let (input, mut output) = skep.client(&skep.admin).exec_duplex(&request).await.unwrap();
    assert!(matches!(next(&mut output).await, DuplexEvent::Started(_)));
    (input, output)
}

async fn next(output: &mut DuplexOutput) -> DuplexEvent {
    tokio::time::timeout(TIMEOUT, output.next()).await.unwrap().unwrap()
}

/// Reads standard output and standard error to their ends, and the exit.
async fn read_all(mut output: DuplexOutput) -> (Vec<u8>, Vec<u8>, ExecExit) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match next(&mut output).await {
            DuplexEvent::Started(_) => {}
            DuplexEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            DuplexEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            DuplexEvent::Exit(exit) => return (stdout, stderr, exit),
        }
    }
}

async fn read(output: &mut DuplexOutput, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        match next(output).await {
            DuplexEvent::Stdout(piece) => bytes.extend_from_slice(&piece),
            other => panic!("{other:?}"),
        }
    }
    bytes
}

/// Bytes of every value, which are not valid UTF-8.
fn noise(length: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

/// A WebSocket of a generic client, with these headers.
async fn dial(skep: &Skep, path: &str, headers: &[(&'static str, &str)]) -> Result<Socket, SocketError> {
    let mut request = format!("ws://{}{path}", skep.address).into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    connect_async(request).await.map(|(socket, _)| socket)
}

async fn dialled(skep: &Skep) -> Socket {
    let bearer = format!("Bearer {}", skep.admin);
    dial(skep, "/api/exec", &[("authorization", &bearer)]).await.unwrap()
}

async fn notice(socket: &mut Socket) -> Value {
    loop {
        let message = tokio::time::timeout(TIMEOUT, socket.next()).await.unwrap();
        match message.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Close(_) => panic!("closed without a notice"),
            _ => {}
        }
    }
}
