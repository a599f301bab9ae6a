//! Content after requests and answers: complete, interrupted, and left unread.

use std::{io, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use skep_api::{
    AbsolutePath, Call, ErrorCode,
    files::{ReadFile, WriteCondition},
    path::PathEncoding,
    streams::{ByteRange, FilePart, StreamFile, UploadFile},
};
use skep_channel::{Content, Guest};

use crate::fixture::Fixture;

fn path(fixture: &Fixture, name: &str) -> AbsolutePath {
    let path = fixture.dir.path().join(name);
    AbsolutePath::parse("path", path.to_str().expect("UTF-8"), PathEncoding::Plain).expect("a path")
}

fn upload(fixture: &Fixture, name: &str) -> UploadFile {
    let condition = WriteCondition::None;
    UploadFile { path: path(fixture, name), mode: None, create_parents: true, condition }
}

fn download(fixture: &Fixture, name: &str, range: Option<ByteRange>) -> StreamFile {
    StreamFile { path: path(fixture, name), range, if_range: None }
}

/// The given number of different blocks of 64 KiB.
fn blocks(count: u32) -> Content {
    Box::pin(stream::iter((0..count).map(|number| Ok(number.to_be_bytes().repeat(16 << 10).into()))))
}

async fn all(mut content: Content) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = content.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

/// A small request, which other streams must not block.
async fn read(guest: &Guest, fixture: &Fixture, name: &str) -> String {
    let read = Call::from(ReadFile::whole(path(fixture, name)));
    let answer = tokio::time::timeout(Duration::from_secs(60), guest.call(&read)).await;
    answer.expect("a call is held up").expect("the content").content
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_cross_in_both_directions_and_refusals_unchanged() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let (written, _) =
        guest.call_streamed(&upload(&fixture, "a/file"), Some(blocks(320))).await.expect("a file");
    assert_eq!((written.size_bytes, written.created), (20 << 20, true));
    let expected = all(blocks(320)).await.expect("bytes");
    assert!(std::fs::read(fixture.dir.path().join("a/file")).expect("a file") == expected);
    let whole = download(&fixture, "a/file", None);
    let (file, content) = guest.call_streamed(&whole, None).await.expect("a file");
    assert_eq!((file.part, &file.etag), (FilePart::Whole, &written.etag));
    assert!(all(content).await.expect("bytes") == expected);
    let part = download(&fixture, "a/file", Some(ByteRange::Last(100_000)));
    let (file, content) = guest.call_streamed(&part, None).await.expect("a part");
    assert_eq!(file.part, FilePart::Range { first: (20 << 20) - 100_000, length: 100_000 });
    assert!(all(content).await.expect("bytes") == expected[(20 << 20) - 100_000..]);
    let refused =
        guest.call_streamed(&download(&fixture, "none", None), None).await.err().expect("a refusal");
    assert_eq!(refused.code(), ErrorCode::UnknownPath);
    let refused =
        guest.call_streamed(&upload(&fixture, "a"), Some(blocks(320))).await.err().expect("a refusal");
    assert_eq!(refused.code(), ErrorCode::NotAFile, "before its bytes were sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_upload_creates_no_file() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let broken = blocks(8).chain(stream::iter([Err(io::Error::other("cut"))]));
    let refused = guest.call_streamed(&upload(&fixture, "file"), Some(Box::pin(broken))).await;
    let refused = refused.err().expect("half of it is no file");
    assert_eq!(refused.code(), ErrorCode::MalformedBody, "{refused}");
    // No caller waits for this one any more.
    let endless = blocks(8).chain(stream::pending());
    let upload = upload(&fixture, "endless");
    let left = guest.call_streamed(&upload, Some(Box::pin(endless)));
    assert!(tokio::time::timeout(Duration::from_millis(300), left).await.is_err());
    drop(guest);
    // A second host, as after a restart of the server.
    let guest = fixture.connect().await;
    std::fs::write(fixture.dir.path().join("other"), "there").expect("a file");
    assert_eq!(read(&guest, &fixture, "other").await, "there");
    for _ in 0..500 {
        let names = std::fs::read_dir(fixture.dir.path()).expect("a folder").count();
        if names == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("something is left");
}

/// Each stream buffers at most its window, so the others are not blocked.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_streams_do_not_block_other_requests() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let sparse = std::fs::File::create(fixture.dir.path().join("sparse")).expect("a file");
    sparse.set_len(10 << 40).expect("room for nothing");
    std::fs::write(fixture.dir.path().join("other"), "there").expect("a file");
    let mut unread = Vec::new();
    for _ in 0..40 {
        let stream = download(&fixture, "sparse", None);
        unread.push(guest.call_streamed(&stream, None).await.expect("a stream").1);
    }
    let mut waiting = Vec::new();
    for number in 0..6 {
        let (guest, upload) = (guest.clone(), upload(&fixture, &format!("upload{number}")));
        let content: Content = Box::pin(blocks(16).chain(stream::pending()));
        waiting
            .push(tokio::spawn(async move { guest.call_streamed(&upload, Some(content)).await.map(drop) }));
    }
    for _ in 0..10 {
        assert_eq!(read(&guest, &fixture, "other").await, "there");
    }
    let mut first = unread.swap_remove(0);
    let mut came = 0;
    while came < 16 << 20 {
        came += first.next().await.expect("more").expect("bytes").len();
    }
    assert_eq!(read(&guest, &fixture, "other").await, "there");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let short = Some(Box::pin(stream::iter([Ok(Bytes::from_static(b"short"))])) as Content);
    let (written, _) =
        guest.call_streamed(&upload(&fixture, "last"), short).await.expect("room for one more");
    assert_eq!(written.size_bytes, 5);
}
