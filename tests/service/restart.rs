//! A restart as seen by callers, with a simulated keeper. `tests/binary/restart.rs` tests it with the real one.

use std::{sync::Arc, time::Duration};

use reqwest::{Method, Version};
use skep_api::{ErrorCode, Failure};
use skep_server::{Restart, ShutdownKind};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::{Options, Skep, refused};

#[tokio::test]
async fn a_restart_that_is_refused_says_why() {
    let why = "`listen` changed";
    let restart: Restart =
        Arc::new(move || Box::pin(async move { Err(Failure::new(ErrorCode::RestartRefused, why)) }));
    let skep = Skep::start_with(Options { restart, ..Options::default() }).await;
    let found = refused(skep.request(Method::POST, "/api/admin/restart").send().await.unwrap()).await;
    assert_eq!((found.status, found.code.as_str(), found.message.as_str()), (409, "restart_refused", why));
    // The operation takes no body.
    let found = refused(skep.post("/api/admin/restart", r#"{"now": true}"#).await).await;
    assert_eq!((found.status, found.code.as_str()), (400, "unknown_field"));
}

#[tokio::test]
async fn with_a_successor_connections_are_announced_to_close_before_they_are_closed() {
    let mut skep = Skep::start().await;
    let mut held = TcpStream::connect(skep.address).await.unwrap();
    let ask = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    held.write_all(ask).await.unwrap();
    assert!(!answer(&mut held).await.contains("connection: close"));
    let running = skep.request(Method::POST, "/api/exec");
    let running =
        running.body(r#"{"command": "sleep 2; echo done"}"#).header("content-type", "application/json");
    let running = tokio::spawn(running.version(Version::HTTP_11).send());
    // Once another request was answered, the command is running.
    tokio::time::timeout(Duration::from_secs(30), skep.post("/api/exec", r#"{"command": "true"}"#))
        .await
        .unwrap();
    skep.stop.take().unwrap().send(ShutdownKind::HandOver).unwrap();
    held.write_all(ask).await.unwrap();
    let response = answer(&mut held).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("connection: close"), "{response}");
    let mut rest = Vec::new();
    held.read_to_end(&mut rest).await.unwrap();
    assert!(running.await.unwrap().unwrap().text().await.unwrap().contains("done"));
    skep.serving.take().unwrap().await.unwrap().unwrap();
}

/// Reads one answer of `/`. The head is converted to lower case.
async fn answer(held: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.contains("\"docs\"") || !text.ends_with('}') {
        let mut bytes = [0; 4096];
        let length = held.read(&mut bytes).await.unwrap();
        assert!(length > 0, "closed after {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    text
}
