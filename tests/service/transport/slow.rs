//! Slow clients: their connections are closed, and other clients are not affected.

use std::time::Duration;

use futures_util::future::join_all;
use skep_server::Limits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use super::wire::{ROOT, answer, connect, exchange, rest};
use crate::{
    clock::advance_clock,
    harness::{Options, Skep},
};

/// A limit that is exceeded in any case: a loaded machine only notices it later.
const SHORT: Duration = Duration::from_millis(150);
/// A limit that some requests of the test have to keep: longer than they take to arrive on a loaded machine.
const TIME_TO_ARRIVE: Duration = Duration::from_secs(1);

async fn start(change: impl FnOnce(&mut Limits)) -> Skep {
    let mut options = Options::default();
    change(&mut options.limits);
    Skep::start_with(options).await
}

#[tokio::test]
async fn a_head_that_does_not_come_to_its_end_is_given_up() {
    let skep = start(|limits| limits.header_timeout = TIME_TO_ARRIVE).await;
    let beginnings = ["", "P", "PRI * HTTP/2.0\r\n", "GET /api/health HTTP/1.1\r\nhost: x\r\n"];
    let unfinished = join_all(beginnings.map(|beginning| exchange(&skep, beginning)));
    // One line at a time, each in time.
    let dribbled = async {
        let mut stream = connect(skep.address).await;
        stream.write_all(b"GET /api/health HTTP/1.1\r\n").await.unwrap();
        while stream.write_all(b"x: y\r\n").await.is_ok() {
            sleep(TIME_TO_ARRIVE / 10).await;
        }
    };
    // A second head on a connection that served a request before.
    let second = async {
        let mut stream = connect(skep.address).await;
        stream.write_all(ROOT.as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
        stream.write_all(b"GET /api/he").await.unwrap();
        assert_eq!(rest(&mut stream).await, "");
    };
    // At the same time, so that the limit passes once.
    let (answers, (), ()) = tokio::join!(unfinished, dribbled, second);
    for (beginning, found) in beginnings.iter().zip(answers) {
        assert_eq!(found, "", "{beginning:?}");
    }
}

#[tokio::test]
async fn a_connection_without_requests_is_closed() {
    let skep = start(|limits| limits.idle_timeout = TIME_TO_ARRIVE).await;
    let mut stream = connect(skep.address).await;
    stream.write_all(ROOT.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_body_that_takes_too_long_in_all_is_refused_although_it_never_stops() {
    let skep = start(|limits| limits.body_timeout = SHORT).await;
    let head = format!(
        "POST /api/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 1000000\r\n\r\n",
        skep.admin
    );
    let mut stream = connect(skep.address).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let dribble = async {
        while writing.write_all(b" ").await.is_ok() {
            sleep(SHORT / 10).await;
        }
        std::future::pending::<()>().await;
    };
    let response = tokio::select! {
        response = answer(&mut reading) => response,
        () = dribble => unreachable!(),
    };
    assert!(
        response.starts_with("HTTP/1.1 400 ") && response.contains("skep-error: malformed_body"),
        "{response}"
    );
    assert!(response.contains("longer than 150ms"), "{response}");
}

#[tokio::test]
async fn a_body_that_stops_is_refused() {
    let skep = start(|limits| limits.body_stall = SHORT).await;
    for (beginning, why) in [("", "nothing came for 150ms"), ("{", "less than 1 KiB/s came for 150ms")] {
        let head = format!(
            "POST /api/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: 1000\r\n\r\n{beginning}",
            skep.admin
        );
        let mut stream = connect(skep.address).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let response = answer(&mut stream).await;
        assert!(response.starts_with("HTTP/1.1 400 ") && response.contains(why), "{response}");
    }
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_refused_although_it_never_stops() {
    let skep = start(|limits| limits.body_stall = SHORT).await;
    let head = format!(
        "POST /api/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 1000000\r\n\r\n{{",
        skep.admin
    );
    let mut stream = connect(skep.address).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let dribble = async {
        while writing.write_all(b" ").await.is_ok() {
            sleep(SHORT / 10).await;
        }
        std::future::pending::<()>().await;
    };
    let response = tokio::select! {
        response = answer(&mut reading) => response,
        () = dribble => unreachable!(),
    };
    assert!(
        response.starts_with("HTTP/1.1 400 ") && response.contains("less than 1 KiB/s came for 150ms"),
        "{response}"
    );
}

/// A request with a large answer.
const LARGE: &str = "GET /api/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn a_client_that_never_reads_is_given_up() {
    let hour = Duration::from_secs(3_600);
    let skep = start(|limits| {
        // Longer than a client that reads has to wait on a loaded machine.
        limits.write_timeout = Duration::from_secs(8);
        // Others must not end the connection.
        (limits.header_timeout, limits.idle_timeout) = (hour, hour);
    })
    .await;
    let mut stream = connect(skep.address).await;
    // Ends only by an error, because nothing is read.
    let asking = async { while stream.write_all(LARGE.as_bytes()).await.is_ok() {} };
    let passing = async {
        loop {
            sleep(Duration::from_millis(100)).await;
            advance_clock(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = passing => unreachable!(),
    }
    // The control: one that reads as much in the same time is served.
    let (mut reading, mut writing) = connect(skep.address).await.into_split();
    let asking = async {
        for _ in 0..50 {
            writing.write_all(LARGE.as_bytes()).await.unwrap();
        }
    };
    let reading = async {
        for _ in 0..50 {
            assert!(answer(&mut reading).await.starts_with("HTTP/1.1 200 "));
        }
    };
    tokio::join!(asking, reading);
}

/// The number of slow clients.
const CROWD: usize = 1_000;

/// Opens connections that send incomplete heads.
async fn crowd(skep: &Skep, size: usize) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..size {
        let mut stream = connect(skep.address).await;
        stream.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        crowd.push(stream);
    }
    crowd
}

#[tokio::test]
async fn a_thousand_slow_clients_do_not_block_others() {
    let skep = start(|limits| limits.max_connections_per_address = CROWD + 10).await;
    let mut crowd = crowd(&skep, CROWD).await;
    for _ in 0..20 {
        assert_eq!(skep.get("/api/whoami").await.status(), 200);
    }
    // They are still open, and are served once they complete their heads.
    let last = crowd.last_mut().unwrap();
    last.write_all(b"y\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    last.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
}
