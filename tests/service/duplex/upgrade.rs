//! The upgrade request: its key, its origin, its refusals and its entry in the audit.

use std::time::{Duration, Instant};

use futures_util::SinkExt;
use reqwest::Method;
use serde_json::{Value, json};
use skep_api::{Scope, exec::ExecRequest};
use skep_client::{Client, Error};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest, error::Error as SocketError, http::HeaderValue},
};

use super::{TIMEOUT, dial, notice, read_all, start};
use crate::harness::{Skep, refused};

fn url(skep: &Skep) -> String {
    format!("http://{}", skep.address)
}

#[tokio::test]
async fn what_may_not_run_is_refused_before_the_upgrade() {
    let skep = Skep::start().await;
    let (key, _) = skep.key(&[Scope::SwarmExec]).await;
    let bearer = format!("Bearer {key}");
    for (path, headers, status, code) in [
        ("/api/exec", vec![], 401, "missing_token"),
        ("/api/exec", vec![("authorization", "Bearer sk-skep-test-1")], 401, "invalid_token"),
        ("/api/exec", vec![("authorization", bearer.as_str())], 403, "scope_missing"),
        ("/api/exec?cwd=/", vec![("authorization", bearer.as_str())], 400, "unknown_field"),
        // This server has no VMs, so each VM is unknown or unavailable.
        ("/api/exec?vm=4242", vec![("authorization", bearer.as_str())], 503, "swarm_unavailable"),
    ] {
        match dial(&skep, path, &headers).await {
            Err(SocketError::Http(answer)) => {
                let found = answer.headers()["skep-error"].to_str().unwrap().to_owned();
                assert_eq!((answer.status().as_u16(), found.as_str()), (status, code), "{path}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    let plain = refused(skep.request(Method::GET, "/api/exec").send().await.unwrap()).await;
    assert_eq!((plain.status, plain.code.as_str()), (400, "upgrade_required"));
}

/// A browser cannot set `Authorization`, so its key is a subprotocol, which the answer does not repeat.
#[tokio::test]
async fn a_key_may_come_as_a_subprotocol() {
    let skep = Skep::start().await;
    let offered = format!("skep.exec.v1, bearer.{}", skep.admin);
    let mut request = format!("ws://{}/api/exec", skep.address).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_str(&offered).unwrap());
    let (mut socket, answer) = connect_async(request).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "skep.exec.v1");
    socket.send(Message::text(json!({"command": "exit 3"}).to_string())).await.unwrap();
    assert_eq!(notice(&mut socket).await["type"], "started");
    let exit = notice(&mut socket).await;
    assert_eq!((&exit["type"], &exit["exit_code"]), (&json!("exit"), &json!(3)));
    // Two keys are ambiguous, and a subprotocol counts only with an upgrade.
    let bearer = format!("Bearer {}", skep.admin);
    let both = [("authorization", bearer.as_str()), ("sec-websocket-protocol", offered.as_str())];
    match dial(&skep, "/api/exec", &both).await {
        Err(SocketError::Http(answer)) => assert_eq!(answer.status(), 400),
        other => panic!("{other:?}"),
    }
    let plain = skep.bare(Method::GET, "/api/whoami").header("sec-websocket-protocol", &offered);
    assert_eq!(refused(plain.send().await.unwrap()).await.code, "missing_token");
}

/// A page of another site can open a WebSocket to the server, to which the browser may add the session cookie.
#[tokio::test]
async fn a_page_of_another_site_runs_nothing_by_our_cookie() {
    let skep = Skep::start().await;
    let begun = skep.log_in(&skep.admin).send().await.unwrap();
    let cookie = begun.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let (own, port) = (url(&skep), skep.address.port());
    for origin in
        ["http://evil.example", "null", &format!("http://localhost:{port}"), &format!("{own}.example"), ""]
    {
        let mut headers = vec![("cookie", cookie.as_str())];
        headers.extend((!origin.is_empty()).then_some(("origin", origin)));
        match dial(&skep, "/api/exec", &headers).await {
            Err(SocketError::Http(answer)) => assert_eq!(answer.status(), 401, "{origin}"),
            other => panic!("{origin}: {other:?}"),
        }
    }
    // The control: the same cookie is accepted from the server's own page.
    let mut socket = dial(&skep, "/api/exec", &[("cookie", &cookie), ("origin", &own)]).await.unwrap();
    socket.send(Message::text(json!({"command": "exit 3"}).to_string())).await.unwrap();
    assert_eq!(notice(&mut socket).await["type"], "started");
    assert_eq!(notice(&mut socket).await["exit_code"], json!(3));
}

/// A proxy does not pass the upgrade on.
#[tokio::test]
async fn a_proxy_that_drops_the_upgrade_is_named() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await;
        let answer = "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\nnginx";
        socket.write_all(answer.as_bytes()).await.unwrap();
    });
    let client = Client::new(&format!("http://{address}"), Some("k")).unwrap();
    let request = ExecRequest { command: "true".to_owned(), ..ExecRequest::default() };
    let error = client.exec_duplex(&request).await.err().unwrap();
    assert!(matches!(error, Error::NotUpgraded { status: 502, .. }), "{error}");
    assert!(error.to_string().contains("proxy"), "{error}");
}

#[tokio::test]
async fn an_upgrade_leaves_an_entry_in_the_audit() {
    let skep = Skep::start().await;
    let (_input, output) = start(&skep, "true").await;
    read_all(output).await;
    let begun = Instant::now();
    loop {
        let audit: Value = skep.get("/api/audit").await.json().await.unwrap();
        if audit["entries"].as_array().unwrap().iter().any(|entry| entry["action"] == "exec_duplex") {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{audit}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
