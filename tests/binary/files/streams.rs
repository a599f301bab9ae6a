//! Byte streams of files, in both places.

use std::time::Duration;

use eventsource_stream::Eventsource;
use futures_util::{StreamExt, stream};
use reqwest::{Body, Method, RequestBuilder};
use serde_json::{Value, json};

use super::fixture::Fixture;
use crate::harness::{eventually, send};

/// More than any buffer on the way holds.
const LENGTH: usize = 8 << 20;

pub(super) fn put(fixture: &Fixture<'_>, name: &str, query: &[(&str, &str)]) -> RequestBuilder {
    fixture.request(Method::PUT, "/api/files/raw", &fixture.at(name), query)
}

fn raw(fixture: &Fixture<'_>, name: &str) -> RequestBuilder {
    let request = fixture.request(Method::GET, "/api/files/read", &fixture.at(name), &[]);
    request.header("accept", "application/octet-stream")
}

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| u8::try_from((at / 251 + at) % 256).unwrap()).collect()
}

pub(super) async fn bytes(fixture: &Fixture<'_>) {
    whole_and_in_parts(fixture).await;
    refused(fixture).await;
    left_alone(fixture).await;
    markers(fixture).await;
    slow_readers(fixture).await;
    watched(fixture).await;
}

async fn whole_and_in_parts(fixture: &Fixture<'_>) {
    let bytes = pattern();
    let made = send(put(fixture, "raw/file", &[("mode", "0600")]).body(bytes.clone())).await.ok(201);
    assert_eq!((&made["size_bytes"], &made["created"]), (&json!(LENGTH), &json!(true)), "{fixture:?}");
    assert_eq!(fixture.shell("stat -c '%a %s' raw/file").await, format!("600 {LENGTH}"));
    let whole = raw(fixture, "raw/file").send().await.unwrap();
    assert_eq!(
        (whole.status().as_u16(), whole.headers()["etag"].to_str().ok()),
        (200, made["etag"].as_str())
    );
    assert_eq!(whole.headers()["content-length"], LENGTH.to_string());
    assert!(whole.bytes().await.unwrap() == bytes, "{fixture:?}: the bytes differ");
    let part = raw(fixture, "raw/file").header("range", "bytes=1000000-1999999").send().await.unwrap();
    assert_eq!(part.headers()["content-range"], format!("bytes 1000000-1999999/{LENGTH}"));
    assert!(part.status() == 206 && part.bytes().await.unwrap() == bytes[1_000_000..2_000_000]);
    let beyond = send(raw(fixture, "raw/file").header("range", format!("bytes={LENGTH}-"))).await;
    beyond.refused(416, "range_not_satisfiable");
    let tag = made["etag"].as_str().unwrap();
    let replaced = send(put(fixture, "raw/file", &[]).header("if-match", tag).body("short")).await.ok(200);
    assert_eq!((&replaced["size_bytes"], &replaced["created"]), (&json!(5), &json!(false)));
    assert_eq!(fixture.shell("stat -c '%a %s' raw/file; ls -A raw").await, "600 5\nfile", "the mode stays");
    assert_eq!(raw(fixture, "raw/file").send().await.unwrap().bytes().await.unwrap(), "short");
}

/// The marker that restarts a guest's stream has no meaning in a file.
async fn markers(fixture: &Fixture<'_>) {
    let marker = [&b"\xFF\xFE\xFD\xC0skep resync\n"[..], &[7; 32]].concat();
    let mut bytes = vec![b'x'; 100_000];
    for at in [0, 100, 148, 16_384 - 9, 40_000, 65_536 - 20, bytes.len() - marker.len()] {
        bytes[at..at + marker.len()].copy_from_slice(&marker);
    }
    send(put(fixture, "raw/markers", &[]).body(bytes.clone())).await.ok(201);
    let back = raw(fixture, "raw/markers").send().await.unwrap().bytes().await.unwrap();
    assert!(back == bytes, "{fixture:?}: the bytes differ");
    // It ends within a marker, and nothing comes behind.
    for length in 1..=20 {
        let length = marker.len() - length;
        send(put(fixture, "raw/markers", &[]).body(marker[..length].to_vec())).await.ok(200);
        assert_eq!(fixture.shell("stat -c %s raw/markers").await, length.to_string());
    }
}

