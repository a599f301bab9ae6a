//! Keys: they are shown once, and a revocation takes effect at the next request.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Skep, eventually, send, with_vms};

async fn as_key(skep: &Skep, key: &Value, method: Method, path: &str) -> Answer {
    send(skep.bare(method, path).bearer_auth(key.as_str().unwrap())).await
}

#[tokio::test]
async fn the_first_key_is_an_administrator_of_the_server() {
    let skep = Skep::start().await;
    assert!(skep.key.starts_with("sk-skep-prod-"), "{}", skep.key);
    let me = skep.get("/api/whoami").await.ok(200);
    assert_eq!(me["account"]["name"], "default");
    assert_eq!(me["key"]["name"], "admin");
    assert!(me["scopes"].as_array().unwrap().contains(&json!("server:admin")), "{me}");
    assert!(!me.to_string().contains(&skep.key), "the secret stands in an answer");
}

#[tokio::test]
async fn a_key_does_what_its_role_says_and_ends_when_revoked() {
    let skep = Skep::start().await;
    let made = skep.post("/api/keys", &json!({"name": "agent-1", "role": "agent"})).await.ok(201);
    let key = &made["key"];
    assert!(key.as_str().unwrap().starts_with(made["prefix"].as_str().unwrap()));
    as_key(&skep, key, Method::GET, "/api/swarm/status").await.ok(200);
    as_key(&skep, key, Method::POST, "/api/swarm/boot").await.refused(403, "scope_missing");
    as_key(&skep, key, Method::GET, "/api/keys").await.refused(403, "scope_missing");

    let path = format!("/api/keys/{}", made["id"].as_str().unwrap());
    assert!(skep.delete(&path).await.ok(200)["revoked_at"].is_string());
    let refused = as_key(&skep, key, Method::GET, "/api/whoami").await;
    assert_eq!(refused.refused(403, "token_expired"), "Token expired");
    skep.delete(&path).await.ok(200);
}

#[tokio::test]
async fn a_key_is_listed_without_its_secret_and_its_name_is_its_own() {
    let skep = Skep::start().await;
    let request = json!({"name": "ci", "scopes": ["swarm:read"]});
    let made = skep.post("/api/keys", &request).await.ok(201);
    assert!(skep.post("/api/keys", &request).await.refused(409, "name_taken").contains("ci"));
    let list = skep.get("/api/keys").await.ok(200);
    let names: Vec<&str> =
        list["keys"].as_array().unwrap().iter().map(|key| key["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ci", "admin"]);
    assert!(!list.to_string().contains(made["key"].as_str().unwrap()));
}

#[tokio::test]
async fn a_key_that_cannot_be_is_refused_by_name() {
    let skep = Skep::start().await;
    for (request, named) in [
        (json!({"name": "x"}), "role"),
        (json!({"name": "x", "role": "agent", "scopes": ["admin"]}), "role"),
        (json!({"name": "x", "role": "king"}), "king"),
        (json!({"name": "x", "scopes": ["files:eat"]}), "files:eat"),
        (json!({"name": "", "role": "agent"}), "name"),
        (json!({"name": "x", "role": "agent", "expires_at": "2001-01-01T00:00:00Z"}), "expires_at"),
    ] {
        let answer = skep.post("/api/keys", &request).await;
        assert_eq!(answer.status, 400, "{request}: {answer:?}");
        assert!(answer.body["message"].as_str().unwrap().contains(named), "{request}: {answer:?}");
    }
}

#[tokio::test]
async fn keys_outlive_a_restart() {
    let skep = Skep::start().await;
    let made = skep.post("/api/keys", &json!({"name": "stays", "role": "operator"})).await.ok(201);
    let skep = Skep::start_on(skep.stop(), &[]).await;
    let me = as_key(&skep, &made["key"], Method::GET, "/api/whoami").await.ok(200);
    assert_eq!(me["key"]["name"], "stays");
}

#[tokio::test]
async fn a_key_ends_when_its_time_is_up() {
    let skep = Skep::start().await;
    let ends = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(4);
    let request = json!({"name": "brief", "scopes": ["swarm:read"], "expires_at": ends.to_string()});
    let made = skep.post("/api/keys", &request).await.ok(201);
    // The server keeps whole milliseconds.
    let ends: jiff::Timestamp = made["expires_at"].as_str().unwrap().parse().unwrap();
    let mut answers = Vec::new();
    eventually("the key's end", async || {
        answers.push(as_key(&skep, &made["key"], Method::GET, "/api/whoami").await);
        answers.last().unwrap().status != 200
    })
    .await;
    assert!(jiff::Timestamp::now() >= ends);
    assert_eq!(answers.last().unwrap().refused(403, "token_expired"), "Token expired");
    // Its name is free again once it is revoked, not before: it could have been renewed.
    assert_eq!(skep.get("/api/keys").await.ok(200)["keys"][0]["name"], "brief");
}

#[tokio::test]
async fn a_key_is_bound_to_no_vm_that_is_not_there() {
    let skep = Skep::start().await;
    for vm in [json!(4_194_304), json!("vm_01jv0000000000000000000000")] {
        let answer = skep.post("/api/keys", &json!({"name": "x", "role": "vm", "vm": vm})).await;
        if with_vms() {
            assert!(
                answer.refused(404, "unknown_vm").contains(vm.to_string().trim_matches('"')),
                "{answer:?}"
            );
        } else {
            assert!(answer.refused(503, "swarm_unavailable").contains("root"), "{answer:?}");
        }
    }
    let unbound = skep.post("/api/keys", &json!({"name": "x", "role": "vm"})).await;
    assert!(unbound.refused(400, "missing_parameter").contains("`vm`"), "{unbound:?}");
    assert_eq!(skep.get("/api/keys").await.ok(200)["keys"].as_array().unwrap().len(), 1);
}
