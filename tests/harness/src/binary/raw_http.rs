//! Raw HTTP over TCP, for requests that no HTTP client would send.

use std::time::Duration;

use reqwest::{
    StatusCode,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{Answer, Skep};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a server.
pub struct RawConnection(TcpStream);

impl Skep {
    /// A new connection.
    pub async fn raw_connection(&self) -> RawConnection {
        RawConnection(TcpStream::connect(self.url.trim_start_matches("http://")).await.unwrap())
    }

    /// Sends bytes on a new connection and reads the answer.
    pub async fn raw(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut wire = self.raw_connection().await;
        wire.send(bytes).await;
        wire.answer().await
    }

    /// Begins a request that makes a key, and waits until the server reads its body. Returns the connection and the rest of
    /// the body.
    pub async fn begin_request(&self) -> (RawConnection, &'static str) {
        let (first, rest) = (r#"{"name": "late", "#, r#""scopes": ["swarm:read"]}"#);
        let length = first.len() + rest.len();
        let headers =
            format!("content-type: application/json\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n");
        let mut wire = self.raw_connection().await;
        wire.send(self.head("POST /api/keys", &headers)).await;
        // It says so when it begins to read the body.
        wire.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
        wire.send(first).await;
        (wire, rest)
    }

    /// The head of a request with the admin key and `Connection: close`. Each further header must end with `\r\n`.
    pub fn head(&self, first_line: &str, headers: &str) -> String {
        let key = &self.key;
        format!(
            "{first_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n{headers}\r\n"
        )
    }
}

impl RawConnection {
    /// Sends bytes. The server may answer and close before it has read all of them.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.0.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Reads exactly this text from the server.
    pub async fn expect(&mut self, expected: &str) {
        let mut received = vec![0; expected.len()];
        timeout(TIMEOUT, self.0.read_exact(&mut received)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&received), expected);
    }

    /// Reads the version and the status of an answer, and no more of it.
    pub async fn status(&mut self) -> u16 {
        let mut received = [0; 12];
        timeout(TIMEOUT, self.0.read_exact(&mut received)).await.unwrap().unwrap();
        let received = str::from_utf8(&received).unwrap();
        received.strip_prefix("HTTP/1.1 ").unwrap().parse().unwrap()
    }

    /// What the server still sends until the connection ends or is reset.
    pub async fn rest(mut self) -> String {
        let mut bytes = Vec::new();
        let _ = timeout(TIMEOUT, self.0.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads the answer up to the end of the connection.
    pub async fn answer(mut self) -> Answer {
        let mut bytes = Vec::new();
        let read = timeout(TIMEOUT, self.0.read_to_end(&mut bytes)).await.unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { panic!("no answer: {read:?}, {text:?}") };
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse::<StatusCode>().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.parse::<HeaderName>().unwrap(), value.trim().parse::<HeaderValue>().unwrap())
        };
        let headers = lines.map(header).collect::<HeaderMap>();
        let body = serde_json::from_str(body).unwrap_or(Value::String(body.to_owned()));
        Answer { status, headers, body }
    }
}
