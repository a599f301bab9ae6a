//! Raw HTTP over a TCP connection.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::harness::Skep;

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Reads up to the end of a connection, whether it is closed or reset.
pub(super) async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends bytes on a new connection and reads up to its end.
pub(crate) async fn exchange(skep: &Skep, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = connect(skep.address).await;
    let _ = stream.write_all(bytes.as_ref()).await;
    rest(&mut stream).await
}

/// Reads one answer with a `content-length`, body and all.
pub(super) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while !text.ends_with("\r\n\r\n") {
        timeout(PATIENCE, stream.read_exact(&mut byte)).await.unwrap().unwrap();
        text.push(byte[0].into());
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    timeout(PATIENCE, stream.read_exact(&mut body)).await.unwrap().unwrap();
    text + &String::from_utf8_lossy(&body)
}

/// The number of answers in a text.
pub(super) fn answers(text: &str) -> usize {
    let lines = text.match_indices("HTTP/1.1 ").map(|(at, name)| &text[at + name.len()..]);
    lines.filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit())).count()
}

/// A valid request that keeps the connection open. Its answer does not depend on the store, in contrast to that of the
/// health route, which fails where the disk is slow.
pub(super) const ROOT: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
/// The same request with `Connection: close`.
pub(super) const LAST: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
