//! Commands over a WebSocket, on the server's own workspace.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use skep_api::{
    ErrorCode, Scope,
    exec::{ExecExit, ExecRequest},
    exec_stream::{MAX_WRITE_BYTES, STDIN_WINDOW_BYTES, SignalName},
};
use skep_client::{Client, DuplexEvent, DuplexInput, DuplexOutput, Error};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Message, client::IntoClientRequest, error::Error as SocketError, http::HeaderValue},
};

use crate::harness::{Skep, eventually, is_alive, refused};

/// How long a test waits for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

fn url(skep: &Skep) -> String {
    format!("http://{}", skep.address)
}

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

#[tokio::test]
async fn random_bytes_pass_both_ways_unchanged() {
    let skep = Skep::start().await;
    let (mut input, output) = start(&skep, "tee copy; echo done >&2; exit 5").await;
    let bytes = noise(6 << 20);
    let sent = bytes.clone();
    let sending = tokio::spawn(async move {
        assert!(input.write(sent).await.unwrap());
        input.end().await.unwrap();
    });
    let (stdout, stderr, exit) = read_all(output).await;
    sending.await.unwrap();
    assert!(stdout == bytes, "{} of {} bytes", stdout.len(), bytes.len());
    assert_eq!((stderr.as_slice(), exit.exit_code, exit.truncated), (&b"done\n"[..], Some(5), false));
    assert!(fs::read(skep.at("copy")).unwrap() == bytes);
}

#[tokio::test]
async fn a_command_answers_before_its_input_ends() {
    let skep = Skep::start().await;
    let (mut input, mut output) = start(&skep, "cat; echo over").await;
    for line in [&b"one\n"[..], b"half a character: \xE2\x82", b"\xAC\n", b"\0\xFF"] {
        assert!(input.write(Bytes::from_static(line)).await.unwrap());
        assert_eq!(read(&mut output, line.len()).await, line);
    }
    input.end().await.unwrap();
    let (stdout, _, exit) = read_all(output).await;
    assert_eq!((stdout.as_slice(), exit.exit_code), (&b"over\n"[..], Some(0)));
}

/// Writes input piece by piece, and counts the bytes that there was room for. Returns whether all were sent.
async fn write_counted(mut input: DuplexInput, mut bytes: Bytes, sent: Arc<AtomicUsize>) -> bool {
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(MAX_WRITE_BYTES));
        let length = piece.len();
        if !input.write(piece).await.unwrap_or(false) {
            return false;
        }
        sent.fetch_add(length, Ordering::Relaxed);
    }
    true
}

/// Waits until the pipe of a command and the window are full. The output is read meanwhile, because it carries the
/// acknowledgements that make room.
async fn until_no_room(sent: &AtomicUsize, output: &mut DuplexOutput) {
    let full = async {
        // There is room for that much in any case, however late the writer begins.
        eventually("a full window", async || sent.load(Ordering::Relaxed) >= STDIN_WINDOW_BYTES).await;
        // The pipe takes more, by an amount that the kernel decides. Looks are counted instead of time: the server runs
        // in this process, and gets its turn between two of them.
        let (mut before, mut equal_looks) = (0, 0);
        while equal_looks < 30 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = sent.load(Ordering::Relaxed);
            equal_looks = if now == before { equal_looks + 1 } else { 0 };
            before = now;
        }
    };
    tokio::select! {
        () = full => {}
        event = output.next() => panic!("{event:?}"),
    }
}

/// The input is larger than all buffers together. The writer blocks, signals still get through, and the timeout
/// applies.
#[tokio::test]
async fn a_command_that_never_reads_stops_its_sender() {
    let skep = Skep::start().await;
    for by_signal in [true, false] {
        let timeout = if by_signal { 900_000 } else { 1_500 };
        let request = ExecRequest {
            command: "trap 'exit 9' USR1; echo ready; sleep 600 & wait".to_owned(),
            timeout: Some(timeout),
            ..ExecRequest::default()
        };
        let (input, mut output) = skep.client(&skep.admin).exec_duplex(&request).await.unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let sending = tokio::spawn(write_counted(input.clone(), noise(8 << 20), Arc::clone(&sent)));
        if by_signal {
            assert!(matches!(next(&mut output).await, DuplexEvent::Started(_)));
            // Before the trap is set, the signal would end the shell.
            assert_eq!(read(&mut output, 6).await, b"ready\n");
            until_no_room(&sent, &mut output).await;
            assert!(!sending.is_finished());
            input.signal(SignalName::Usr1).await.unwrap();
        }
        let (_, _, exit) = read_all(output).await;
        let expected = if by_signal { (Some(9), false) } else { (None, true) };
        assert_eq!((exit.exit_code, exit.timed_out), expected);
        assert!(!sending.await.unwrap(), "it was all taken");
    }
}

