//! HTTP/2: negotiation, limits and hostile peers.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::{
    SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use skep_server::Limits;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::wire::{LAST, connect, exchange};
use crate::{
    clock::advance_clock,
    harness::{Options, Skep, done, eventually},
};

const PATIENCE: Duration = Duration::from_secs(60);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ENHANCE_YOUR_CALM: u8 = 0xb;

async fn start(change: impl FnOnce(&mut Limits)) -> Skep {
    let mut options = Options::default();
    change(&mut options.limits);
    Skep::start_with(options).await
}

/// Requests `/` on an HTTP/2 connection: its answer does not depend on the store, whose disk may be slow.
pub(super) async fn is_served(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::get("http://x/").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let response = timeout(PATIENCE, response).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().contains_key("x-request-id"));
}

/// The bytes of a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The next frame: its kind, flags and payload. `None` at the end.
async fn next(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], payload))
}

/// A connection that has sent the preface and its settings.
async fn connected(skep: &Skep) -> TcpStream {
    let mut stream = connect(skep.address).await;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    stream
}

/// `GET /api/health`, as an uncompressed header block.
fn head(stream: u32) -> Vec<u8> {
    let block = [&[0x82, 0x86, 0x04, 11][..], b"/api/health", &[0x41, 1], b"x"].concat();
    frame(HEADERS, 0x5, stream, &block)
}

#[tokio::test]
async fn prior_knowledge_http2_works_in_plain_text() {
    let skep = start(|_| {}).await;
    is_served(connect(skep.address).await).await;
}

#[tokio::test]
async fn the_settings_frame_announces_the_limits() {
    let skep = start(|limits| (limits.max_streams, limits.max_header_bytes) = (7, 12_345)).await;
    let (kind, _, payload) = next(&mut connected(&skep).await).await.unwrap();
    assert_eq!(kind, SETTINGS);
    let settings: HashMap<u16, u32> = payload
        .chunks(6)
        .map(|one| {
            (u16::from_be_bytes([one[0], one[1]]), u32::from_be_bytes([one[2], one[3], one[4], one[5]]))
        })
        .collect();
    // MAX_CONCURRENT_STREAMS and MAX_HEADER_LIST_SIZE.
    assert_eq!((settings[&3], settings[&6]), (7, 12_345));
}

#[tokio::test]
async fn more_headers_than_allowed_are_refused_and_the_connection_goes_on() {
    let skep = start(|limits| limits.max_header_bytes = 10_000).await;
    let (client, connection) = h2::client::handshake(connect(skep.address).await).await.unwrap();
    tokio::spawn(connection);
    for (size, status) in [(20_000, Some(431)), (100, Some(200))] {
        let mut client = client.clone().ready().await.unwrap();
        let request = Request::get("http://x/").header("x", "y".repeat(size)).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let answered =
            timeout(PATIENCE, response).await.unwrap().ok().map(|response| response.status().as_u16());
        assert_eq!(answered, status, "{size}");
    }
}

/// A request that adds to the waitlist, whose body has not ended.
fn begin_without_key(client: &mut SendRequest<Bytes>) -> (ResponseFuture, SendStream<Bytes>) {
    let request =
        Request::post("http://x/api/waitlist").header("content-type", "application/json").body(()).unwrap();
    client.send_request(request, false).unwrap()
}

async fn status_of(response: ResponseFuture) -> StatusCode {
    timeout(PATIENCE, response).await.unwrap().unwrap().status()
}

