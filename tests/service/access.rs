//! Authorization: every operation of the OpenAPI document with every kind of key.
//!
//! Each request also has an invalid query and body, to test the order of the checks: key, scope, parameters, resource.

mod rows;

use jiff::{Timestamp, ToSpan};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use skep_api::{KeyId, Scope};
use skep_store::RevokeKey;

use self::rows::{
    Answer::{Done, Unknown},
    ROWS, Row,
};
use crate::{
    harness::{Refused, Skep, answered, refused},
    openapi::{Operation, document, operations, resolved},
    openapi_completeness::valid,
};

impl Operation {
    fn id(&self) -> &str {
        self.described["operationId"].as_str().unwrap()
    }

    fn row(&self) -> &'static Row {
        let found = ROWS.iter().find(|row| row.id == self.id());
        found.unwrap_or_else(|| {
            panic!("{} {} has no row here; add one with its answers", self.method, self.path)
        })
    }

    /// A request whose parameters are all invalid.
    fn wrong(&self, skep: &Skep) -> RequestBuilder {
        let path = format!("{}?bogus=1", self.concrete());
        skep.bare(self.method.clone(), &path).header("content-type", "text/plain").body("{")
    }

    /// A valid request for a resource that does not exist.
    fn right(&self, skep: &Skep) -> RequestBuilder {
        self.right_at(skep, &self.concrete())
    }

    fn right_at(&self, skep: &Skep, path: &str) -> RequestBuilder {
        let Row { query, body, .. } = self.row();
        let request = skep.bare(self.method.clone(), &format!("{path}{query}"));
        match body {
            Some(body) => request.header("content-type", "application/json").body(*body),
            None => request,
        }
    }

    /// A valid request whose `vm` names a VM that does not exist. `None` if the operation has no `vm`.
    fn right_in_vm(&self, document: &Value, skep: &Skep) -> Option<RequestBuilder> {
        let Row { query, body, .. } = self.row();
        let mut parameters = self.described["parameters"].as_array().into_iter().flatten();
        if parameters.any(|parameter| parameter["name"] == "vm") {
            let sign = if query.is_empty() { '?' } else { '&' };
            let path = format!("{}{query}{sign}vm=4242", self.concrete());
            let request = skep.bare(self.method.clone(), &path);
            return Some(body.iter().fold(request, |request, body| request.body(*body)));
        }
        let schema = &self.described["requestBody"]["content"]["application/json"]["schema"];
        resolved(document, schema)["properties"].get("vm")?;
        let mut body: Value = serde_json::from_str(body.unwrap()).unwrap();
        body["vm"] = json!(4242);
        Some(skep.bare(self.method.clone(), &self.concrete()).json(&body))
    }
}

async fn guarded(skep: &Skep) -> Vec<Operation> {
    operations(&document(skep).await).into_iter().filter(|operation| operation.scopes.is_some()).collect()
}

async fn expect(operation: &Operation, request: RequestBuilder, expected: (u16, &str, &str)) {
    let Refused { status, code, message } = refused(request.send().await.unwrap()).await;
    let found = (status, code.as_str(), message.as_str());
    assert_eq!(found, expected, "{} {}", operation.method, operation.path);
    // The refusal is documented.
    let codes =
        &operation.described["responses"][status.to_string()]["headers"]["Skep-Error"]["schema"]["enum"];
    assert!(codes.as_array().unwrap().iter().any(|known| *known == code), "{} lacks {code}", operation.id());
}

#[tokio::test]
async fn every_operation_has_a_row_and_every_row_an_operation() {
    let skep = Skep::start().await;
    let all = operations(&document(&skep).await);
    for operation in &all {
        operation.row();
    }
    for row in ROWS {
        assert!(all.iter().any(|operation| operation.id() == row.id), "{} is no operation", row.id);
    }
}

#[tokio::test]
async fn without_a_good_key_nothing_else_is_looked_at() {
    let skep = Skep::start().await;
    let (revoked, record) = skep.key(Scope::ALL).await;
    let revoke =
        RevokeKey { account: skep.account.id, id: record.key.id, at: Timestamp::now(), request_id: None };
    skep.store.revoke_key(revoke).await.unwrap();
    let (expired, _) = skep.key_until(Scope::ALL, Some(Timestamp::now() - 1.second())).await;
    let unknown = format!("sk-skep-prod-{}", "0123456789abcdef".repeat(4));
    let one_letter_off =
        format!("{}{}", &skep.admin[..76], if skep.admin.ends_with('0') { "1" } else { "0" });
    for operation in guarded(&skep).await {
        let with = |value: &str| operation.wrong(&skep).header("authorization", value);
        expect(&operation, operation.wrong(&skep), (401, "missing_token", "Missing token")).await;
        expect(&operation, with(""), (401, "missing_token", "Missing token")).await;
        for value in [
            "Bearer",
            "Bearer sk-skep-prod-1",
            &format!("Basic {}", skep.admin),
            &skep.admin,
            &format!("Bearer {unknown}"),
            &format!("Bearer {one_letter_off}"),
            &format!("Bearer {}", skep.admin.to_uppercase()),
        ] {
            expect(&operation, with(value), (401, "invalid_token", "Invalid token")).await;
        }
        for key in [&revoked, &expired] {
            let request = operation.wrong(&skep).bearer_auth(key);
            expect(&operation, request, (403, "token_expired", "Token expired")).await;
        }
    }
}

