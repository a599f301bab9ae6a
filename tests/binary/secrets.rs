//! A key is shown once, to its creator, and is stored nowhere else in clear text.

use std::{collections::BTreeMap, fs};

use reqwest::{Method, header::AUTHORIZATION};
use serde_json::{Value, json};

use crate::harness::{Answer, Skep, send};

/// A server that logs all that it knows, on its second start.
async fn talkative() -> Skep {
    let first = Skep::start().await;
    Skep::start_on(first.stop(), &["--log-level", "debug"]).await
}

/// All answers of a test, and the secrets that it used.
struct Ledger {
    skep: Skep,
    answers: Vec<String>,
    secrets: BTreeMap<String, String>,
}

impl Ledger {
    fn keep(&mut self, answer: &Answer) {
        self.answers.push(format!("{:?}\n{}", answer.headers, answer.body));
    }

    /// A request with this token, whatever comes of it.
    async fn ask(&mut self, token: &str, method: Method, path: &str, body: &Value) -> Answer {
        let request = self.skep.bare(method, path).header(AUTHORIZATION, format!("Bearer {token}"));
        let answer = send(request.header("x-request-id", "seen-in-the-log").json(body)).await;
        self.keep(&answer);
        answer
    }

    /// A request that makes a key: the one answer that may hold it.
    async fn make(&mut self, what: &str, path: &str, body: &Value) -> (String, String) {
        let made = self.skep.post(path, body).await.ok(201);
        let (key, id) = (made["key"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned());
        self.secrets.insert(what.to_owned(), key.clone());
        (key, id)
    }
}

fn prefix(key: &str) -> &str {
    &key[..key.len() - 56]
}

/// The last letter is another one.
fn changed(key: &str) -> String {
    let (rest, last) = key.split_at(key.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

async fn make_keys(ledger: &mut Ledger) -> Vec<String> {
    let account = ledger.skep.post("/api/accounts", &json!({"name": "acme"})).await.ok(201);
    let (agent, agent_id) = ledger.make("agent", "/api/keys", &json!({"name": "a", "role": "agent"})).await;
    let (rotated, _) = ledger.make("rotated", &format!("/api/keys/{agent_id}/rotate"), &json!({})).await;
    let theirs = json!({"name": "t", "role": "admin", "account": account["id"]});
    let (tenant, _) = ledger.make("tenant", "/api/keys", &theirs).await;
    let (revoked, revoked_id) =
        ledger.make("revoked", "/api/keys", &json!({"name": "r", "role": "agent"})).await;
    let answer = ledger.skep.delete(&format!("/api/keys/{revoked_id}")).await;
    ledger.keep(&answer);
    vec![agent, rotated, tenant, revoked]
}

/// Calls that work, and calls that paste a key where none belongs.
async fn call_everything(ledger: &mut Ledger, token: &str) {
    let nothing = json!({});
    for path in ["/api/whoami", "/api/keys", "/api/swarm/status", "/api/accounts", "/api/nothing"] {
        ledger.ask(token, Method::GET, path, &nothing).await;
    }
    for path in [
        format!("/api/keys/{token}"),
        format!("/api/swarm/vm/{token}"),
        format!("/api/accounts/{token}"),
        format!("/api/{token}"),
        format!("/api/keys?cursor={token}"),
        format!("/api/keys?{token}=1"),
        format!("/api/swarm/vm/1/exec/{token}"),
    ] {
        ledger.ask(token, Method::GET, &path, &nothing).await;
    }
    for (path, body) in [
        ("/api/keys", json!({"name": token, "role": "agent"})),
        ("/api/keys", json!({"name": "x", "role": token})),
        ("/api/keys", json!({"name": "x", "role": "agent", "account": token})),
        ("/api/keys", json!({"name": "x", "role": "vm", "vm": token})),
        ("/api/accounts", json!({"name": token})),
        ("/api/accounts", json!({"name": "x", "allowed_ips": [token]})),
        ("/api/accounts", json!({"name": "x", "roots": [token]})),
        ("/api/swarm/boot", json!({"template": token})),
        ("/api/swarm/boot", json!({"count": token})),
        ("/api/swarm/boot", json!({token: 1})),
        ("/api/exec", json!({"vm": token, "command": "id"})),
    ] {
        ledger.ask(token, Method::POST, path, &body).await;
    }
    let what = format!("made under key {}", ledger.secrets.len());
    let named = ledger.skep.request(Method::POST, "/api/keys").header("x-request-id", token);
    let made = send(named.json(&json!({"name": what, "scopes": ["files:read"]}))).await;
    ledger.answers.push(format!("{:?}", made.headers));
    ledger.secrets.insert(what, made.ok(201)["key"].as_str().unwrap().to_owned());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_in_clear_nowhere() {
    let skep = talkative().await;
    let admin = skep.key.clone();
    let mut ledger = Ledger { skep, answers: Vec::new(), secrets: BTreeMap::new() };
    ledger.secrets.insert("admin".to_owned(), admin.clone());
    let mut tokens = make_keys(&mut ledger).await;
    // No key of ours, but perhaps one of another server, or one that was mistyped.
    let strange = format!("sk-skep-staging-{}", "7".repeat(64));
    ledger.secrets.insert("strange".to_owned(), strange.clone());
    ledger.secrets.insert("mistyped".to_owned(), changed(&admin));
    tokens.extend([admin.clone(), strange, changed(&admin)]);
    for token in &tokens {
        call_everything(&mut ledger, token).await;
    }
    let data = ledger.skep.data_dir.path().join("server");
    let mut stored = BTreeMap::new();
    for file in fs::read_dir(&data).unwrap() {
        let file = file.unwrap();
        stored.insert(file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap());
    }
    let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let log = ledger.skep.log();
    let answers = ledger.answers.join("\n");
    for (what, secret) in &ledger.secrets {
        // The random part alone must not occur either.
        let digits = &secret[secret.len() - 64..];
        assert!(!log.contains(digits), "the {what} key stands in the log");
        assert!(!answers.contains(digits), "the {what} key stands in an answer");
        for (file, bytes) in &stored {
            assert!(!holds(bytes, digits), "the {what} key stands in {file}");
        }
    }
    // The controls: each place was looked at while it held what was done.
    assert!(stored.contains_key("skep.db") && stored.contains_key("skep.db-wal"), "{:?}", stored.keys());
    assert!(log.contains("DEBUG") && log.contains("seen-in-the-log"), "{log}");
    for what in ["admin", "agent", "rotated", "tenant", "revoked"] {
        let prefix = prefix(&ledger.secrets[what]);
        assert!(answers.contains(prefix), "no answer names the {what} key");
        assert!(stored.values().any(|bytes| holds(bytes, prefix)), "the {what} key is not on record");
    }
}
