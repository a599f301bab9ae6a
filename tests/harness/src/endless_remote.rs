//! A git remote on loopback whose pack does not end.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::Uri,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;

/// A remote whose pack does not end: one file of random bytes.
pub struct EndlessRemote {
    pub url: String,
    asked: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

impl EndlessRemote {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x.git", listener.local_addr().unwrap());
        let [asked, sent] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (asks, pieces) = (Arc::clone(&asked), Arc::clone(&sent));
        let answer = async move |uri: Uri| -> Response {
            if uri.path().ends_with("/info/refs") {
                asks.fetch_add(1, Ordering::SeqCst);
                return advertisement().into_response();
            }
            let headers = [("content-type", "application/x-git-upload-pack-result")];
            (headers, Body::from_stream(endless_pack(pieces))).into_response()
        };
        tokio::spawn(axum::serve(listener, Router::new().fallback(answer)).into_future());
        Self { url, asked, sent }
    }

    /// How often its references were asked for.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// How much of the pack it has sent, in MiB.
    pub fn sent_mebibytes(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

/// Eight pieces a second, so that a test of a minute does not fill the disk.
fn endless_pack(sent: Arc<AtomicUsize>) -> impl Stream<Item = std::io::Result<Bytes>> {
    let pieces = stream::once(async { pack_header() }).chain(stream::repeat_with(stored_mebibyte));
    pieces.then(move |piece| {
        let sent = Arc::clone(&sent);
        async move {
            tokio::time::sleep(Duration::from_millis(125)).await;
            sent.fetch_add(1, Ordering::SeqCst);
            Ok(piece)
        }
    })
}

/// One branch (gitprotocol-http(5)).
fn advertisement() -> impl IntoResponse {
    let line = |text: String| format!("{:04x}{text}", text.len() + 4);
    let id = "1234567890123456789012345678901234567890";
    let text = [
        line("# service=git-upload-pack\n".to_owned()),
        "0000".to_owned(),
        line(format!("{id} HEAD\0symref=HEAD:refs/heads/main\n")),
        line(format!("{id} refs/heads/main\n")),
        "0000".to_owned(),
    ];
    ([("content-type", "application/x-git-upload-pack-advertisement")], text.concat())
}

/// The beginning of a pack with one blob of 2 GiB (gitformat-pack(5)), and of its zlib stream.
fn pack_header() -> Bytes {
    let mut pack = b"0008NAK\nPACK".to_vec();
    pack.extend([2_u32.to_be_bytes(), 1_u32.to_be_bytes()].concat());
    // The type 3, and the size in groups of four bits and then of seven, the lowest first.
    pack.extend([0xb0, 0x80, 0x80, 0x80, 0x40]);
    pack.extend([0x78, 0x01]);
    pack.into()
}

/// 16 stored blocks of random bytes (RFC 1951, section 3.2.4).
fn stored_mebibyte() -> Bytes {
    let mut random = vec![0; 0xffff];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).unwrap();
    let block = [&[0, 0xff, 0xff, 0, 0][..], &random[..]].concat();
    block.repeat(16).into()
}
