//! `GET /api/audit`: every write and every refusal, and nothing else.

use reqwest::Method;
use serde_json::{Value, json};
use skep_accounts::scopes_of;
use skep_api::{ErrorCode, Role, Scope, audit::AuditEntry};
use skep_server::{Limits, TrustedProxies};

use crate::{
    harness::{Options, Skep, refused},
    transport::wire::exchange,
};

/// Waits until a query finds at least this many entries, and returns them.
async fn entries(skep: &Skep, query: &str, at_least: usize) -> Vec<Value> {
    for _ in 0..3_000 {
        let list: Value = skep.get(&format!("/api/audit?{query}")).await.json().await.unwrap();
        let entries = list["entries"].as_array().unwrap_or_else(|| panic!("{list}")).clone();
        if entries.len() >= at_least {
            return entries;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("there were never {at_least} entries of `{query}`");
}

async fn as_key(skep: &Skep, key: &str, method: Method, path: &str) -> reqwest::Response {
    skep.bare(method, path).bearer_auth(key).header("x-request-id", "mine").send().await.unwrap()
}

#[tokio::test]
async fn a_write_leaves_an_entry_and_a_read_none() {
    let skep = Skep::start().await;
    assert_eq!(skep.get("/api/keys").await.status(), 200);
    let request = skep.request(Method::POST, "/api/keys").header("x-request-id", "write-1");
    let made = request.json(&json!({"name": "ci", "role": "agent"})).send().await.unwrap();
    let made: Value = made.json().await.unwrap();
    let me: Value = skep.get("/api/whoami").await.json().await.unwrap();
    let found = entries(&skep, "", 1).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let entry = &found[0];
    let fields: Vec<&str> = entry.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["action", "address", "at", "egress", "key", "outcome", "request_id", "resource"]);
    assert_eq!(entry["action"], "create_key");
    assert_eq!(entry["address"], "127.0.0.1");
    assert_eq!(entry["key"], json!({"id": me["key"]["id"], "prefix": me["key"]["prefix"]}));
    assert_eq!(entry["resource"], made["id"]);
    assert_eq!(entry["outcome"], json!({"status": 201, "code": null}));
    assert_eq!(entry["egress"], Value::Null);
    assert_eq!(entry["request_id"], "write-1");
    assert!(!found[0].to_string().contains(made["key"].as_str().unwrap()));
}

#[tokio::test]
async fn what_is_done_to_an_account_names_it() {
    let skep = Skep::start().await;
    let request = skep.request(Method::POST, "/api/accounts").json(&json!({"name": "acme"}));
    let made: Value = request.send().await.unwrap().json().await.unwrap();
    let id = made["id"].as_str().unwrap();
    let revoked = skep.request(Method::DELETE, &format!("/api/keys?all=true&account={id}"));
    assert_eq!(revoked.send().await.unwrap().status(), 200);
    let found = entries(&skep, "", 2).await;
    let mut entries: Vec<_> =
        found.iter().map(|entry| (entry["action"].as_str().unwrap(), &entry["resource"])).collect();
    entries.sort_by_key(|(action, _)| *action);
    assert_eq!(entries, [("create_account", &made["id"]), ("revoke_all_keys", &made["id"])]);
}

#[tokio::test]
async fn a_change_of_an_egress_policy_says_which() {
    let skep = Skep::start().await;
    let path = format!("/api/accounts/{}", skep.account.id);
    let policy = json!({"allow": ["api.example.com", "203.0.113.0/24"], "ports": [443]});
    let change = skep.request(Method::PATCH, &path).json(&json!({"egress": policy}));
    assert_eq!(change.send().await.unwrap().status(), 200);
    let other = skep.request(Method::PATCH, &path).json(&json!({"max_vms": 7}));
    assert_eq!(other.send().await.unwrap().status(), 200);
    let boot = skep.request(Method::POST, "/api/swarm/boot").json(&json!({"egress": "all"}));
    assert_eq!(refused(boot.send().await.unwrap()).await.status, 503, "this server has no VMs");
    let found = entries(&skep, "", 3).await;
    let mut asked: Vec<_> = found.iter().map(|entry| (&entry["action"], &entry["egress"])).collect();
    // Entries of the same millisecond may be in either order.
    asked.sort_by_key(|(action, egress)| format!("{action}{egress}"));
    let (changed, booted) = (json!("change_account"), json!("boot"));
    assert_eq!(asked, [(&booted, &json!("all")), (&changed, &Value::Null), (&changed, &policy)]);
}

#[tokio::test]
async fn refusals_leave_entries_in_the_account_of_the_caller() {
    let skep = Skep::start().await;
    let (agent, record) = skep.key(&[Scope::SwarmRead]).await;
    let boot = as_key(&skep, &agent, Method::POST, "/api/swarm/boot").await;
    assert_eq!(refused(boot).await.code, "scope_missing");
    assert_eq!(refused(as_key(&skep, &agent, Method::GET, "/api/keys").await).await.status, 403);
    assert_eq!(refused(as_key(&skep, &agent, Method::GET, "/api/swarm/vm/7?x=1").await).await.status, 400);
    assert_eq!(refused(as_key(&skep, &agent, Method::PUT, "/api/keys").await).await.status, 405);
    assert_eq!(refused(as_key(&skep, &agent, Method::GET, "/api/nonsense").await).await.status, 404);
    let path = format!("/api/keys/{}", record.key.id);
    assert_eq!(as_key(&skep, &skep.admin, Method::DELETE, &path).await.status(), 200);
    assert_eq!(refused(as_key(&skep, &agent, Method::GET, "/api/whoami").await).await.status, 403);

    let mut found: Vec<(Value, Value, Value)> = entries(&skep, &format!("key={}", record.key.id), 6)
        .await
        .iter()
        .map(|e| (e["action"].clone(), e["resource"].clone(), e["outcome"].clone()))
        .collect();
    // Entries of the same millisecond may be in either order.
    found.sort_by_key(|(action, _, outcome)| format!("{action}{outcome}"));
    let refusal = |status: u16, code: &str| json!({"status": status, "code": code});
    assert_eq!(
        found,
        [
            (json!("boot"), Value::Null, refusal(403, "scope_missing")),
            (json!("list_keys"), Value::Null, refusal(403, "scope_missing")),
            (json!("read_vm"), json!("7"), refusal(400, "unknown_field")),
            (json!("unmatched"), Value::Null, refusal(405, "method_not_allowed")),
            (json!("unmatched"), Value::Null, refusal(404, "unknown_route")),
            (json!("whoami"), Value::Null, refusal(403, "token_expired")),
        ]
    );
}

#[tokio::test]
async fn no_entry_holds_a_secret() {
    let skep = Skep::start().await;
    let stranger = format!("sk-skep-prod-{}", "5ec4e7".repeat(11).split_at(64).0);
    let (agent, _) = skep.key(&[Scope::SwarmExec, Scope::SwarmWrite]).await;
    assert_eq!(as_key(&skep, &stranger, Method::GET, "/api/whoami").await.status(), 401);
    let basic = skep.bare(Method::GET, "/api/whoami").header("authorization", "Basic 5ec4e7-basic");
    assert_eq!(basic.send().await.unwrap().status(), 401);
    // A key in place of an id, and secret values in every field of a body.
    assert_eq!(
        as_key(&skep, &skep.admin, Method::DELETE, &format!("/api/keys/{stranger}")).await.status(),
        404
    );
    assert_eq!(as_key(&skep, &skep.admin, Method::GET, "/5ec4e7/path").await.status(), 404);
    let body = json!({"vm": 4_194_304, "command": "echo 5ec4e7", "env": {"TOKEN": "5ec4e7"}});
    let exec = skep.bare(Method::POST, "/api/exec?token=5ec4e7").bearer_auth(&agent).json(&body);
    assert_eq!(exec.send().await.unwrap().status(), 400);
    let exec = skep.bare(Method::POST, "/api/exec").bearer_auth(&agent).json(&body);
    assert_eq!(exec.send().await.unwrap().status(), 503);
    let body = json!({"email": "5ec4e7@example.com", "name": "5ec4e7"});
    let join = skep.bare(Method::POST, "/api/waitlist").json(&body).send().await.unwrap();
    assert_eq!(join.status(), 202);
    let path = "/api/waitlist/5ec4e7@example.com";
    assert_eq!(as_key(&skep, &skep.admin, Method::DELETE, path).await.status(), 200);
    let found = entries(&skep, "", 8).await;
    assert_eq!(found.len(), 8, "{found:#?}");
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains("\"4194304\"") && text.contains("join_waitlist"), "{text}");
    assert!(!text.contains("5ec4e7"), "{text}");
}

