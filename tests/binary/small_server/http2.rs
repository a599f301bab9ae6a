//! HTTP/2 connections, each of which carries hundreds of requests.

use std::{fs, iter::repeat_n, net::Ipv4Addr};

use bytes::Bytes;
use futures_util::future::join_all;
use h2::{
    SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{
    Request,
    header::{ACCEPT, AUTHORIZATION},
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
};

use super::{
    group::LimitedServer,
    is_answered,
    unfinished::{CONNECTIONS, raise_open_files, settles, write_much},
};
use crate::harness::{Skep, eventually};

/// The length that each body declares.
const BODY_BYTES: usize = 1 << 20;

/// An HTTP/2 connection; `None` where the server closed it. It lasts until the runtime ends.
async fn connect(skep: &Skep) -> Option<SendRequest<Bytes>> {
    connect_from(skep, Ipv4Addr::LOCALHOST, h2::client::Builder::new()).await
}

async fn stream_from(skep: &Skep, source: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(skep.url.trim_start_matches("http://").parse().unwrap()).await.unwrap()
}

/// A connection from an address of the loopback network.
async fn connect_from(
    skep: &Skep,
    source: Ipv4Addr,
    builder: h2::client::Builder,
) -> Option<SendRequest<Bytes>> {
    let (client, connection) = builder.handshake(stream_from(skep, source).await).await.ok()?;
    tokio::spawn(connection);
    client.ready().await.ok()
}

/// A request whose body does not end until it is dropped.
type Unfinished = (ResponseFuture, SendStream<Bytes>);

/// Begins a request, and sends this part of its body. `None` where the connection has ended.
async fn begin(
    client: &SendRequest<Bytes>,
    request: impl Fn() -> Request<()>,
    part: Bytes,
) -> Option<Unfinished> {
    let mut client = client.clone().ready().await.ok()?;
    let (response, mut body) = client.send_request(request(), false).ok()?;
    body.send_data(part, false).ok()?;
    Some((response, body))
}

/// Waits until no request is under way but the one that asks. The server goes on with those whose connections were closed.
async fn all_requests_end(skep: &Skep) {
    eventually("the end of all requests", async || {
        let metrics = skep.get("/metrics").await.ok(200);
        metrics.as_str().unwrap().lines().any(|line| line == "skep_http_requests_in_flight 1")
    })
    .await;
}

/// Begins as many requests on each of these connections, all of whose bodies lack the last byte.
async fn begin_writes(skep: &Skep, clients: &[SendRequest<Bytes>], on_each: usize) -> Vec<Unfinished> {
    let request = || {
        Request::post(format!("{}/api/files/write", skep.url))
            .header(AUTHORIZATION, format!("Bearer {}", skep.key))
            .header("content-type", "application/json")
            .header("content-length", BODY_BYTES)
            .body(())
            .unwrap()
    };
    let part = Bytes::from(vec![b' '; BODY_BYTES - 1]);
    let all = clients.iter().flat_map(|client| repeat_n(client, on_each));
    join_all(all.map(|client| begin(client, request, part.clone()))).await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_bodies_on_each_connection_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let clients: Vec<_> = join_all((0..4).map(|_| connect(&skep))).await.into_iter().flatten().collect();
    // As many as an address may have under way, except for those of the other account.
    let unfinished = begin_writes(&skep, &clients, 500).await;
    assert_eq!(unfinished.len(), 2_000);
    settles(&limited.peak).await;
    is_answered(&other).await;
    println!("2000 bodies of 1 MiB on 4 connections: peak {} MiB", limited.peak.bytes() >> 20);
    limited.assert_alive(&skep);
    // What they had reserved is free again.
    drop((unfinished, clients));
    all_requests_end(&skep).await;
    write_much(&other).await;
}

/// Each connection has a window for bodies that no request has read yet.
#[tokio::test(flavor = "multi_thread")]
async fn full_windows_of_many_connections_leave_a_small_server_alive() {
    raise_open_files();
    let skep = Skep::start().await;
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let clients: Vec<_> =
        join_all((0..CONNECTIONS).map(|_| connect(&skep))).await.into_iter().flatten().collect();
    let unfinished = begin_writes(&skep, &clients, 2).await;
    settles(&limited.peak).await;
    is_answered(&other).await;
    println!(
        "{} bodies of 1 MiB on {} connections: peak {} MiB",
        unfinished.len(),
        clients.len(),
        limited.peak.bytes() >> 20
    );
    limited.assert_alive(&skep);
    // What they had reserved is free again.
    drop((unfinished, clients));
    all_requests_end(&skep).await;
    write_much(&other).await;
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The bytes of a connection that begins as many requests without a key as the server announces. Each has the same header this
/// often, which takes one byte on the wire.
fn long_heads(headers: usize) -> Vec<u8> {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END_HEADERS: u8 = 4;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    // RFC 7541: POST, http and the path; the first block adds the header `a` to the table.
    let fixed = [&[0x83, 0x86, 0x04, 13][..], b"/api/waitlist", &[0x01, 1], b"x"].concat();
    for number in 0..512 {
        let first: &[u8] = if number == 0 { &[0x40, 1, b'a', 0] } else { &[] };
        // It is the only entry of the table, whose index is 62.
        let block = [&fixed[..], first, &vec![0xbe; headers]].concat();
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * number + 1, &block));
    }
    bytes
}

