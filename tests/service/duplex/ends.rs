//! What happens to a command when its caller disconnects, its key is revoked, or the server stops.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::SinkExt;
use reqwest::Method;
use serde_json::json;
use skep_api::{ErrorCode, Scope, exec::ExecRequest};
use skep_client::DuplexEvent;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use super::{TIMEOUT, dial, next, notice, read, start};
use crate::harness::{Skep, eventually, is_alive};

#[tokio::test]
async fn a_caller_that_vanishes_ends_its_command() {
    let skep = Skep::start().await;
    let file = PathBuf::from(skep.at("running"));
    for unread in [false, true] {
        let command = if unread { "echo $$ > running; exec yes" } else { "echo $$ > running; exec cat" };
        let (input, output) = start(&skep, command).await;
        eventually("the command", async || fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')))
            .await;
        assert!(is_alive(&file));
        drop((input, output));
        eventually("its end", async || !is_alive(&file)).await;
        fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn a_key_that_is_revoked_ends_its_connection_and_its_command() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[Scope::ServerAdmin]).await;
    let file = PathBuf::from(skep.at("running"));
    let request = ExecRequest { command: "echo $$ > running; exec cat".to_owned(), ..ExecRequest::default() };
    let client = skep.client(&key);
    let (_input, mut output) = client.exec_duplex(&request).await.unwrap();
    assert!(matches!(next(&mut output).await, DuplexEvent::Started(_)));
    eventually("the command", async || is_alive(&file)).await;
    let at = jiff::Timestamp::now();
    let revoke = skep_store::RevokeKey { account: skep.account.id, id: record.key.id, at, request_id: None };
    skep.store.revoke_key(revoke).await.unwrap();
    let error = tokio::time::timeout(TIMEOUT, output.next()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::TokenExpired);
    eventually("its end", async || !is_alive(&file)).await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_connection_and_its_command() {
    let skep = Skep::start().await;
    let begun = skep.log_in(&skep.admin).send().await.unwrap();
    let cookie = begun.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let origin = format!("http://{}", skep.address);
    let by_session = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
    let file = PathBuf::from(skep.at("running"));
    let mut socket = dial(&skep, "/api/exec", &by_session).await.unwrap();
    let command = json!({"command": "echo $$ > running; exec cat"});
    socket.send(Message::text(command.to_string())).await.unwrap();
    assert_eq!(notice(&mut socket).await["type"], "started");
    eventually("the command", async || is_alive(&file)).await;
    let end = skep.bare(Method::DELETE, "/api/session").header("cookie", &cookie).header("origin", &origin);
    assert_eq!(end.send().await.unwrap().status(), 200);
    let last = notice(&mut socket).await;
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("token_expired")), "{last}");
    eventually("its end", async || !is_alive(&file)).await;
}

/// The server waits for the command, although the HTTP library does not count WebSockets as connections.
#[tokio::test]
async fn a_server_that_ends_waits_for_a_command_under_way() {
    let mut skep = Skep::start().await;
    let (mut input, mut output) = start(&skep, "read line; echo $line").await;
    skep.stop();
    // From here on, no connection is accepted.
    let begun = Instant::now();
    while TcpStream::connect(skep.address).await.is_ok() {
        assert!(begun.elapsed() < TIMEOUT, "connections are taken still");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(input.write(Bytes::from_static(b"on\n")).await.unwrap());
    assert_eq!(read(&mut output, 3).await, b"on\n");
    assert!(matches!(next(&mut output).await, DuplexEvent::Exit(exit) if exit.exit_code == Some(0)));
    // The server waits for the closing handshake.
    drop((input, output));
    skep.end().await;
}