#[tokio::test]
async fn refusals_without_a_key_are_visible_to_the_operator_only() {
    let skep = Skep::start().await;
    for _ in 0..3 {
        assert_eq!(skep.bare(Method::POST, "/api/keys").send().await.unwrap().status(), 401);
    }
    let found = entries(&skep, "outcome=missing_token", 3).await;
    assert!(found.iter().all(|entry| entry["key"].is_null() && entry["action"] == "create_key"));
    let (admin, _) = skep.key(&[Scope::Admin]).await;
    let list: Value = as_key(&skep, &admin, Method::GET, "/api/audit").await.json().await.unwrap();
    assert_eq!(list["entries"], json!([]), "an administrator of its account sees no strangers");
}

/// Stops the server, which writes all entries first, and returns the action and the code of each entry, sorted.
async fn actions_and_codes_at_the_end(mut skep: Skep) -> Vec<(String, String)> {
    skep.stop();
    skep.serving.take().unwrap().await.unwrap().unwrap();
    let filter = skep_store::AuditFilter::default();
    let account = skep.account.id;
    let query =
        skep_store::ListAudit { account, include_unattributed: true, filter, limit: 1_000, before: None };
    let page = skep.store.list_audit(query).await.unwrap();
    let code = |entry: &AuditEntry| entry.outcome.code.map_or("", ErrorCode::as_str).to_owned();
    let mut found: Vec<_> = page.entries.iter().map(|entry| (entry.action.clone(), code(entry))).collect();
    found.sort();
    found
}