/// Creates an account besides `default`, and a key of it with all scopes that it may have.
pub(crate) async fn tenant(skep: &Skep, name: &str) -> (String, String) {
    let made = skep.post("/api/accounts", &json!({"name": name}).to_string()).await;
    let account: Value = made.json().await.unwrap();
    let id = account["id"].as_str().unwrap().to_owned();
    let body = json!({"name": "all", "role": "admin", "account": id}).to_string();
    let made: Value = skep.post("/api/keys", &body).await.json().await.unwrap();
    (id, made["key"].as_str().unwrap().to_owned())
}

/// Every answer forbids caching, those with a new key and refusals included.
#[tokio::test]
async fn no_answer_may_be_stored() {
    let skep = Skep::start().await;
    for operation in guarded(&skep).await {
        let refused = operation.wrong(&skep).bearer_auth(&skep.admin).send().await.unwrap();
        assert_eq!(refused.headers()["cache-control"], "no-store", "{}", operation.id());
    }
    let made = skep.post("/api/keys", &json!({"name": "new", "role": "agent"}).to_string()).await;
    assert_eq!(
        (made.status().as_u16(), &made.headers()["cache-control"]),
        (201, &"no-store".parse().unwrap())
    );
    let shown = skep.get("/api/whoami").await;
    assert_eq!(
        (shown.status().as_u16(), &shown.headers()["cache-control"]),
        (200, &"no-store".parse().unwrap())
    );
}

#[tokio::test]
async fn from_an_address_that_is_not_allowed_nothing_is_done() {
    let skep = Skep::start().await;
    let (account, key) = tenant(&skep, "acme").await;
    let change = skep.request(Method::PATCH, &format!("/api/accounts/{account}"));
    let change = change.json(&json!({"allowed_ips": ["192.0.2.0/24"]})).send().await.unwrap();
    assert_eq!(change.status(), 200);
    for operation in guarded(&skep).await {
        let request = operation.wrong(&skep).bearer_auth(&key);
        let Refused { status, code, message } = refused(request.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (403, "address_not_allowed"), "{}", operation.id());
        assert!(message.contains("127.0.0.1") && !message.contains("192.0.2"), "{message}");
    }
}

#[tokio::test]
async fn without_each_scope_that_it_needs_an_operation_is_refused() {
    let skep = Skep::start().await;
    let mut needed = 0;
    for operation in guarded(&skep).await {
        for scope in operation.scopes.as_ref().unwrap() {
            let others = Scope::ALL.iter().copied();
            let others: Vec<Scope> =
                others.filter(|other| other != scope && !operation.instead.contains(other)).collect();
            let (key, _) = skep.key(&others).await;
            let message = format!("this key lacks the scope `{scope}`; use a key that has it");
            expect(&operation, operation.wrong(&skep).bearer_auth(key), (403, "scope_missing", &message))
                .await;
            needed += 1;
        }
    }
    assert!(needed > 20, "{needed} scopes were looked at");
}

#[tokio::test]
async fn files_and_repositories_in_a_vm_need_the_scope_of_its_commands_too() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut asked = 0;
    for operation in operations(&document) {
        let tag = &operation.described["tags"][0];
        let Some(request) = operation.right_in_vm(&document, &skep) else { continue };
        if tag != "files" && tag != "git" {
            continue;
        }
        let mut scopes = operation.scopes.clone().unwrap();
        let with = |key: String| request.try_clone().unwrap().bearer_auth(key);
        let message = "this key lacks the scope `swarm:exec`; use a key that has it";
        let lacking = with(skep.key(&scopes).await.0);
        expect(&operation, lacking, (403, "scope_missing", message)).await;
        // The control: with both scopes the request is refused only because there is no swarm.
        scopes.push(Scope::SwarmExec);
        let found = refused(with(skep.key(&scopes).await.0).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (503, "swarm_unavailable"), "{}", operation.id());
        asked += 1;
    }
    assert!(asked > 30, "{asked} operations were asked");
}

