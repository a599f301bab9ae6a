//! The files of a workspace and the limit of its account on disk space.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future::join_all, stream};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use skep_harness::endless_remote::EndlessRemote;

use crate::harness::{Options, Skep, done, eventually, refused};

const MEBIBYTE: usize = 1 << 20;

async fn limit(skep: &Skep, max_disk_mb: Option<u64>) {
    let path = format!("/api/accounts/{}", skep.account.id);
    done(skep.request(Method::PATCH, &path).json(&json!({"max_disk_mb": max_disk_mb})), 200).await;
}

async fn used_mb(skep: &Skep) -> u64 {
    done(skep.request(Method::GET, "/api/swarm/status"), 200).await["disk_used_mb"].as_u64().unwrap()
}

async fn upload(skep: &Skep, name: &str, bytes: usize) -> Response {
    let request = skep.request(Method::PUT, &format!("/api/files/raw?path={}", skep.at(name)));
    request.header("content-type", "application/octet-stream").body(vec![7; bytes]).send().await.unwrap()
}

/// An upload in pieces, whose length the server does not know.
async fn upload_in_pieces(skep: &Skep, name: &str, mebibytes: usize) -> StatusCode {
    let piece = Bytes::from(vec![7; MEBIBYTE]);
    let pieces = stream::iter((0..mebibytes).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let request = skep.request(Method::PUT, &format!("/api/files/raw?path={}", skep.at(name)));
    let body = reqwest::Body::wrap_stream(pieces);
    request.header("content-type", "application/octet-stream").body(body).send().await.unwrap().status()
}

async fn post(skep: &Skep, path: &str, body: Value) -> Response {
    skep.request(Method::POST, path).json(&body).send().await.unwrap()
}

async fn remove(skep: &Skep, name: &str) {
    let path = format!("/api/files?recursive=true&path={}", skep.at(name));
    done(skep.request(Method::DELETE, &path), 200).await;
}

/// Checks the refusal for a limit in MiB, and returns its message.
async fn over_quota(response: Response, max_disk_mb: u64) -> String {
    let refused = refused(response).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "quota_exceeded"), "{}", refused.message);
    let limit = format!("this account's {max_disk_mb} MiB (`max_disk_mb`)");
    assert!(refused.message.contains(&limit), "{}", refused.message);
    assert!(refused.message.contains("remove files"), "{}", refused.message);
    refused.message
}

async fn post_status(skep: &Skep, path: &str, body: Value) -> u16 {
    post(skep, path, body).await.status().as_u16()
}

/// Makes folders until one is refused. Returns their number.
async fn fill_with_folders(skep: &Skep, most: usize) -> usize {
    for number in 0..=most {
        let body = json!({"path": skep.at(&format!("folder-{number}"))});
        let status = post_status(skep, "/api/mkdir", body).await;
        if status == 409 {
            return number;
        }
        assert_eq!(status, 201);
    }
    panic!("{most} folders and one more were made");
}

/// What lies below the workspace, in bytes of the disk.
fn occupied(skep: &Skep) -> u64 {
    fn below(folder: &Path) -> u64 {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let bytes = entries.map(|path| {
            let metadata = fs::symlink_metadata(&path).unwrap();
            metadata.blocks() * 512 + if metadata.is_dir() { below(&path) } else { 0 }
        });
        bytes.sum()
    }
    below(Path::new(&skep.account.roots[0]))
}