#[tokio::test]
async fn refusals_by_rate_limits_for_http_and_of_malformed_heads_leave_entries() {
    let mut options = Options { limits: Limits::default(), ..Options::default() };
    options.limits.rate_limit = Some("1/h".parse().unwrap());
    options.limits.failed_auth_limit = "1/h".parse().unwrap();
    options.proxies = TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()]);
    let skep = Skep::start_with(options).await;
    let whoami = async |key: &str, proto: &str| {
        let request = skep.bare(Method::GET, "/api/whoami").bearer_auth(key);
        request.header("x-forwarded-proto", proto).send().await.unwrap().status().as_u16()
    };
    for (key, proto, status) in [
        (skep.admin.as_str(), "https", 200),
        (&skep.admin, "https", 429),
        ("guess", "https", 401),
        ("guess", "https", 429),
        (&skep.admin, "http", 403),
    ] {
        assert_eq!(whoami(key, proto).await, status, "{key} {proto}");
    }
    let two_lengths = "POST /api/keys HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 9\r\n\r\n";
    assert!(exchange(&skep, two_lengths).await.starts_with("HTTP/1.1 400 "));
    let found = actions_and_codes_at_the_end(skep).await;
    let found: Vec<_> = found.iter().map(|(action, code)| (action.as_str(), code.as_str())).collect();
    assert_eq!(
        found,
        [
            // The router answers a malformed head as a request for `/`.
            ("root", "malformed_request"),
            ("whoami", "https_required"),
            ("whoami", "invalid_token"),
            ("whoami", "rate_limited"),
            ("whoami", "rate_limited"),
        ]
    );
}

#[tokio::test]
async fn another_account_does_not_see_the_entries() {
    let skep = Skep::start().await;
    skep.post("/api/keys", r#"{"name": "ci", "role": "agent"}"#).await;
    assert_eq!(entries(&skep, "", 1).await.len(), 1);
    let (agent, _) = skep.key(&scopes_of(Role::Agent, "default")).await;
    assert_eq!(refused(as_key(&skep, &agent, Method::GET, "/api/audit").await).await.code, "scope_missing");
}

#[tokio::test]
async fn entries_are_found_by_filter_and_page() {
    let skep = Skep::start().await;
    for number in 0..5 {
        skep.post("/api/keys", &format!(r#"{{"name": "k{number}", "role": "agent"}}"#)).await;
    }
    assert_eq!(skep.post("/api/keys", "{}").await.status(), 400);
    assert_eq!(entries(&skep, "action=create_key", 6).await.len(), 6);
    assert_eq!(entries(&skep, "outcome=done", 5).await.len(), 5);
    assert_eq!(entries(&skep, "outcome=refused&action=create_key", 1).await.len(), 1);
    assert_eq!(entries(&skep, "outcome=201&since=2020-01-01T00:00:00Z", 5).await.len(), 5);
    assert!(entries(&skep, "until=2020-01-01T00:00:00Z", 0).await.is_empty());
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/audit?action=create_key&limit=4{cursor}");
        let page: Value = skep.get(&path).await.json().await.unwrap();
        seen.extend(page["entries"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 6);
    for query in
        ["limit=0", "limit=1001", "cursor=x", "key=x", "action=eat", "outcome=fine", "since=monday", "who=me"]
    {
        let found = refused(skep.get(&format!("/api/audit?{query}")).await).await;
        assert_eq!(found.status, 400, "{query}");
        let name = query.split('=').next().unwrap();
        assert!(found.message.contains(name), "{query}: {}", found.message);
    }
}

#[tokio::test]
async fn all_entries_are_written_when_the_server_has_stopped() {
    let skep = Skep::start().await;
    for _ in 0..40 {
        assert_eq!(skep.bare(Method::GET, "/api/whoami").send().await.unwrap().status(), 401);
    }
    assert_eq!(actions_and_codes_at_the_end(skep).await.len(), 40);
}

#[tokio::test]
async fn a_caller_that_goes_away_is_on_record() {
    use tokio::io::AsyncWriteExt;
    let skep = Skep::start().await;
    let mut stream = tokio::net::TcpStream::connect(skep.address).await.unwrap();
    // The body is never completed, so the write is in progress when its caller disconnects.
    let head = format!(
        "POST /api/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nx-request-id: left\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        skep.admin
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The entry of the next write shows that the server has read the requests before it.
    skep.post("/api/keys", "{}").await;
    entries(&skep, "action=create_key", 1).await;
    drop(stream);
    let found = entries(&skep, "action=create_key", 2).await;
    let left = found.iter().find(|entry| entry["request_id"] == "left").unwrap();
    assert!(left["outcome"]["status"].is_null() || left["outcome"]["status"] == 400, "{left}");
}
