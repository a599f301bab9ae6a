//! An upload to a VM that is copied meanwhile.

use std::{future::ready, io, time::Duration};

use futures_util::{StreamExt, stream};
use reqwest::{Body, Method};
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    copies::{fork, pid_of},
    harness::{Skep, eventually, send},
};

/// The size of each half of an upload, in bytes: more than one block that the guest writes at once.
const HALF_BYTES: usize = 1 << 20;

/// The body of an upload: a half of one letter, then one more of these in each second, so that the server does not take the
/// body for stalled, and the last half when it is sent.
fn body(last_half: oneshot::Receiver<Vec<u8>>) -> Body {
    let first_half = stream::once(ready(Ok(vec![b'a'; HALF_BYTES])));
    let rest = stream::unfold(Some(last_half), |last_half| async move {
        let mut last_half = last_half?;
        match timeout(Duration::from_secs(1), &mut last_half).await {
            Err(_) => Some((Ok(vec![b'a']), Some(last_half))),
            Ok(half) => Some((half.map_err(io::Error::other), None)),
        }
    });
    Body::wrap_stream(first_half.chain(rest))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_under_way_breaks_off_in_a_copy_and_completes_in_its_parent() {
    let skep = Skep::start().await;
    let parent = skep.boot(1).await.remove(0);
    let put = |vm: &Value, body: Body| {
        let path = format!("/api/files/raw?path=/root/upload/file&vm={}", vm["id"].as_str().unwrap());
        send(skep.request(Method::PUT, &path).body(body))
    };
    let (last_half, receiver) = oneshot::channel();
    let upload = tokio::spawn(put(&parent, body(receiver)));
    // The folder comes with the upload.
    let begun = "cat /root/upload/.skep-* 2>/dev/null | wc -c";
    eventually("the upload's beginning", async || skep.output(pid_of(&parent), begun).await != "0").await;

    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    let files = async |vm: &Value| skep.output(pid_of(vm), "ls -A /root/upload").await;
    eventually("the upload's end in the copy", async || files(&copy).await.is_empty()).await;
    last_half.send(vec![b'b'; HALF_BYTES]).unwrap();
    let written = upload.await.unwrap().ok(201);
    assert_eq!(files(&parent).await, "file");
    // The whole size, all letters in order, and the size of the last half.
    let sizes = "cd /root/upload; echo $(stat -c %s file) $(tr -s ab < file) $(tr -d a < file | wc -c)";
    let expected = format!("{} ab {HALF_BYTES}", written["size_bytes"]);
    assert_eq!(skep.output(pid_of(&parent), sizes).await, expected);
    assert_eq!(files(&copy).await, "");

    // The copy takes an upload of its own to the same path.
    put(&copy, Body::from("own")).await.ok(201);
    assert_eq!(skep.output(pid_of(&copy), "cat /root/upload/file").await, "own");
}
