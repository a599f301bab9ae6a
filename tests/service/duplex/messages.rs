//! Messages that are not valid or too long.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{dialled, notice};
use crate::harness::Skep;

#[tokio::test]
async fn invalid_messages_are_refused_by_name() {
    let skep = Skep::start().await;
    let started = || Message::text(json!({"command": "cat"}).to_string());
    let text = |value: Value| Message::text(value.to_string());
    for (messages, code, named) in [
        (vec![Message::binary(b"\0x".to_vec())], "malformed_body", "first message"),
        (vec![Message::text("{")], "malformed_body", "JSON"),
        (vec![text(json!({"command": "cat", "stdin": "x"}))], "unknown_field", "`stdin`"),
        (vec![text(json!({"command": "cat", "vm": 7}))], "unknown_field", "`vm`"),
        (vec![text(json!({"command": "cat", "timeout": 0}))], "invalid_value", "`timeout`"),
        (vec![text(json!({"command": "cat", "cwd": "/etc"}))], "path_outside_roots", "/etc"),
        (vec![started(), Message::binary(b"\x01x".to_vec())], "malformed_body", "begins with 0"),
        (vec![started(), Message::binary(vec![])], "malformed_body", "begins with 0"),
        (vec![started(), text(json!({"type": "resize"}))], "malformed_body", "`signal`"),
        (
            vec![started(), text(json!({"type": "end_of_stdin"})), Message::binary(b"\0x".to_vec())],
            "malformed_body",
            "end_of_stdin",
        ),
    ] {
        let mut socket = dialled(&skep).await;
        let last = messages.len();
        for message in messages {
            socket.send(message).await.unwrap();
        }
        let mut found = notice(&mut socket).await;
        if last > 1 && found["type"] == "started" {
            found = notice(&mut socket).await;
        }
        // Where `cat` saw the end of its input first, the command has ended without a refusal.
        if found["type"] != "exit" {
            assert_eq!((&found["type"], &found["code"]), (&json!("error"), &json!(code)), "{found}");
            assert!(found["message"].as_str().unwrap().contains(named), "{found}");
        }
    }
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_the_connection() {
    let skep = Skep::start().await;
    let mut socket = dialled(&skep).await;
    let long = json!({"command": format!("true #{}", "x".repeat(2 << 20))});
    let _ = socket.send(Message::text(long.to_string())).await;
    while let Some(Ok(message)) = socket.next().await {
        assert!(!message.is_text(), "{message}");
    }
}