fn names(skep: &Skep) -> Vec<String> {
    let entries = fs::read_dir(&skep.account.roots[0]).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_account_has_no_more_files_than_it_may() {
    let skep = Skep::start().await;
    fs::create_dir(skep.at("old")).unwrap();
    fs::write(skep.at("old/data"), vec![7; MEBIBYTE]).unwrap();
    limit(&skep, Some(8)).await;
    assert_eq!(upload(&skep, "first", 4 * MEBIBYTE).await.status(), 201);
    let message = over_quota(upload(&skep, "second", 4 * MEBIBYTE).await, 8).await;
    assert!(message.contains("MiB of disk space were asked for, and 6 MiB of"), "{message}");
    let (first, second) = (skep.at("first"), skep.at("second"));
    over_quota(post(&skep, "/api/files/copy", json!({"from": first, "to": second})).await, 8).await;
    let content = "x".repeat(4 * MEBIBYTE);
    over_quota(post(&skep, "/api/files/write", json!({"path": second, "content": content})).await, 8).await;
    let append = json!({"path": first, "content": content, "append": true});
    over_quota(post(&skep, "/api/files/write", append).await, 8).await;
    // A copy of a folder that does not fit leaves nothing.
    done(
        skep.request(Method::POST, "/api/files/move")
            .json(&json!({"from": first, "to": skep.at("old/first")})),
        200,
    )
    .await;
    let copy = json!({"from": skep.at("old"), "to": skep.at("new")});
    over_quota(post(&skep, "/api/files/copy", copy.clone()).await, 8).await;
    assert_eq!(names(&skep), ["old"]);
    assert_eq!(fs::metadata(skep.at("old/first")).unwrap().len(), 4 * MEBIBYTE as u64);
    assert_eq!(used_mb(&skep).await, 6);
    // What is removed, with skep or without, makes room at once.
    remove(&skep, "old/first").await;
    assert_eq!(upload(&skep, "first", 6 * MEBIBYTE).await.status(), 201);
    over_quota(upload(&skep, "second", 2 * MEBIBYTE).await, 8).await;
    fs::remove_file(skep.at("old/data")).unwrap();
    assert_eq!(upload(&skep, "second", MEBIBYTE).await.status(), 201);
    remove(&skep, "second").await;
    // Also for a request that finds out first what VMs occupy, which it does if that is older than a second.
    remove(&skep, "first").await;
    assert_eq!(upload(&skep, "first", 3 * MEBIBYTE).await.status(), 201);
    assert_eq!(upload(&skep, "second", 4 * MEBIBYTE).await.status(), 201);
    fs::remove_file(skep.at("second")).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let copy_first = json!({"from": skep.at("first"), "to": skep.at("second")});
    done(skep.request(Method::POST, "/api/files/copy").json(&copy_first), 200).await;
    remove(&skep, "second").await;
    // Without the limit, all of that is possible.
    limit(&skep, None).await;
    assert_eq!(upload(&skep, "third", 4 * MEBIBYTE).await.status(), 201);
    done(skep.request(Method::POST, "/api/files/copy").json(&copy), 200).await;
    assert_eq!(used_mb(&skep).await, 0, "only an account with a limit is counted");
}

#[tokio::test]
async fn writes_at_the_same_time_do_not_exceed_the_limit_together() {
    let skep = Skep::start().await;
    limit(&skep, Some(8)).await;
    for round in 0..3 {
        let names: Vec<_> = (0..8).map(|number| format!("{round}-{number}")).collect();
        let statuses = join_all(names.iter().map(|name| upload_in_pieces(&skep, name, 3))).await;
        let written = statuses.iter().filter(|status| **status == 201).count();
        assert!(written <= 2, "{statuses:?}");
        assert!(statuses.iter().all(|status| [201, 409].contains(&status.as_u16())), "{statuses:?}");
        assert!(occupied(&skep) <= 8 << 20, "{}", occupied(&skep));
        // Alone, one fits, although the others have taken disk space that they did not use.
        for name in &names {
            let _ = fs::remove_file(skep.at(name));
        }
        assert_eq!(upload_in_pieces(&skep, "alone", 7).await, 201);
        remove(&skep, "alone").await;
    }
}

#[tokio::test]
async fn entries_without_content_count_too() {
    let skep = Skep::start().await;
    limit(&skep, Some(1)).await;
    assert_eq!(fill_with_folders(&skep, 256).await, 256);
    over_quota(post(&skep, "/api/files/link", json!({"path": skep.at("link"), "target": "x"})).await, 1)
        .await;
    over_quota(post(&skep, "/api/files/write", json!({"path": skep.at("file"), "content": ""})).await, 1)
        .await;
    over_quota(post(&skep, "/api/git/init", json!({"path": skep.at("folder-0")})).await, 1).await;
    remove(&skep, "folder-0").await;
    // What exists needs no room, and what cannot be counted is not made.
    done(skep.request(Method::POST, "/api/mkdir").json(&json!({"path": skep.at("folder-1")})), 200).await;
    let closed = json!({"path": skep.at("folder-0"), "mode": "0300"});
    let refused = refused(post(&skep, "/api/mkdir", closed.clone()).await).await;
    assert_eq!((refused.status, refused.code.as_str()), (400, "invalid_value"), "{}", refused.message);
    assert!(refused.message.contains("`mode` is 0300"), "{}", refused.message);
    let again = json!({"path": skep.at("folder-0")});
    done(skep.request(Method::POST, "/api/mkdir").json(&again), 201).await;
    remove(&skep, "folder-0").await;
    limit(&skep, None).await;
    done(skep.request(Method::POST, "/api/mkdir").json(&closed), 201).await;
    // Without root, a folder that cannot be listed could not be removed after the test.
    fs::set_permissions(skep.at("folder-0"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn folders_that_are_nested_too_deep_to_be_counted_are_named() {
    let skep = Skep::start().await;
    limit(&skep, Some(8)).await;
    let deep = format!("a{}", "/d".repeat(80));
    done(skep.request(Method::POST, "/api/mkdir").json(&json!({"path": skep.at(&deep)})), 201).await;
    for _ in 0..2 {
        for response in [
            upload(&skep, "file", 8 * MEBIBYTE).await,
            post(&skep, "/api/mkdir", json!({"path": skep.at("folder")})).await,
            post(&skep, "/api/git/init", json!({"path": skep.at("repository")})).await,
        ] {
            let refused = refused(response).await;
            assert_eq!((refused.status, refused.code.as_str()), (409, "quota_exceeded"));
            assert!(refused.message.contains("nested more than 64 deep"), "{}", refused.message);
        }
    }
    assert_eq!(names(&skep), ["a"]);
    remove(&skep, "a").await;
    assert_eq!(upload(&skep, "file", 7 * MEBIBYTE).await.status(), 201);
}

#[tokio::test]
async fn git_ends_once_it_has_filled_the_disk_space() {
    let skep =
        Skep::start_with(Options { git_allow: vec!["127.0.0.1".to_owned()], ..Options::default() }).await;
    limit(&skep, Some(8)).await;
    let remote = EndlessRemote::start().await;
    let clone = json!({"url": remote.url, "path": skep.at("clone")});
    over_quota(post(&skep, "/api/git/clone", clone.clone()).await, 8).await;
    let sent = remote.sent_mebibytes();
    assert!((8..256).contains(&sent), "{sent} MiB were sent");
    eventually("the removal of the clone", async || names(&skep).is_empty()).await;
    assert_eq!(upload(&skep, "file", 7 * MEBIBYTE).await.status(), 201);
    // Git does not even begin where nothing is left.
    fill_with_folders(&skep, 256).await;
    let asked = remote.asked();
    over_quota(post(&skep, "/api/git/clone", clone.clone()).await, 8).await;
    assert_eq!(remote.asked(), asked, "the remote was asked");
    // Without the limit, the clone goes on.
    limit(&skep, None).await;
    let (before, others) = (remote.sent_mebibytes(), names(&skep));
    tokio::select! {
        response = post(&skep, "/api/git/clone", clone) => panic!("{}", response.text().await.unwrap()),
        () = eventually("more of the pack", async || remote.sent_mebibytes() > before + sent) => {}
    }
    // Git would write below the workspace while the end of the test removes it.
    eventually("the removal of the clone", async || names(&skep) == others).await;
}

#[tokio::test]
async fn a_push_needs_no_room() {
    let skep = Skep::start().await;
    let git = |folder: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]).args(arguments);
        let output = command.current_dir(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (source, remote) = (skep.at("source"), skep.at("remote.git"));
    git(&skep.account.roots[0], &["init", "-q", "-b", "main", &source]);
    git(&skep.account.roots[0], &["init", "-q", "--bare", "-b", "main", &remote]);
    git(&source, &["commit", "-q", "--allow-empty", "-m", "First"]);
    git(&source, &["remote", "add", "origin", &remote]);
    limit(&skep, Some(1)).await;
    fill_with_folders(&skep, 256).await;
    over_quota(post(&skep, "/api/git/init", json!({"path": skep.at("other")})).await, 1).await;
    done(
        skep.request(Method::POST, "/api/git/push").json(&json!({"path": source, "set_upstream": true})),
        200,
    )
    .await;
}

#[tokio::test]
async fn many_requests_that_wait_for_a_count_leave_the_server_usable() {
    let skep = Skep::start().await;
    limit(&skep, Some(1)).await;
    fill_with_folders(&skep, 256).await;
    // More than the threads for blocking work, 512.
    let waiting = join_all((0..800).map(|number| {
        let body = json!({"path": skep.at(&format!("more-{number}")), "content": "x"});
        post_status(&skep, "/api/files/write", body)
    }));
    let list = format!("/api/ls?path={}", skep.at(""));
    let (statuses, page) = tokio::join!(waiting, skep.get(&list));
    assert_eq!(page.status(), 200);
    assert!(statuses.iter().all(|status| [409, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&409), "{statuses:?}");
}
