//! The answer to plain HTTP where TLS is expected. The request never reaches the HTTP library, so the answer is written
//! by hand.

use std::{io, pin::Pin};

use http::StatusCode;
use tokio::{io::AsyncWriteExt, net::TcpStream};
use ulid::Ulid;

use super::lingering_close::LingeringClose;
use crate::{error::https_required, request::API_VERSION};

/// Answers 403 and closes the connection.
pub(super) async fn refuse_plain_text(mut stream: TcpStream) -> io::Error {
    let answer = answer();
    if stream.write_all(answer.as_bytes()).await.is_ok() && stream.shutdown().await.is_ok() {
        let mut linger = LingeringClose::begin();
        std::future::poll_fn(|cx| linger.poll_discard(Pin::new(&mut stream), cx)).await;
    }
    io::ErrorKind::InvalidData.into()
}

fn answer() -> String {
    let (code, body) = https_required();
    let status = StatusCode::FORBIDDEN;
    let request_id = Ulid::generate().to_string().to_ascii_lowercase();
    tracing::info!(
        request_id,
        status = status.as_u16(),
        "request {request_id}: plain HTTP where TLS is expected"
    );
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\
         skep-error: {}\r\nskep-version: {API_VERSION}\r\nx-request-id: {request_id}\r\n\r\n{body}",
        body.len(),
        code.as_str()
    )
}
