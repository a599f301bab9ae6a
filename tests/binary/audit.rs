//! The audit by its command: who did what, with filters, as a table and as JSON; it outlives a restart.

use std::process::Output;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Skep, command, eventually, send};

fn audit(server: &Skep, arguments: &[&str]) -> Output {
    command(server, &[&["audit"], arguments].concat()).output().unwrap()
}

#[tokio::test]
async fn the_command_shows_what_was_done_and_what_was_refused() {
    let skep = Skep::start().await;
    let made = skep.post("/api/keys", &json!({"name": "ci", "role": "agent"})).await.ok(201);
    let stranger = format!("sk-skep-prod-{}", "7".repeat(64));
    let refused = send(skep.bare(Method::GET, "/api/whoami").bearer_auth(&stranger)).await;
    refused.refused(401, "invalid_token");
    let entries = async |query: &str| -> Vec<Value> {
        let list = skep.get(&format!("/api/audit?{query}")).await.ok(200);
        list["entries"].as_array().unwrap().clone()
    };
    eventually("both entries", async || entries("").await.len() == 2).await;
    let found = entries("action=create_key").await;
    assert_eq!(found[0]["resource"], made["id"]);
    assert_eq!(found[0]["address"], "127.0.0.1");
    let table = audit(&skep, &["--action", "create_key"]);
    assert!(table.status.success(), "{table:?}");
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(text.starts_with("AT") && text.contains("create_key") && text.contains(" 201 "), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    let first: Value = serde_json::from_slice(&audit(&skep, &["--json", "-n", "1"]).stdout).unwrap();
    assert_eq!(first["entries"].as_array().unwrap().len(), 1, "{first}");
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest: Value = serde_json::from_slice(&audit(&skep, &["--json", "--cursor", cursor]).stdout).unwrap();
    assert_eq!(rest["entries"].as_array().unwrap().len(), 1, "{rest}");
    let refused = audit(&skep, &["--action", "eat"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("eat"));
    let by_agent = skep.bare(Method::POST, "/api/keys").bearer_auth(made["key"].as_str().unwrap());
    send(by_agent.json(&json!({"name": "x", "role": "agent"}))).await.refused(403, "scope_missing");
    eventually("its entry", async || !entries("outcome=scope_missing").await.is_empty()).await;
    let text = String::from_utf8(audit(&skep, &["--outcome", "refused"]).stdout).unwrap();
    let line =
        text.lines().find(|line| line.contains("403 scope_missing")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(made["prefix"].as_str().unwrap()) && line.contains(" 127.0.0.1 "), "{text}");
    assert!(!text.contains(" 201 "), "{text}");

    let skep = Skep::start_on(skep.stop(), &[]).await;
    let list = skep.get("/api/audit?outcome=invalid_token").await.ok(200);
    assert_eq!(list["entries"].as_array().unwrap().len(), 1, "{list}");
    assert!(!list.to_string().contains("777"), "nothing of a refused token is kept: {list}");
}