#[tokio::test]
async fn a_connection_without_a_valid_key_has_few_requests_under_way() {
    let skep = start(|_| {}).await;
    let (client, connection) = h2::client::handshake(connect(skep.address).await).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let get = |path: &str, key: &str| {
        let request = Request::get(format!("http://x{path}"));
        request.header("authorization", format!("Bearer {key}")).body(()).unwrap()
    };
    let mut begun: Vec<_> = (0..16).map(|_| begin_without_key(&mut client)).collect();
    let (mut waiting, _) = client.send_request(get("/", "wrong"), true).unwrap();
    let (refused, _body) = begin_without_key(&mut client);
    assert_eq!(status_of(refused).await, StatusCode::SERVICE_UNAVAILABLE);
    // A wrong key is answered at once, and changes nothing.
    let (answer, _) = client.send_request(get("/api/whoami", "wrong"), true).unwrap();
    assert_eq!(status_of(answer).await, StatusCode::UNAUTHORIZED);
    assert!((&mut waiting).now_or_never().is_none());
    drop(begun.pop());
    assert_eq!(status_of(waiting).await, StatusCode::OK);
    // A valid one ends the limit.
    begun.push(begin_without_key(&mut client));
    let (answer, _) = client.send_request(get("/api/whoami", &skep.admin), true).unwrap();
    assert_eq!(status_of(answer).await, StatusCode::OK);
    begun.extend((0..50).map(|_| begin_without_key(&mut client)));
    let (answer, _) = client.send_request(get("/", ""), true).unwrap();
    assert_eq!(status_of(answer).await, StatusCode::OK);
    for (response, _) in &mut begun {
        assert!(response.now_or_never().is_none());
    }
}