/// A client that ignores the window: the server stops reading, and buffers no more than the window.
#[tokio::test]
async fn a_client_that_sends_without_end_is_not_read_without_end() {
    let skep = Skep::start().await;
    let mut socket = dialled(&skep).await;
    socket.send(Message::text(json!({"command": "sleep 600"}).to_string())).await.unwrap();
    assert_eq!(notice(&mut socket).await["type"], "started");
    let mut piece = vec![0; 64 << 10];
    piece[1..].fill(7);
    let mut sent = 0;
    // The socket buffers, the window and the pipe together are far smaller than this.
    while sent < 256 << 20 {
        let sending = socket.send(Message::binary(piece.clone()));
        match tokio::time::timeout(Duration::from_secs(2), sending).await {
            Ok(outcome) => outcome.unwrap(),
            Err(_) => return,
        }
        sent += piece.len();
    }
    panic!("{sent} bytes were taken for a command that reads none");
}

#[tokio::test]
async fn output_that_nobody_reads_stops_the_command() {
    let skep = Skep::start().await;
    let command = "while head -c 65536 /dev/zero; do echo x >> written; done";
    let (input, output) = start(&skep, command).await;
    let written = || fs::metadata(skep.at("written")).map_or(0, |file| file.len());
    // The command may take longer than that second to begin.
    eventually("the first piece", async || written() > 0).await;
    let mut before = (written(), Instant::now());
    // Output has stopped once a second has passed without another piece.
    while before.1.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if written() != before.0 {
            before = (written(), Instant::now());
        }
        assert!(written() < 2 * 2_000, "more than 128 MiB were printed for a caller that reads nothing");
    }
    // Output continues when it is read again, and a signal gets through.
    input.signal(SignalName::Term).await.unwrap();
    let (stdout, _, exit) = read_all(output).await;
    assert_eq!(exit.signal.as_deref(), Some("SIGTERM"));
    assert!(stdout.len() as u64 >= written() / 2 * 65_536 - 65_536 && !exit.truncated);
}

#[tokio::test]
async fn a_command_that_takes_only_a_part_of_its_input_ends_as_it_does() {
    let skep = Skep::start().await;
    let (mut input, output) = start(&skep, "head -c 5").await;
    let sending = tokio::spawn(async move { input.write(noise(4 << 20)).await });
    let (stdout, _, exit) = read_all(output).await;
    assert_eq!((stdout.as_slice(), exit.exit_code), (&noise(5)[..], Some(0)));
    assert!(!sending.await.unwrap().unwrap_or(false));
}

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
    let begun = skep.request(Method::POST, "/api/session").send().await.unwrap();
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

#[tokio::test]
async fn events_carry_the_exact_bytes_as_base64() {
    let skep = Skep::start().await;
    let bytes = noise(300_001);
    fs::write(skep.at("noise"), &bytes).unwrap();
    let body = json!({"command": "cat noise", "stream": true, "encoding": "base64"});
    let response = skep.request(Method::POST, "/api/exec").json(&body).send().await.unwrap();
    let text = response.text().await.unwrap();
    let (mut came, mut offset) = (Vec::new(), 0);
    for event in text.split("\n\n").filter(|event| event.starts_with("event: stdout")) {
        let data: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
        came.extend(data_encoding::BASE64.decode(data["data"].as_str().unwrap().as_bytes()).unwrap());
        offset = data["offset"].as_u64().unwrap();
    }
    assert!(came == bytes && offset == bytes.len() as u64, "{} of {}", came.len(), bytes.len());
    let whole = json!({"command": "true", "encoding": "base64"});
    let refusal = refused(skep.request(Method::POST, "/api/exec").json(&whole).send().await.unwrap()).await;
    assert_eq!(refusal.code, "invalid_value");
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