/// Sends such heads on many connections, and returns them.
async fn send_heads(skep: &Skep, headers: usize) -> Vec<TcpStream> {
    let bytes = long_heads(headers);
    let connections = (0..100).map(async |_| {
        // The requests of the other account come from another address.
        let mut stream = stream_from(skep, Ipv4Addr::new(127, 0, 0, 2)).await;
        let _ = stream.write_all(&bytes).await;
        stream
    });
    join_all(connections).await
}

#[tokio::test(flavor = "multi_thread")]
async fn long_heads_without_a_key_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    // Almost as long as a head may be by HTTP/2, and as one may be by HTTP/1.1.
    for headers in [470, 2_300] {
        let connections = send_heads(&skep, headers).await;
        settles(&limited.peak).await;
        is_answered(&other).await;
        println!(
            "512 heads of {headers} headers on each connection: peak {} MiB",
            limited.peak.bytes() >> 20
        );
        drop(connections);
    }
    limited.assert_alive(&skep);
}

/// Sends as many requests as two addresses may have under way, and reads the first byte of each answer at most.
async fn leave_unread(skep: &Skep, path: &str) -> Vec<Unfinished> {
    let mut unread = Vec::new();
    for address in (2..=3).flat_map(|address| repeat_n(address, 8)) {
        let mut builder = h2::client::Builder::new();
        // The client has room for the first byte only, so the HTTP library takes each answer as a whole.
        builder.initial_window_size(1);
        let client = connect_from(skep, Ipv4Addr::new(127, 0, 0, address), builder).await.unwrap();
        for _ in 0..250 {
            let request = Request::get(format!("{}{path}", skep.url))
                .header(AUTHORIZATION, format!("Bearer {}", skep.key))
                .header(ACCEPT, "application/octet-stream")
                .body(())
                .unwrap();
            let mut client = client.clone().ready().await.unwrap();
            unread.push(client.send_request(request, true).unwrap());
        }
    }
    unread
}

/// The size of each file is that of the blocks that the server reads.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_nobody_reads_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    fs::write(format!("{root}/block"), "x".repeat(256 << 10)).unwrap();
    let other = skep.tenant("other").await;
    is_answered(&other).await;
    let limited = LimitedServer::of(&skep);
    let unread = leave_unread(&skep, &format!("/api/files/read?path={root}/block")).await;
    settles(&limited.peak).await;
    is_answered(&other).await;
    println!("{} unread files of 256 KiB: peak {} MiB", unread.len(), limited.peak.bytes() >> 20);
    limited.assert_alive(&skep);
    // The reservations end with the connections. Some of the requests are still under way when the test stops the server, which waits
    // for them: the log has no error of one that was cut off.
    drop(unread);
    skep.get(&format!("/api/files/read?path={root}/block")).await.ok(200);
}
