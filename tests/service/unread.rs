//! Answers that clients do not read hold no resources that other callers need.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use skep_api::Scope;

use crate::harness::{Skep, eventually};

/// An answer that takes longer fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);
const DOWNLOADS: usize = 40;

#[tokio::test]
async fn unread_downloads_leave_the_store_to_other_accounts() {
    let skep = Skep::start().await;
    std::fs::File::create(skep.at("large")).unwrap().set_len(1 << 40).unwrap();
    let (key, _) = skep.key(&[Scope::FilesRead]).await;
    let downloads = join_all((0..DOWNLOADS).map(|_| {
        let path = format!("/api/files/read?path={}", skep.at("large"));
        let download = skep.bare(Method::GET, &path).bearer_auth(&key);
        download.header("accept", "application/octet-stream").send()
    }));
    let downloads: Vec<_> = downloads.await.into_iter().map(Result::unwrap).collect();
    assert!(downloads.iter().all(|download| download.status() == StatusCode::OK));

    let other = skep.other_account("other").await;
    for round in 0..8 {
        // A key that was not used before is looked up in the store, and so is the list.
        let key = tokio::time::timeout(TIMEOUT, skep.key_of(&other, &[Scope::Admin])).await.unwrap();
        let list = skep.bare(Method::GET, "/api/keys").bearer_auth(key).send();
        let list = tokio::time::timeout(TIMEOUT, list).await;
        let list = list.unwrap_or_else(|_| panic!("round {round}: the downloads hold the store's readers"));
        assert_eq!(list.unwrap().status(), StatusCode::OK);
    }
    // It is refused where a write takes longer than two seconds.
    let health = async || skep.bare(Method::GET, "/api/health").send().await.unwrap().status();
    eventually("the health", async || health().await == StatusCode::OK).await;
    drop(downloads);
}