async fn refused(fixture: &Fixture<'_>) {
    let absent = put(fixture, "raw/file", &[]).header("if-none-match", "*").body(pattern());
    send(absent).await.refused(412, "precondition_failed");
    send(put(fixture, "none/file", &[("create_parents", "false")]).body("x"))
        .await
        .refused(404, "unknown_path");
    send(put(fixture, "raw", &[]).body("x")).await.refused(409, "not_a_file");
    send(put(fixture, "raw/x", &[("mode", "rw")]).body("x")).await.refused(400, "invalid_value");
    fixture.shell("mkfifo raw/fifo; ln -s fifo raw/link").await;
    for name in ["raw/fifo", "raw/link"] {
        send(put(fixture, name, &[]).body("x")).await.refused(409, "not_a_file");
        send(raw(fixture, name)).await.refused(409, "not_a_file");
        send(fixture.request(Method::GET, "/api/files/watch", &fixture.at(name), &[]))
            .await
            .refused(409, "not_a_directory");
    }
}

/// A caller that goes away in the middle leaves nothing.
async fn left_alone(fixture: &Fixture<'_>) {
    let endless = stream::once(async { Ok::<_, std::io::Error>(pattern()) }).chain(stream::pending());
    let upload = tokio::spawn(put(fixture, "raw/endless", &[]).body(Body::wrap_stream(endless)).send());
    let count = async || fixture.shell("ls -A raw | wc -l").await;
    eventually("the upload's beginning", async || count().await == "4").await;
    upload.abort();
    eventually("its end", async || count().await == "3").await;
}

/// A client that does not read its answer does not block others.
async fn slow_readers(fixture: &Fixture<'_>) {
    fixture.shell("truncate -s 10T raw/sparse").await;
    let mut slow = Vec::new();
    for _ in 0..12 {
        slow.push(raw(fixture, "raw/sparse").send().await.unwrap());
    }
    let reads = (0..5).map(|_| fixture.read("raw/file", &[]));
    let reads = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(reads)).await;
    assert!(reads.is_ok(), "others are held up");
    for read in reads.into_iter().flatten() {
        assert_eq!(read.ok(200)["content"], "short");
    }
    // They go on where they are read.
    let first = &mut slow[0];
    let mut came = 0;
    while came < 8 << 20 {
        let chunk = first.chunk().await.unwrap().unwrap();
        assert!(chunk.iter().all(|byte| *byte == 0));
        came += chunk.len();
    }
    drop(slow);
    fixture.remove("raw/sparse", &[]).await.ok(200);
}

async fn watched(fixture: &Fixture<'_>) {
    let watch = fixture.request(Method::GET, "/api/files/watch", &fixture.dir, &[]).send().await.unwrap();
    assert_eq!(watch.status(), 200);
    let mut events = watch.bytes_stream().eventsource();
    let mut seen: Vec<(String, String)> = Vec::new();
    let mut wait_for_creation_of = async |last: &str| {
        let last = ("created".to_owned(), last.to_owned());
        while !seen.contains(&last) {
            let event = tokio::time::timeout(Duration::from_secs(60), events.next()).await;
            let event =
                event.unwrap_or_else(|_| panic!("{fixture:?}: no further event: {seen:?}")).unwrap().unwrap();
            assert_eq!(event.event, "change", "{event:?}");
            let change: Value = serde_json::from_str(&event.data).unwrap();
            let path = change["path"].as_str().unwrap().strip_prefix(&fixture.at("")).unwrap().to_owned();
            seen.push((change["type"].as_str().unwrap().to_owned(), path));
        }
    };
    fixture.shell("mkdir -p w/deep").await;
    // A new folder is watched by the time its creation is reported. A file that has gone before that is not reported.
    wait_for_creation_of("w/deep").await;
    fixture.shell("echo x > w/deep/one; mv w/deep/one w/two; rm w/two").await;
    fixture.write(&json!({"path": fixture.at("w/atomic"), "content": "x"})).await.ok(201);
    wait_for_creation_of("w/atomic").await;
    for (kind, path) in [("created", "w"), ("created", "w/deep"), ("deleted", "w/two")] {
        assert!(seen.contains(&(kind.to_owned(), path.to_owned())), "{fixture:?}: {kind} {path}: {seen:?}");
    }
    drop(events);
    // The watch has ended, and does not affect later operations.
    fixture.remove("w", &[]).await.ok(200);
}
