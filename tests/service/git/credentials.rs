//! Git credentials are stored and used, but never returned.

use std::{fs, os::unix::fs::PermissionsExt};

use reqwest::Method;
use serde_json::{Value, json};
use skep_api::Scope;

use super::{get, post, refused, send};
use crate::harness::Skep;

const TOKEN: &str = "ghp_a-very-secret-token";

#[tokio::test]
async fn a_token_is_stored_encrypted_and_never_returned() {
    let skep = Skep::start().await;
    let kept = post(&skep, "credentials", json!({"host": "Git.Example.com", "token": TOKEN})).await;
    assert_eq!((&kept["host"], &kept["username"]), (&json!("git.example.com"), &json!("x-access-token")));
    let again = json!({"host": "git.example.com", "token": "another", "username": "ada"});
    assert_eq!(post(&skep, "credentials", again).await["username"], "ada");
    post(&skep, "credentials", json!({"host": "a.example.com:8443", "token": TOKEN})).await;
    let page = get(&skep, "credentials", "limit=1").await;
    assert_eq!(
        (&page["credentials"][0]["host"], &page["next_cursor"]),
        (&json!("a.example.com:8443"), &json!("a.example.com:8443"))
    );
    let page = get(&skep, "credentials", "limit=1&cursor=a.example.com:8443").await;
    assert_eq!((&page["credentials"][0]["username"], &page["next_cursor"]), (&json!("ada"), &json!(null)));
    assert!(!get(&skep, "credentials", "").await.to_string().contains(TOKEN));
    let key = skep.data.path().join("git-credentials.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    for entry in fs::read_dir(skep.data.path()).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            let holds = bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes());
            assert!(!holds, "{:?} holds the token in clear", entry.path());
        }
    }
    let removal = async || {
        let path = "/api/git/credentials?host=git.example.com";
        skep.request(Method::DELETE, path).send().await.unwrap()
    };
    assert_eq!(removal().await.json::<Value>().await.unwrap()["removed"], true);
    refused(removal().await, 404, "unknown_credential").await;
}

#[tokio::test]
async fn credentials_belong_to_their_account_and_to_those_who_may_write() {
    let skep = Skep::start().await;
    post(&skep, "credentials", json!({"host": "git.example.com", "token": TOKEN})).await;
    let (reader, _) = skep.key(&[Scope::GitRead]).await;
    let list = skep.bare(Method::GET, "/api/git/credentials").bearer_auth(&reader).send().await.unwrap();
    refused(list, 403, "scope_missing").await;
    // `git:write` alone allows a key to list credentials, but not to change them.
    let (writer, _) = skep.key(&[Scope::GitWrite]).await;
    let list = skep.bare(Method::GET, "/api/git/credentials").bearer_auth(&writer).send().await.unwrap();
    assert_eq!(list.json::<Value>().await.unwrap()["credentials"][0]["host"], "git.example.com");
    let body = json!({"host": "git.example.com", "token": "replaced"});
    let replaced = skep.bare(Method::POST, "/api/git/credentials").bearer_auth(&writer).json(&body);
    refused(replaced.send().await.unwrap(), 403, "scope_missing").await;
    let removed = skep.bare(Method::DELETE, "/api/git/credentials?host=git.example.com").bearer_auth(&writer);
    refused(removed.send().await.unwrap(), 403, "scope_missing").await;
    let other = skep.other_account("acme").await;
    let key = skep.key_of(&other, &[Scope::GitWrite, Scope::Admin]).await;
    let list = skep.bare(Method::GET, "/api/git/credentials").bearer_auth(&key).send().await.unwrap();
    assert_eq!(list.json::<Value>().await.unwrap()["credentials"], json!([]));
    let path = "/api/git/credentials?host=git.example.com";
    let removal = skep.bare(Method::DELETE, path).bearer_auth(&key).send().await.unwrap();
    refused(removal, 404, "unknown_credential").await;
}

#[tokio::test]
async fn what_git_could_misread_is_refused_and_not_repeated() {
    let skep = Skep::start().await;
    let kept =
        json!({"host": "ssh://Git.Example.com:22", "token": "-----BEGIN OPENSSH PRIVATE KEY-----\r\nx"});
    assert_eq!(post(&skep, "credentials", kept).await["host"], "ssh://git.example.com:22");
    for (host, token) in [
        ("", TOKEN),
        ("-x", TOKEN),
        ("a b", TOKEN),
        ("https://git.example.com", TOKEN),
        ("a:b", TOKEN),
        ("ssh://", TOKEN),
        ("ssh://git.example.com", TOKEN),
        ("git.example.com", ""),
        ("git.example.com", "two\nlines ghp_a-very-secret-token"),
    ] {
        let body = json!({"host": host, "token": token});
        let message = refused(send(&skep, "credentials", body).await, 400, "invalid_value").await;
        assert!(!message.contains(TOKEN), "{message}");
    }
}
