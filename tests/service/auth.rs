//! Authentication: accepted and refused keys, and the messages of the refusals.

use jiff::{Timestamp, ToSpan};
use reqwest::{Method, header::AUTHORIZATION};
use skep_api::{Scope, keys::IdentifyCaller};
use skep_store::RevokeKey;

use crate::{
    harness::{Refused, Skep, eventually, refused},
    transport::wire::exchange,
};

async fn with_header(skep: &Skep, value: &str) -> reqwest::Response {
    skep.bare(Method::GET, "/api/whoami").header(AUTHORIZATION, value).send().await.unwrap()
}

#[tokio::test]
async fn a_key_is_taken_however_bearer_is_spelled() {
    let skep = Skep::start().await;
    for scheme in ["Bearer ", "bearer ", "BEARER    ", "bEaReR \t "] {
        let response = with_header(&skep, &format!("{scheme}{}", skep.admin)).await;
        assert_eq!(response.status(), 200, "{scheme:?}");
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_refused_with_the_message_of_the_specification() {
    let skep = Skep::start().await;
    let response = skep.bare(Method::GET, "/api/whoami").send().await.unwrap();
    assert!(response.headers().contains_key("www-authenticate"));
    let Refused { status, code, message } = refused(response).await;
    assert_eq!((status, code.as_str(), message.as_str()), (401, "missing_token", "Missing token"));
    let unknown = format!("Bearer sk-skep-prod-{}", "0".repeat(64));
    let upper = format!("Bearer {}", skep.admin.to_uppercase());
    let two = format!("Bearer {} {}", skep.admin, skep.admin);
    for (value, expected) in [
        ("", "Missing token"),
        ("Bearer", "Invalid token"),
        ("Bearer nonsense", "Invalid token"),
        ("Basic c2tlcDo=", "Invalid token"),
        (skep.admin.as_str(), "Invalid token"),
        (unknown.as_str(), "Invalid token"),
        (upper.as_str(), "Invalid token"),
        (two.as_str(), "Invalid token"),
    ] {
        let Refused { status, message, .. } = refused(with_header(&skep, value).await).await;
        assert_eq!((status, message.as_str()), (401, expected), "{value:?}");
    }
}

/// Invalid spellings of the header around a valid key. They are sent by hand, since clients would refuse most of them.
fn invalid_headers(key: &str) -> Vec<(Vec<u8>, u16, &'static str)> {
    let line = |value: String| format!("authorization: {value}\r\n").into_bytes();
    let mut changed = key.to_owned();
    let last = if changed.pop() == Some('0') { '1' } else { '0' };
    changed.push(last);
    let other_environment = key.replace("sk-skep-test-", "sk-skep-prod-");
    let bytes = |head: &str, value: &[u8]| [head.as_bytes(), value, b"\r\n"].concat();
    vec![
        (Vec::new(), 401, "missing_token"),
        (line(String::new()), 401, "missing_token"),
        (line("   \t ".to_owned()), 401, "missing_token"),
        (line("Bearer".to_owned()), 401, "invalid_token"),
        (line("Bearer ".to_owned()), 401, "invalid_token"),
        (line("Bearer \t".to_owned()), 401, "invalid_token"),
        (line(key.to_owned()), 401, "invalid_token"),
        (line(format!("Bearer{key}")), 401, "invalid_token"),
        (line(format!("Bearer:{key}")), 401, "invalid_token"),
        (line(format!("Bearer={key}")), 401, "invalid_token"),
        (line(format!("Basic {key}")), 401, "invalid_token"),
        (line(format!("Token {key}")), 401, "invalid_token"),
        (line(format!("Digest {key}")), 401, "invalid_token"),
        (line(format!("Bearers {key}")), 401, "invalid_token"),
        (line(format!("Bearer Bearer {key}")), 401, "invalid_token"),
        (line(format!("Bearer {key} {key}")), 401, "invalid_token"),
        (line(format!("Bearer {key},{key}")), 401, "invalid_token"),
        (line(format!("Bearer \"{key}\"")), 401, "invalid_token"),
        (line(format!("Bearer {key}=")), 401, "invalid_token"),
        (line(format!("Bearer {changed}")), 401, "invalid_token"),
        (line(format!("Bearer {other_environment}")), 401, "invalid_token"),
        (line(format!("Bearer {}", key.to_uppercase())), 401, "invalid_token"),
        (line(format!("Bearer {}", &key[..key.len() - 1])), 401, "invalid_token"),
        (line(format!("Bearer {key}0")), 401, "invalid_token"),
        (line(format!("Bearer {}", &key[1..])), 401, "invalid_token"),
        (line(format!("Bearer {}", key.replace('-', "_"))), 401, "invalid_token"),
        (line(format!("Bearer %{:02x}{}", key.as_bytes()[0], &key[1..])), 401, "invalid_token"),
        (line(format!("Bearer \u{430}{key}")), 401, "invalid_token"),
        (line(format!("Bearer \u{a0}{key}")), 401, "invalid_token"),
        (bytes("authorization: Bearer ", &[key.as_bytes(), b"\xff"].concat()), 401, "invalid_token"),
        (line(format!("Bearer {key}{}", "a".repeat(50_000))), 401, "invalid_token"),
        (bytes("authorization: Bearer ", &[key.as_bytes(), b"\0"].concat()), 400, "malformed_request"),
        (line(format!("Bearer {key}\r\nauthorization: Bearer {key}")), 400, "malformed_request"),
        (line(format!("Bearer\r\n {key}")), 400, "malformed_request"),
        (bytes("authorization : Bearer ", key.as_bytes()), 400, "malformed_request"),
        (line(format!("Bearer {}", "a".repeat(1 << 20))), 431, "malformed_request"),
    ]
}

#[tokio::test]
async fn invalid_headers_are_refused_with_the_specified_messages() {
    let skep = Skep::start().await;
    for (header, status, code) in invalid_headers(&skep.admin) {
        let shown = String::from_utf8_lossy(&header[..header.len().min(120)]).into_owned();
        let first = b"GET /api/whoami HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
        let response = exchange(&skep, [&first[..], &header, b"\r\n"].concat()).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {response}");
        assert!(response.contains(&format!("\r\nskep-error: {code}\r\n")), "{shown:?}: {response}");
        assert!(!response.contains(&skep.admin), "{shown:?}: {response}");
    }
    let key = &skep.admin;
    let first = "GET /api/whoami HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    for right in [format!("AUTHORIZATION:Bearer {key}"), format!("Authorization:\tbEARER\t \t{key} \t")] {
        let response = exchange(&skep, format!("{first}{right}\r\n\r\n")).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{right}: {response}");
    }
}

#[tokio::test]
async fn two_keys_are_no_key() {
    let skep = Skep::start().await;
    let request = skep.request(Method::GET, "/api/whoami").header(AUTHORIZATION, "Bearer x");
    let Refused { status, code, .. } = refused(request.send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (400, "malformed_request"));
}

#[tokio::test]
async fn an_expired_or_revoked_key_is_refused() {
    let skep = Skep::start().await;
    let soon = Timestamp::now() + 50.milliseconds();
    let (expiring, _) = skep.key_until(&[Scope::Admin], Some(soon)).await;
    let (revoked, record) = skep.key(&[Scope::Admin]).await;
    let command =
        RevokeKey { account: skep.account.id, id: record.key.id, at: Timestamp::now(), request_id: None };
    skep.store.revoke_key(command).await.unwrap();
    // A key ends by the wall clock, which may run differently from the clock of a sleep.
    let value = format!("Bearer {expiring}");
    eventually("the end of the key", async || with_header(&skep, &value).await.status() == 403).await;
    for key in [expiring, revoked] {
        let response = with_header(&skep, &format!("Bearer {key}")).await;
        let Refused { status, code, message } = refused(response).await;
        assert_eq!((status, code.as_str(), message.as_str()), (403, "token_expired", "Token expired"));
    }
}

#[tokio::test]
async fn whoami_describes_the_key_and_its_account() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[Scope::SwarmRead]).await;
    let client = skep.client(&key);
    let me = client.run(&IdentifyCaller {}).await.unwrap().value;
    assert_eq!((me.key.id, me.account.id), (record.key.id, skep.account.id));
    assert_eq!((me.account.name.as_str(), me.scopes.as_slice()), ("default", &[Scope::SwarmRead][..]));
    assert_eq!(me.roots, skep.account.roots);
    assert_eq!(me.vm, None);
}

#[tokio::test]
async fn the_last_use_of_a_key_is_on_record_when_the_server_has_stopped() {
    let mut skep = Skep::start().await;
    let (key, record) = skep.key(&[Scope::SwarmRead]).await;
    assert_eq!(with_header(&skep, &format!("Bearer {key}")).await.status(), 200);
    skep.stop();
    skep.serving.take().unwrap().await.unwrap().unwrap();
    let record = skep.store.key(skep.account.id, record.key.id).await.unwrap();
    assert!(record.key.last_used_at.is_some());
}
