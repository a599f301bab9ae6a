//! `/api/keys`.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use skep_accounts::{KeySecret, scopes_of};
use skep_api::{
    ErrorCode, KeyId, Role, Scope,
    keys::{CreateKey, IdentifyCaller, Key, ListKeys, ReadKey, RevokeAllKeys, RevokeKey},
};

use crate::{
    clock::advance_clock,
    harness::{Refused, Skep, eventually, refused},
};

fn named(name: &str, role: Role) -> CreateKey {
    CreateKey { name: name.to_owned(), role: Some(role), ..CreateKey::default() }
}

#[tokio::test]
async fn a_key_is_created_used_and_revoked() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let made = admin.run(&named("ci", Role::Agent)).await.unwrap().value;
    assert_eq!(made.record.prefix, KeySecret::parse(&made.key).unwrap().prefix());
    assert_eq!(made.record.scopes, scopes_of(Role::Agent, "default"));
    let agent = skep.client(&made.key);
    assert_eq!(agent.run(&IdentifyCaller {}).await.unwrap().key.name, "ci");
    let refused = agent.run(&ListKeys::default()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::ScopeMissing);
    let taken = admin.run(&named("ci", Role::Agent)).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::NameTaken);

    let revoked = admin.run_on(made.record.id, &RevokeKey {}).await.unwrap().value;
    assert!(revoked.revoked_at.is_some());
    assert_eq!(agent.run(&IdentifyCaller {}).await.unwrap_err().to_string(), "Token expired");
    let again = admin.run_on(made.record.id, &RevokeKey {}).await.unwrap().value;
    assert_eq!(again.revoked_at, revoked.revoked_at);
    assert_eq!(admin.run_on(made.record.id, &ReadKey {}).await.unwrap().revoked_at, revoked.revoked_at);
    assert!(admin.run(&named("ci", Role::Agent)).await.is_ok(), "the name is free again");
}

#[tokio::test]
async fn a_created_key_is_answered_with_201_and_whole_times() {
    let skep = Skep::start().await;
    let response = skep.post("/api/keys", r#"{"name": "ci", "scopes": ["files:read"]}"#).await;
    assert_eq!(response.status(), 201);
    let body: Value = response.json().await.unwrap();
    let created = body["created_at"].as_str().unwrap();
    assert_eq!((created.len(), &created[19..20], &created[23..]), (24, ".", "Z"), "{created}");
    assert_eq!(body["scopes"], serde_json::json!(["files:read"]));
    for field in
        ["id", "account", "prefix", "environment", "role", "vm", "last_used_at", "expires_at", "revoked_at"]
    {
        assert!(body.get(field).is_some(), "{field}");
    }
}

#[tokio::test]
async fn a_key_tells_when_it_was_last_used() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let made = admin.run(&named("used", Role::Agent)).await.unwrap().value;
    assert!(made.record.last_used_at.is_none());
    skep.client(&made.key).run(&IdentifyCaller {}).await.unwrap();
    // Uses are written every 15 s.
    eventually("the use", async || {
        advance_clock(Duration::from_secs(15)).await;
        admin.run_on(made.record.id, &ReadKey {}).await.unwrap().last_used_at.is_some()
    })
    .await;
}

