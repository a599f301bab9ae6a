//! How requests are encoded for an agent. A VM that was booted by an earlier release gets them too.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use skep_api::{
    AbsolutePath, Call,
    exec_stream::{SignalCommand, SignalName, WriteStdin},
    files::MakeFolder,
    path::PathEncoding,
};
use skep_channel::{FreezeRequest, Guest, HandOut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::{command, fixture::DEADLINE, identity};

/// The requests of protocol 2. If a change of this text would confuse an agent that expects the old one, the rule at
/// `skep_channel::PROTOCOL` asks for another number, and for an end of the support for the earlier one.
const REQUESTS: &str = r#"
GET /protocol
POST /identity {"vm":"vm_1","hostname":"one","mac":[2,0,0,0,0,1],"ip":"10.77.0.2","prefix_len":16,"gateway":null,"moment":{"unix_time_ns":1,"seed":"00"},"machine_id":"0","boot_id":"boot","env":{}}
POST /hand-out {"moment":{"unix_time_ns":1,"seed":"00"},"env":{}}
POST /clock {"unix_time_ns":1,"seed":"00"}
POST /freeze {"token":"copy_1","sync":true}
POST /thaw {"token":"copy_1"}
POST /thaw {"token":null}
POST /rest
POST /settle
GET /usage
POST /operations/make-folder skep-call=call_ID {"context":{"committer":{"name":"skep","email":"skep@skep.invalid"},"reach":{"allow":[],"anywhere":false,"credentials":{}},"condition":"None"},"operation":{"path":"/made","mode":null}}
POST /operations/signal-command skep-call=call_ID {"exec_id":"exec_1","signal":"SIGINT"}
POST /streams/write-stdin \x00\x00\x00\x14{"exec_id":"exec_1"}
PUT /commands/exec_ID {"command":"true","cwd":null,"env":{},"stdin":null,"timeout_ms":20000}
GET /commands/exec_1?stdout=1&stderr=2
"#;

#[tokio::test]
async fn requests_are_those_of_the_protocols_number() {
    let (host, guest) = UnixStream::pair().expect("a pair");
    let requests = Arc::new(Mutex::new(String::from("\n")));
    let serving = tokio::spawn(record(guest, Arc::clone(&requests)));
    let guest = Guest::connect(host, DEADLINE).await.expect("a connection");

    let mut identity = identity();
    identity.moment.unix_time_ns = 1;
    identity.moment.seed.truncate(2);
    identity.machine_id.truncate(1);
    let hand_out = HandOut { moment: identity.moment.clone(), env: identity.env.clone().unwrap_or_default() };
    // Each is refused, and only the request counts.
    let _ = guest.check_protocol().await;
    let _ = guest.set_identity(&identity).await;
    let _ = guest.hand_out(&hand_out).await;
    let _ = guest.set_clock(&hand_out.moment).await;
    let _ = guest.freeze(&FreezeRequest { token: "copy_1".to_owned(), sync: true }).await;
    let _ = guest.thaw(Some("copy_1")).await;
    let _ = guest.thaw(None).await;
    let _ = guest.rest().await;
    let _ = guest.settle().await;
    let _ = guest.usage().await;
    let path = AbsolutePath::parse("path", "/made", PathEncoding::default()).expect("a path");
    let _ = guest.call(&Call::from(MakeFolder { path, mode: None })).await;
    let _ = guest.call(&SignalCommand { exec_id: "exec_1".to_owned(), signal: SignalName::Int }).await;
    let _ = guest.call_streamed(&WriteStdin { exec_id: "exec_1".to_owned() }, None).await;
    let _ = guest.start(&command("true")).await;
    let _ = guest.attach("exec_1", 1, 2, DEADLINE).await;
    serving.abort();
    assert_eq!(*requests.lock().expect("requests"), REQUESTS);
}

/// Writes each request down and refuses it.
async fn record(mut stream: UnixStream, requests: Arc<Mutex<String>>) {
    let mut marker = [0; 48];
    stream.read_exact(&mut marker).await.expect("a marker");
    stream.write_all(&marker).await.expect("written");
    let service = service_fn(move |request: Request<Incoming>| {
        let requests = Arc::clone(&requests);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let line = line(&head, &body);
            requests.lock().expect("requests").push_str(&line);
            let refusal = r#"{"code":"exec_failed","message":"no"}"#;
            let mut answer = Response::new(Full::new(refusal.into()));
            *answer.status_mut() = StatusCode::BAD_REQUEST;
            Ok::<Response<Full<bytes::Bytes>>, Infallible>(answer)
        }
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

fn line(head: &http::request::Parts, body: &[u8]) -> String {
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    let mut parts = vec![head.method.to_string(), without_ulid(path)];
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != "content-length") {
        parts.push(format!("{name}={}", without_ulid(value.to_str().expect("text"))));
    }
    if !body.is_empty() {
        // The length of the head of a stream is binary.
        parts.push(body.escape_ascii().to_string().replace("\\\"", "\""));
    }
    format!("{}\n", parts.join(" "))
}

/// Replaces a generated id.
fn without_ulid(text: &str) -> String {
    match text.split_once('_') {
        Some((kind, id)) if id.len() == 26 => format!("{kind}_ID"),
        _ => text.to_owned(),
    }
}
