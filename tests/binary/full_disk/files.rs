//! Files on a full disk.

use std::fs;

use reqwest::Method;
use serde_json::json;

use super::{SIZE_FOR_ALL, with_a_small_disk};
use crate::harness::send;

const TOO_MUCH: usize = 8 << 20;

#[tokio::test]
async fn a_file_for_which_there_is_no_room_leaves_the_old_one_whole() {
    let (skep, folder) = with_a_small_disk("workspaces/default", SIZE_FOR_ALL).await;
    let me = skep.get("/api/whoami").await.ok(200);
    let path = format!("{}/file", me["roots"][0].as_str().unwrap());

    let write = async |content: String| {
        skep.post("/api/files/write", &json!({"path": path, "content": content})).await
    };
    write("before".to_owned()).await.ok(201);
    write("x".repeat(TOO_MUCH)).await.refused(503, "disk_full");
    let put = skep.request(Method::PUT, &format!("/api/files/raw?path={path}"));
    // What is refused in the middle of its body ends its connection.
    send(put.header("connection", "close").body(vec![b'x'; TOO_MUCH])).await.refused(503, "disk_full");
    let order = json!({"path": path, "content": "x".repeat(TOO_MUCH), "append": true});
    skep.post("/api/files/write", &order).await.refused(503, "disk_full");
    let read = skep.get(&format!("/api/files/read?path={path}")).await.ok(200);
    assert_eq!(read["content"], "before");
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"], "drafts were left");
    write("after".to_owned()).await.ok(200);
}