#[tokio::test]
async fn invalid_keys_are_refused() {
    let skep = Skep::start().await;
    for (body, status, code) in [
        ("{}", 400, "missing_parameter"),
        (r#"{"name": "x"}"#, 400, "missing_parameter"),
        (r#"{"name": "", "role": "agent"}"#, 400, "invalid_value"),
        (r#"{"name": "x", "role": "agent", "scopes": []}"#, 400, "invalid_value"),
        (r#"{"name": "x", "role": "root"}"#, 400, "invalid_value"),
        (r#"{"name": "x", "role": "agent", "expires_at": "2020-01-01T00:00:00Z"}"#, 400, "invalid_value"),
        (r#"{"name": "x", "role": "agent", "expires_at": "tomorrow"}"#, 400, "invalid_value"),
        (r#"{"name": "x", "role": "vm"}"#, 400, "missing_parameter"),
        (r#"{"name": "x", "role": "vm", "vm": "a_b"}"#, 404, "unknown_vm"),
        (r#"{"name": "x", "role": "vm", "vm": 7}"#, 503, "swarm_unavailable"),
    ] {
        let found = refused(skep.post("/api/keys", body).await).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{body}: {}", found.message);
    }
    let (few, _) = skep.key(&[Scope::Admin]).await;
    let more = skep.client(&few).run(&named("x", Role::Agent)).await.unwrap_err();
    assert_eq!(more.code(), ErrorCode::ScopeMissing);
}

#[tokio::test]
async fn an_invalid_key_id_is_answered_like_an_unknown_one() {
    let skep = Skep::start().await;
    let unknown = KeyId::generate().to_string();
    for method in [Method::GET, Method::DELETE] {
        let mut messages = Vec::new();
        for id in [unknown.as_str(), "abc"] {
            let request = skep.request(method.clone(), &format!("/api/keys/{id}"));
            let Refused { status, code, message } = refused(request.send().await.unwrap()).await;
            assert_eq!((status, code.as_str()), (404, "unknown_key"));
            messages.push(message.replace(id, "ID"));
        }
        assert_eq!(messages[0], messages[1]);
    }
}

#[tokio::test]
async fn a_list_is_read_page_by_page() {
    let skep = Skep::start().await;
    for _ in 0..4 {
        skep.key(&[]).await;
    }
    let mut found: Vec<Key> = Vec::new();
    let mut cursor = String::new();
    loop {
        let page: Value = skep.get(&format!("/api/keys?limit=2{cursor}")).await.json().await.unwrap();
        let keys: Vec<Key> = serde_json::from_value(page["keys"].clone()).unwrap();
        assert!(keys.len() <= 2);
        found.extend(keys);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found.len(), 5);
    assert!(found.is_sorted_by(|a, b| a.id > b.id), "newest first, each once");
    for query in ["limit=0", "limit=1001", "limit=x", "cursor=x", "page=2"] {
        let response = skep.get(&format!("/api/keys?{query}")).await;
        assert_eq!(refused(response).await.status, 400, "{query}");
    }
}

/// The scope `admin` alone does not make its key equal to that of the operator, which it could lock out.
#[tokio::test]
async fn a_key_with_more_scopes_is_neither_listed_nor_read_nor_revoked() {
    let skep = Skep::start().await;
    let operator = skep.client(&skep.admin);
    let operators = operator.run(&IdentifyCaller {}).await.unwrap().key.id;
    let mut scopes = scopes_of(Role::Admin, "default");
    scopes.retain(|scope| *scope != Scope::ServerAdmin);
    let (key, own) = skep.key(&scopes).await;
    let (_, agent) = skep.key(&[Scope::FilesRead]).await;
    let admin = skep.client(&key);

    for refused in [
        admin.run_on(operators, &ReadKey {}).await.map(|_| ()),
        admin.run_on(operators, &RevokeKey {}).await.map(|_| ()),
    ]
    .map(Result::unwrap_err)
    {
        assert_eq!(refused.code(), ErrorCode::ScopeMissing, "{refused}");
        let message = refused.to_string();
        assert!(message.contains("`server:admin`") && message.contains(&operators.to_string()), "{message}");
    }
    let listed = async |client: &skep_client::Client| -> Vec<KeyId> {
        client.run(&ListKeys::default()).await.unwrap().value.keys.iter().map(|key| key.id).collect()
    };
    assert_eq!(listed(&admin).await, [agent.key.id, own.key.id]);
    assert_eq!(listed(&operator).await, [agent.key.id, own.key.id, operators], "the control");

    let revoked = admin.run(&RevokeAllKeys { all: true, own: false, account: None }).await.unwrap().value;
    assert_eq!((revoked.revoked, revoked.kept), (1, 1));
    assert_eq!(operator.run(&IdentifyCaller {}).await.unwrap().key.id, operators);
    // The control: a key with fewer scopes is read and revoked.
    assert!(admin.run_on(agent.key.id, &ReadKey {}).await.unwrap().revoked_at.is_some());
    assert!(operator.run_on(own.key.id, &RevokeKey {}).await.unwrap().value.revoked_at.is_some());
}