/// As many first requests at once as a client may send before it knows anything about the connection.
#[tokio::test]
async fn requests_with_a_valid_key_do_not_wait_for_each_other() {
    let skep = start(|_| {}).await;
    let (client, connection) = h2::client::handshake(connect(skep.address).await).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let mut answers = Vec::new();
    for number in 0..100 {
        let request = Request::post("http://x/api/keys")
            .header("authorization", format!("Bearer {}", skep.admin))
            .header("content-type", "application/json");
        let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
        let key = format!(r#"{{"name": "key-{number}", "role": "agent"}}"#);
        body.send_data(key.into(), true).unwrap();
        answers.push(answer);
    }
    for answer in answers {
        assert_eq!(status_of(answer).await, StatusCode::CREATED);
    }
}

#[tokio::test]
async fn one_http2_connection_too_many_is_closed_and_there_is_room_again_afterwards() {
    let skep = start(|limits| limits.max_http2_connections_per_address = 2).await;
    let (one, other) = (connected(&skep).await, connected(&skep).await);
    assert!(next(&mut connected(&skep).await).await.is_none());
    // The limit does not apply to HTTP/1.1.
    assert!(exchange(&skep, LAST).await.starts_with("HTTP/1.1 200 "));
    drop(one);
    let is_room = async || next(&mut connected(&skep).await).await.is_some();
    eventually("room for another connection", is_room).await;
    drop(other);
}

/// Opens streams and resets each at once. Returns whether the server closed the connection.
async fn flood(skep: &Skep, streams: u32) -> bool {
    let mut stream = connected(skep).await;
    let mut bytes = Vec::new();
    for number in (0..streams).map(|nth| nth * 2 + 1) {
        bytes.extend(head(number));
        bytes.extend(frame(RST_STREAM, 0, number, &8_u32.to_be_bytes()));
    }
    // One more frame, to see whether the connection is still open.
    bytes.extend(head(streams * 2 + 1));
    let _ = stream.write_all(&bytes).await;
    loop {
        match next(&mut stream).await {
            Some((GOAWAY, _, payload)) => {
                assert_eq!(payload[7], ENHANCE_YOUR_CALM, "{payload:?}");
                return true;
            }
            Some((HEADERS, ..)) => return false,
            Some(_) => {}
            None => panic!("closed without a word"),
        }
    }
}

#[tokio::test]
async fn a_flood_of_reset_streams_closes_only_its_connection() {
    let skep = start(|_| {}).await;
    let (client, connection) = h2::client::handshake(connect(skep.address).await).await.unwrap();
    tokio::spawn(connection);
    assert!(flood(&skep, 2_000).await);
    // The control: a few resets are allowed.
    assert!(!flood(&skep, 5).await);
    is_served(connect(skep.address).await).await;
    let request = Request::get("http://x/").body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_peer_that_is_gone_is_noticed_and_one_that_answers_is_kept() {
    let short = Duration::from_millis(100);
    let skep = start(|limits| (limits.ping_interval, limits.ping_timeout) = (short, short)).await;
    let mut dead = connected(&skep).await;
    while next(&mut dead).await.is_some() {}
    // A loaded machine may delay an answer for seconds. The pings take longer together than one may be unanswered.
    let (interval, patient) = (Duration::from_secs(2), Duration::from_secs(8));
    let skep = start(|limits| (limits.ping_interval, limits.ping_timeout) = (interval, patient)).await;
    let mut alive = connected(&skep).await;
    let own_ping = frame(PING, 0, 0, &[7; 8]);
    alive.write_all(&own_ping).await.unwrap();
    let mut pings = 0;
    while pings < 5 {
        let (kind, flags, payload) = next(&mut alive).await.expect("it answers, and is kept");
        match (kind, flags) {
            (PING, 0) => {
                alive.write_all(&[frame(PING, 1, 0, &payload), own_ping.clone()].concat()).await.unwrap();
                pings += 1;
            }
            // The server has read what was sent before, also the answer to its ping.
            (PING, _) => advance_clock(interval).await,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_peer_without_requests_is_let_go() {
    let skep = start(|limits| limits.idle_timeout = Duration::from_millis(150)).await;
    let mut idle = connected(&skep).await;
    while next(&mut idle).await.is_some() {}
}

#[tokio::test]
async fn a_peer_that_takes_no_answer_is_given_up_although_it_answers_pings() {
    let skep = start(|limits| {
        // Long enough for some pings, even if a loaded machine sends each of them late.
        limits.write_timeout = Duration::from_secs(1);
        // Longer than the request takes to arrive on a loaded machine.
        limits.idle_timeout = Duration::from_secs(2);
        limits.ping_interval = Duration::from_millis(100);
    })
    .await;
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(100)
        .handshake::<_, bytes::Bytes>(connect(skep.address).await)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("http://x/api/openapi.json").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // The window stays exhausted as long as the body is not read.
    timeout(PATIENCE, connection).await.expect("the connection stays open").unwrap().ok();
    drop(response);
}

/// The HTTP library has queued the whole answer and dropped its body.
#[tokio::test]
async fn a_peer_that_does_not_take_the_last_part_of_an_answer_is_given_up() {
    let skep = start(|limits| limits.write_timeout = Duration::from_secs(1)).await;
    let whoami: Value = done(skep.request(Method::GET, "/api/whoami"), 200).await;
    let path = format!("{}/file", whoami["roots"][0].as_str().unwrap());
    let write = json!({"path": path, "content": "x".repeat(1_000)});
    done(skep.request(Method::POST, "/api/files/write").json(&write), 201).await;
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(1)
        .handshake::<_, Bytes>(connect(skep.address).await)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut answers = Vec::new();
    // A stream of events keeps the connection from being idle.
    for target in ["/api/events".to_owned(), format!("/api/files/read?path={path}")] {
        let request = Request::get(format!("http://x{target}"))
            .header("authorization", format!("Bearer {}", skep.admin))
            .header("accept", "text/event-stream, application/octet-stream");
        let (response, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
        answers.push(timeout(PATIENCE, response).await.unwrap().unwrap());
    }
    timeout(PATIENCE, connection).await.expect("the connection stays open").unwrap().ok();
    assert!(answers.iter().all(|answer| answer.status() == StatusCode::OK));
}

#[tokio::test]
async fn frames_that_make_no_sense_end_their_connection_alone() {
    let skep = start(|_| {}).await;
    for wrong in [
        frame(WINDOW_UPDATE, 0, 0, &0_u32.to_be_bytes()),
        frame(SETTINGS, 0, 1, &[]),
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(PING, 0, 0, &[0; 7]),
        frame(HEADERS, 0x5, 2, &[0x82]),
        frame(HEADERS, 0x5, 1, &[0xff; 40]),
        frame(9, 0x4, 1, &[0x82]),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
    ] {
        let mut stream = connected(&skep).await;
        let _ = stream.write_all(&wrong).await;
        while next(&mut stream).await.is_some() {}
    }
    is_served(connect(skep.address).await).await;
}