#[tokio::test]
async fn an_unavailable_media_type_is_refused_before_the_operation_runs() {
    let skep = Skep::start().await;
    let upgrades = |operation: &Operation| operation.described["responses"].get("101").is_some();
    // The answer of an upgrade has no body, so it has no media type.
    for operation in operations(&document(&skep).await).into_iter().filter(|operation| !upgrades(operation)) {
        // The admin key, and a request that would succeed.
        let row = ROWS.iter().find(|row| row.id == operation.id()).unwrap();
        let path = format!("{}{}", operation.concrete(), row.query);
        let request = |accept: &str| {
            let request = skep.request(operation.method.clone(), &path).header("accept", accept);
            request.header("content-type", "application/json").body(row.body.unwrap_or_default())
        };
        for excluded in ["image/png", "*/*;q=0"] {
            let Refused { status, code, message } = refused(request(excluded).send().await.unwrap()).await;
            assert_eq!((status, code.as_str()), (406, "not_acceptable"), "{}: {message}", operation.id());
        }
        // The control: the same request succeeds where one media type is accepted.
        if operation.id() == "create_account" || operation.id() == "create_ticket" {
            assert_eq!(request("image/png, */*;q=0.1").send().await.unwrap().status(), 201);
        }
    }
    assert_eq!(
        skep.get("/api/accounts").await.json::<Value>().await.unwrap()["accounts"].as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn the_method_comes_before_the_scope_and_after_the_key() {
    let skep = Skep::start().await;
    let (any, _) = skep.key(&[Scope::MetricsRead]).await;
    for operation in guarded(&skep).await {
        let path = format!("{}?bogus=1", operation.concrete());
        let wrong = if operation.method == Method::PUT { Method::PATCH } else { Method::PUT };
        let nothing = || skep.bare(wrong.clone(), &path).body("{");
        let Refused { status, code, .. } = refused(nothing().send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (401, "missing_token"), "{path}");
        let answer = nothing().bearer_auth(&any).send().await.unwrap();
        let allowed = answer.headers()["allow"].to_str().unwrap().to_owned();
        assert!(allowed.contains(operation.method.as_str()), "{path}");
        let Refused { status, code, message } = refused(answer).await;
        assert_eq!((status, code.as_str()), (405, "method_not_allowed"), "{path}");
        assert!(message.contains(wrong.as_str()), "{path}: {message}");
        for method in allowed.split(',').filter(|method| *method != "HEAD") {
            assert!(message.contains(method), "{path}: {message}: {allowed}");
        }
        if !operation.path.starts_with("/api/") {
            // Outside of /api, it is no secret which paths exist.
            continue;
        }
        let beside = format!("{}/no/such/path?bogus=1", operation.concrete());
        let Refused { status, .. } = refused(skep.bare(Method::GET, &beside).send().await.unwrap()).await;
        assert_eq!(status, 401, "{beside}");
        let answer = skep.bare(Method::GET, &beside).bearer_auth(&any).send().await.unwrap();
        let Refused { status, code, .. } = refused(answer).await;
        assert_eq!((status, code.as_str()), (404, "unknown_route"), "{beside}");
    }
}

/// Fails unless an answer has a documented status, media type and schema.
async fn fits(operation: &Operation, document: &Value, status: u16, answer: Response) {
    let kind = answer.headers()["content-type"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let contents = &operation.described["responses"][status.to_string()]["content"];
    let content = contents.get(&kind).unwrap_or_else(|| panic!("{} answers {kind}", operation.id()));
    let text = answer.text().await.unwrap();
    let body =
        if kind == "application/json" { serde_json::from_str(&text).unwrap() } else { Value::String(text) };
    if let Err(error) = valid(document, &content["schema"], &body) {
        panic!("{} answered what its schema does not allow: {error}: {body}", operation.id());
    }
}

#[tokio::test]
async fn with_exactly_its_scopes_an_operation_looks_at_the_request_and_then_at_the_resource() {
    let mut skep = Skep::start().await;
    let document = document(&skep).await;
    let guarded = operations(&document).into_iter().filter(|operation| operation.scopes.is_some());
    for operation in guarded {
        let (key, _) = skep.key(operation.scopes.as_ref().unwrap()).await;
        let Refused { status, code, message } =
            refused(operation.wrong(&skep).bearer_auth(&key).send().await.unwrap()).await;
        assert_eq!(status, 400, "{}: {code} {message}", operation.id());
        // A session is created only at the host of its key.
        let right = operation.right(&skep).bearer_auth(&key).header("host", skep.session_host(&key));
        let answer = right.send().await.unwrap();
        match operation.row().answer {
            Done(status) => {
                assert_eq!(answer.status(), status, "{}", operation.id());
                fits(&operation, &document, status, answer).await;
                if operation.method != Method::GET {
                    // The change may end the server, or make what other operations are to find unknown.
                    skep = Skep::start().await;
                }
            }
            Unknown(status, code) => {
                let found = refused(answer).await;
                assert_eq!((found.status, found.code.as_str()), (status, code), "{}", operation.id());
            }
        }
    }
}

/// The path of a resource of `default`, and the path of an unknown resource of the same kind.
fn foreign(path: &str, key: KeyId, ticket: &str, webhook: &str, account: &str) -> Option<(String, String)> {
    let (name, own, nobodys) = match path {
        path if path.contains("/keys/{id}") => ("{id}", key.to_string(), KeyId::generate().to_string()),
        path if path.contains("/tickets/{id}") => {
            ("{id}", ticket.to_owned(), skep_api::TicketId::generate().to_string())
        }
        path if path.contains("/webhooks/{id}") => {
            ("{id}", webhook.to_owned(), skep_api::WebhookId::generate().to_string())
        }
        path if path.contains("/accounts/{id}") => {
            ("{id}", account.to_owned(), skep_api::AccountId::generate().to_string())
        }
        path if path.contains("{pid}") => ("{pid}", "4242".to_owned(), "4243".to_owned()),
        _ => return None,
    };
    let delivery = skep_api::DeliveryId::generate().to_string();
    let fill = |value: &str| {
        path.replace(name, value).replace("{exec_id}", "exec_x").replace("{delivery}", &delivery)
    };
    Some((fill(&own), fill(&nobodys)))
}

#[tokio::test]
async fn foreign_resources_are_answered_like_unknown_ones() {
    let skep = Skep::start().await;
    let (_, key) = tenant(&skep, "acme").await;
    let (victim, record) = skep.key(&[Scope::SwarmRead]).await;
    let default = skep.account.id.to_string();
    let ticket: Value = skep.post("/api/tickets", r#"{"title": "own"}"#).await.json().await.unwrap();
    let ticket = ticket["id"].as_str().unwrap();
    let webhook = skep.post("/api/webhooks", r#"{"url": "https://localhost/"}"#).await;
    let webhook: Value = webhook.json().await.unwrap();
    let webhook = webhook["id"].as_str().unwrap();
    let mut compared = 0;
    for operation in guarded(&skep).await {
        let Some((own, nobodys)) = foreign(&operation.path, record.key.id, ticket, webhook, &default) else {
            continue;
        };
        let ask = async |path: &str| {
            let answer = operation.right_at(&skep, path).bearer_auth(&key).send().await.unwrap();
            refused(answer).await
        };
        let (foreign, unknown) = (ask(&own).await, ask(&nobodys).await);
        let (own, nobodys) =
            own.split('/').zip(nobodys.split('/')).find(|(own, other)| own != other).unwrap();
        let same = foreign.message.replace(own, "X") == unknown.message.replace(nobodys, "X");
        assert!(same, "{}: {} / {}", operation.id(), foreign.message, unknown.message);
        assert_eq!((foreign.status, &foreign.code), (unknown.status, &unknown.code), "{}", operation.id());
        let expected = match operation.row().answer {
            // Only the server's administrator may see accounts.
            _ if operation.scopes.as_ref().unwrap().contains(&Scope::ServerAdmin) => (403, "scope_missing"),
            Unknown(status, code) => (status, code),
            Done(_) => panic!("{} is about one thing, and its row says that it is there", operation.id()),
        };
        assert_eq!((foreign.status, foreign.code.as_str()), expected, "{}", operation.id());
        compared += 1;
    }
    assert!(compared >= 10, "{compared} operations are about one thing");
    // The resources of the other account are unchanged.
    assert_eq!(
        skep.bare(Method::GET, "/api/whoami").bearer_auth(&victim).send().await.unwrap().status(),
        200
    );
}

#[tokio::test]
async fn public_operations_need_no_key_and_ignore_one() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut public = 0;
    for operation in operations(&document) {
        if operation.scopes.is_some() {
            continue;
        }
        let Done(expected) = operation.row().answer else { panic!("{} is public", operation.id()) };
        let bare = answered(operation.right(&skep)).await;
        assert_eq!(bare.status(), expected, "{}", operation.id());
        fits(&operation, &document, expected, bare).await;
        let wrong = answered(operation.right(&skep).header("authorization", "Bearer nonsense")).await;
        assert_eq!(wrong.status(), expected, "{}", operation.id());
        public += 1;
    }
    assert!(public >= 5, "{public} operations are public");
}
