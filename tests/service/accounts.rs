//! `/api/accounts`, and keys for other accounts.

use reqwest::Method;
use serde_json::{Value, json};
use skep_api::{
    AccountId, ErrorCode, KeyId, Role, Scope,
    accounts::{Account, ChangeAccount, CreateAccount, DeleteAccount, GitRelay, ReadAccount},
    egress::{EgressPolicy, EgressPreset},
    keys::{CreateKey, IdentifyCaller, ListKeys, ReadKey, RevokeAllKeys, RevokeKey, RotateKey},
};
use skep_client::Client;

use crate::harness::{Refused, Skep, refused};

fn named(name: &str) -> CreateAccount {
    CreateAccount { name: name.to_owned(), ..CreateAccount::default() }
}

/// Creates an account, and a client with a key of this role.
async fn tenant(skep: &Skep, name: &str, role: Role) -> (Account, Client) {
    let admin = skep.client(&skep.admin);
    let account = admin.run(&named(name)).await.unwrap().value;
    let request = CreateKey {
        name: "first".to_owned(),
        role: Some(role),
        account: Some(account.id),
        ..CreateKey::default()
    };
    let made = admin.run(&request).await.unwrap().value;
    assert_eq!(made.record.account, account.id);
    (account, skep.client(&made.key))
}

async fn send(skep: &Skep, method: Method, path: &str, body: &Value) -> reqwest::Response {
    skep.request(method, path).json(body).send().await.unwrap()
}

#[tokio::test]
async fn an_account_is_made_read_changed_and_deleted() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let request = CreateAccount {
        allowed_ips: Some(vec!["127.0.0.1".to_owned(), "10.1.2.3/8".to_owned()]),
        max_vms: Some(3),
        max_disk_mb: Some(2_048),
        ..named("acme")
    };
    let made = admin.run(&request).await.unwrap().value;
    assert_eq!(made.allowed_ips, ["127.0.0.1/32", "10.0.0.0/8"]);
    assert_eq!((made.name.as_str(), made.max_vms, made.max_memory_mb), ("acme", Some(3), None));
    assert_eq!((made.max_paused_vms, made.max_disk_mb), (None, Some(2_048)));
    assert_eq!(made.egress, EgressPolicy::None);
    assert!(made.roots[0].ends_with("/workspaces/acme"), "{:?}", made.roots);
    assert!(std::path::Path::new(&made.roots[0]).is_dir(), "the folder is made");
    assert_eq!(admin.run_on(made.id, &ReadAccount {}).await.unwrap().value, made);

    let preset = EgressPreset::by_name("python").unwrap();
    let policy = EgressPolicy::listing(&["api.example.com"]).unwrap().with_presets(&[preset]);
    let change = ChangeAccount {
        roots: Some(vec!["/srv/acme".to_owned()]),
        max_vms: Some(None),
        max_memory_mb: Some(Some(512)),
        max_paused_vms: Some(Some(7)),
        max_disk_mb: Some(None),
        egress: Some(policy.clone()),
        ..ChangeAccount::default()
    };
    let changed = admin.run_on(made.id, &change).await.unwrap().value;
    let expected = Account {
        roots: vec!["/srv/acme".to_owned()],
        max_vms: None,
        max_memory_mb: Some(512),
        max_paused_vms: Some(7),
        max_disk_mb: None,
        egress: policy,
        ..made.clone()
    };
    assert_eq!(changed, expected);
    assert_eq!(admin.run_on(made.id, &ReadAccount {}).await.unwrap().value, changed);

    let deleted = admin.run_on(made.id, &DeleteAccount { force: false }).await.unwrap().value;
    assert_eq!((deleted.id, deleted.deleted, deleted.vms_ended), (made.id, true, 0));
    for error in [
        admin.run_on(made.id, &ReadAccount {}).await.unwrap_err(),
        admin.run_on(made.id, &change).await.unwrap_err(),
        admin.run_on(made.id, &DeleteAccount { force: true }).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::UnknownAccount);
    }
    let again = admin.run(&named("acme")).await.unwrap().value;
    assert_ne!(again.id, made.id);
}

#[tokio::test]
async fn git_connects_for_vms_to_known_remotes_until_the_account_permits_any() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let made = admin.run(&named("acme")).await.unwrap().value;
    assert_eq!(made.git_relay, GitRelay::Known);
    let any = CreateAccount { git_relay: Some(GitRelay::Any), ..named("other") };
    assert_eq!(admin.run(&any).await.unwrap().value.git_relay, GitRelay::Any);
    for git_relay in [GitRelay::Any, GitRelay::Known] {
        let change = ChangeAccount { git_relay: Some(git_relay), ..ChangeAccount::default() };
        let changed = admin.run_on(made.id, &change).await.unwrap().value;
        assert_eq!(changed, Account { git_relay, ..made.clone() });
        let unchanged = ChangeAccount { max_vms: Some(None), ..ChangeAccount::default() };
        assert_eq!(admin.run_on(made.id, &unchanged).await.unwrap().value, changed);
    }
}

#[tokio::test]
async fn invalid_accounts_are_refused_by_name() {
    let skep = Skep::start().await;
    for (body, status, code, name) in [
        (json!({}), 400, "missing_parameter", "`name`"),
        (json!({"name": "Acme"}), 400, "invalid_value", "Acme"),
        (json!({"name": "../x"}), 400, "invalid_value", "../x"),
        (json!({"name": "default"}), 409, "name_taken", "`default`"),
        (json!({"name": "x", "roots": []}), 400, "invalid_value", "`roots`"),
        (json!({"name": "x", "roots": ["srv"]}), 400, "invalid_value", "srv"),
        (json!({"name": "x", "roots": ["/"]}), 400, "invalid_value", "server's own data"),
        (json!({"name": "x", "allowed_ips": ["10.0.0.0/33"]}), 400, "invalid_value", "10.0.0.0/33"),
        (json!({"name": "x", "max_vms": -1}), 400, "invalid_value", "`max_vms`"),
        (json!({"name": "x", "max_memory_mb": 1u64 << 63}), 400, "invalid_value", "`max_memory_mb`"),
        (json!({"name": "x", "max_disk_mb": 1.5}), 400, "invalid_value", "`max_disk_mb`"),
        (json!({"name": "x", "max_paused_vms": -1}), 400, "invalid_value", "`max_paused_vms`"),
        (json!({"name": "x", "egress": "some"}), 400, "invalid_value", "some"),
        (json!({"name": "x", "git_relay": "all"}), 400, "invalid_value", "`git_relay`"),
        (json!({"name": "x", "max_vm": 1}), 400, "unknown_field", "`max_vm`"),
    ] {
        let found = refused(send(&skep, Method::POST, "/api/accounts", &body).await).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{body}: {}", found.message);
        assert!(found.message.contains(name), "{body}: {}", found.message);
    }
    let (account, _) = tenant(&skep, "acme", Role::Agent).await;
    for (body, status, code, name) in [
        (json!({"name": "other"}), 400, "unknown_field", "`name`"),
        (json!({"roots": null}), 400, "invalid_value", "`roots`"),
        (json!({"allowed_ips": ["example.com"]}), 400, "invalid_value", "example.com"),
        (json!({"max_vms": "3"}), 400, "invalid_value", "`max_vms`"),
        (json!({"max_disk_mb": 1u64 << 63}), 400, "invalid_value", "`max_disk_mb`"),
        (json!({"egress": {"allow": ["a b"]}}), 400, "invalid_value", "a b"),
        (json!({"egress": {"presets": ["cobol"]}}), 400, "invalid_value", "the presets are anthropic"),
        (json!({"egress": {"ports": [443]}}), 400, "invalid_value", "an egress policy is"),
        (json!({"egress": null}), 400, "invalid_value", "`egress`"),
        (json!({"git_relay": null}), 400, "invalid_value", "`git_relay`"),
    ] {
        let path = format!("/api/accounts/{}", account.id);
        let found = refused(send(&skep, Method::PATCH, &path, &body).await).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{body}: {}", found.message);
        assert!(found.message.contains(name), "{body}: {}", found.message);
    }
    let unknown = AccountId::generate().to_string();
    for id in [unknown.as_str(), "abc", "acme"] {
        let Refused { status, code, message } = refused(skep.get(&format!("/api/accounts/{id}")).await).await;
        assert_eq!((status, code.as_str()), (404, "unknown_account"));
        assert!(message.contains(&format!("no account `{id}`")), "{message}");
    }
}

#[tokio::test]
async fn the_account_default_stays_as_the_server_was_started() {
    let skep = Skep::start().await;
    let path = format!("/api/accounts/{}", skep.account.id);
    for query in ["", "?force=true"] {
        let response = send(&skep, Method::DELETE, &format!("{path}{query}"), &json!({})).await;
        let Refused { status, code, message } = refused(response).await;
        assert_eq!((status, code.as_str()), (409, "account_protected"), "{message}");
    }
    let response = send(&skep, Method::PATCH, &path, &json!({"roots": ["/srv/other"]})).await;
    assert_eq!(refused(response).await.code, "account_protected");
    assert_eq!(send(&skep, Method::PATCH, &path, &json!({"max_vms": 2})).await.status(), 200);
    // An administrator cannot lock itself out.
    let response = send(&skep, Method::PATCH, &path, &json!({"allowed_ips": ["10.0.0.0/8"]})).await;
    let Refused { status, message, .. } = refused(response).await;
    assert!(status == 400 && message.contains("127.0.0.1"), "{message}");
    let body = json!({"allowed_ips": ["10.0.0.0/8", "127.0.0.0/8"]});
    assert_eq!(send(&skep, Method::PATCH, &path, &body).await.status(), 200);
    assert_eq!(skep.get(&path).await.status(), 200);
}

#[tokio::test]
async fn a_change_acts_on_the_next_request() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let (account, agent) = tenant(&skep, "acme", Role::Operator).await;
    assert_eq!(agent.run(&IdentifyCaller {}).await.unwrap().limits.max_vms, None);
    let five = skep_api::swarm::BootRequest { count: Some(5), ..Default::default() };
    assert_eq!(agent.boot(&five).await.unwrap_err().code(), ErrorCode::SwarmUnavailable);
    let change =
        ChangeAccount { max_vms: Some(Some(4)), max_disk_mb: Some(Some(9)), ..ChangeAccount::default() };
    admin.run_on(account.id, &change).await.unwrap();
    assert_eq!(agent.run(&IdentifyCaller {}).await.unwrap().limits.max_disk_mb, Some(9));
    let refused = agent.boot(&five).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidValue);
    assert!(refused.to_string().contains("1 to 4"), "{refused}");
    let elsewhere =
        ChangeAccount { allowed_ips: Some(vec!["10.0.0.0/8".to_owned()]), ..ChangeAccount::default() };
    admin.run_on(account.id, &elsewhere).await.unwrap();
    assert_eq!(agent.run(&IdentifyCaller {}).await.unwrap_err().code(), ErrorCode::AddressNotAllowed);
    let anywhere = ChangeAccount { allowed_ips: Some(vec![]), ..ChangeAccount::default() };
    admin.run_on(account.id, &anywhere).await.unwrap();
    assert!(agent.run(&IdentifyCaller {}).await.is_ok());
}

#[tokio::test]
async fn the_keys_of_a_deleted_account_are_refused_at_once() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let (account, agent) = tenant(&skep, "acme", Role::Agent).await;
    let (_, other) = tenant(&skep, "other", Role::Agent).await;
    assert_eq!(agent.run(&IdentifyCaller {}).await.unwrap().account.name, "acme");
    let deleted = admin.run_on(account.id, &DeleteAccount { force: false }).await.unwrap().value;
    assert_eq!(deleted.keys_revoked, 1);
    let refused = agent.run(&IdentifyCaller {}).await.unwrap_err();
    assert_eq!((refused.code(), refused.to_string().as_str()), (ErrorCode::TokenExpired, "Token expired"));
    assert!(other.run(&IdentifyCaller {}).await.is_ok());
    let request = CreateKey {
        name: "x".to_owned(),
        role: Some(Role::Agent),
        account: Some(account.id),
        ..CreateKey::default()
    };
    assert_eq!(admin.run(&request).await.unwrap_err().code(), ErrorCode::UnknownAccount);
}

#[tokio::test]
async fn nobody_gets_files_that_an_earlier_account_left() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let (account, _) = tenant(&skep, "acme", Role::Agent).await;
    std::fs::write(format!("{}/secret", account.roots[0]), "x").unwrap();
    assert_eq!(admin.run(&named("acme")).await.unwrap_err().code(), ErrorCode::NameTaken);
    admin.run_on(account.id, &DeleteAccount { force: false }).await.unwrap();
    let refused = admin.run(&named("acme")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::WorkspaceTaken);
    assert!(refused.to_string().contains(&account.roots[0]), "{refused}");
    let elsewhere = CreateAccount { roots: Some(vec!["/srv/acme".to_owned()]), ..named("acme") };
    assert!(admin.run(&elsewhere).await.is_ok());
}

#[tokio::test]
async fn accounts_are_listed_page_by_page() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    for number in 0..4 {
        admin.run(&named(&format!("acme-{number}"))).await.unwrap();
    }
    let mut found: Vec<Account> = Vec::new();
    let mut cursor = String::new();
    loop {
        let page: Value = skep.get(&format!("/api/accounts?limit=2{cursor}")).await.json().await.unwrap();
        let accounts: Vec<Account> = serde_json::from_value(page["accounts"].clone()).unwrap();
        assert!(accounts.len() <= 2);
        found.extend(accounts);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found.len(), 5);
    assert!(found.is_sorted_by(|a, b| a.id > b.id), "newest first, each once");
    assert_eq!(found[4].name, "default");
    for query in ["limit=0", "limit=1001", "cursor=x", "page=2"] {
        let response = skep.get(&format!("/api/accounts?{query}")).await;
        assert_eq!(refused(response).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn only_the_servers_administrators_reach_into_other_accounts() {
    let skep = Skep::start().await;
    let (account, tenant_admin) = tenant(&skep, "acme", Role::Admin).await;
    let (own_admin, _) = skep.key(&[Scope::Admin, Scope::FilesRead]).await;
    let own_admin = skep.client(&own_admin);
    // The same message whether or not the account exists.
    for id in [account.id, skep.account.id, AccountId::generate()] {
        let request = CreateKey {
            name: "x".to_owned(),
            scopes: Some(vec![Scope::Admin]),
            account: Some(id),
            ..CreateKey::default()
        };
        for caller in [&own_admin, &tenant_admin] {
            let refused = caller.run(&request).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::ScopeMissing);
            assert!(refused.to_string().contains("`server:admin`"), "{refused}");
            assert_eq!(caller.run_on(id, &ReadAccount {}).await.unwrap_err().code(), ErrorCode::ScopeMissing);
        }
    }
    // `server:admin` cannot be given to other accounts, and no key gets a scope that its creator lacks.
    let (server_admin, _) = skep.key(&[Scope::Admin, Scope::ServerAdmin]).await;
    let server_admin = skep.client(&server_admin);
    let with = |scopes: &[Scope]| CreateKey {
        name: "y".to_owned(),
        scopes: Some(scopes.to_vec()),
        account: Some(account.id),
        ..CreateKey::default()
    };
    let elsewhere = server_admin.run(&with(&[Scope::ServerAdmin])).await.unwrap_err();
    assert_eq!(elsewhere.code(), ErrorCode::InvalidValue);
    let more = server_admin.run(&with(&[Scope::FilesRead])).await.unwrap_err();
    assert_eq!(more.code(), ErrorCode::ScopeMissing);
    let made = server_admin.run(&with(&[Scope::Admin])).await.unwrap().value;
    assert_eq!(skep.client(&made.key).run(&IdentifyCaller {}).await.unwrap().account.id, account.id);
    let unknown = CreateKey { account: Some(AccountId::generate()), ..with(&[Scope::Admin]) };
    assert_eq!(server_admin.run(&unknown).await.unwrap_err().code(), ErrorCode::UnknownAccount);
    // An invalid request is refused before the account is checked.
    let wrong = CreateKey { name: String::new(), ..unknown };
    assert_eq!(server_admin.run(&wrong).await.unwrap_err().code(), ErrorCode::InvalidValue);
}

/// The answer to a caller, without the named value and without the parts that differ in every answer.
async fn answer(skep: &Skep, key: &str, method: Method, path: &str, body: &Value, named: &str) -> String {
    let request = skep.bare(method, path).bearer_auth(key).header("x-request-id", "same").json(body);
    let response = request.send().await.unwrap();
    let status = response.status();
    let mut headers: Vec<String> = response
        .headers()
        .iter()
        .filter(|(name, _)| *name != "date" && *name != "content-length")
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    headers.sort();
    let body = response.text().await.unwrap();
    format!("{status}\n{}\n\n{}", headers.join("\n"), body.replace(named, "NAMED"))
}

#[tokio::test]
async fn a_foreign_key_is_answered_as_one_that_does_not_exist() {
    let skep = Skep::start().await;
    let (_, theirs) = tenant(&skep, "acme", Role::Admin).await;
    let request = CreateKey { name: "target".to_owned(), role: Some(Role::Agent), ..CreateKey::default() };
    let target = theirs.run(&request).await.unwrap().value.record;
    // Created at the same time, but later, so that its position in every order is the same.
    let nobody = KeyId::generate_after(Some(target.id)).to_string();
    let foreign = target.id.to_string();
    for (method, path, body) in [
        (Method::GET, "/api/keys/ID", json!({})),
        (Method::DELETE, "/api/keys/ID", json!({})),
        (Method::POST, "/api/keys/ID/rotate", json!({})),
        (Method::POST, "/api/keys/ID/rotate", json!({"expires_at": null})),
        (Method::GET, "/api/keys?cursor=ID", json!({})),
        (Method::GET, "/api/keys?limit=1&cursor=ID", json!({})),
        (Method::GET, "/api/accounts/ID", json!({})),
    ] {
        let ask = async |id: &str| {
            answer(&skep, &skep.admin, method.clone(), &path.replace("ID", id), &body, id).await
        };
        let (of_foreign, of_nobody) = (ask(&foreign).await, ask(&nobody).await);
        assert_eq!(of_foreign, of_nobody, "{method} {path}");
        assert!(!of_foreign.contains(&foreign) && !of_foreign.contains("target"), "{of_foreign}");
    }
    // The control: it exists unchanged, and all operations succeed for its owner.
    assert_eq!(theirs.run_on(target.id, &ReadKey {}).await.unwrap().value, target);
    let page = theirs.run(&ListKeys { cursor: Some(nobody.clone()), ..ListKeys::default() }).await.unwrap();
    assert!(page.keys.iter().any(|key| key.id == target.id), "the cursor lies behind it");
    assert!(theirs.run_on(target.id, &RotateKey::default()).await.is_ok());
    assert!(theirs.run_on(target.id, &RevokeKey {}).await.unwrap().revoked_at.is_some());
}

#[tokio::test]
async fn the_revocation_of_all_keys_stops_at_the_account() {
    let skep = Skep::start().await;
    let (account, theirs) = tenant(&skep, "acme", Role::Admin).await;
    let (own, _) = skep.key(&[Scope::SwarmRead]).await;
    let own = skep.client(&own);
    let admin = skep.client(&skep.admin);
    assert_eq!(admin.run(&RevokeAllKeys { all: true, own: false, account: None }).await.unwrap().revoked, 1);
    assert_eq!(own.run(&IdentifyCaller {}).await.unwrap_err().code(), ErrorCode::TokenExpired);
    assert!(admin.run(&IdentifyCaller {}).await.is_ok(), "its own stays");
    assert!(theirs.run(&IdentifyCaller {}).await.is_ok());
    for path in ["/api/keys", "/api/keys?all=false", "/api/keys?own=true"] {
        let response = send(&skep, Method::DELETE, path, &json!({})).await;
        let Refused { status, message, .. } = refused(response).await;
        assert!(status == 400 && message.contains("`all=true`"), "{path}: {message}");
    }
    let path = format!("/api/keys?all=true&account={}", account.id);
    let revoked: Value = send(&skep, Method::DELETE, &path, &json!({})).await.json().await.unwrap();
    assert_eq!(revoked, json!({"revoked": 1, "kept": 0}));
    assert_eq!(theirs.run(&IdentifyCaller {}).await.unwrap_err().code(), ErrorCode::TokenExpired);
    assert_eq!(admin.run(&RevokeAllKeys { all: true, own: true, account: None }).await.unwrap().revoked, 1);
    assert_eq!(admin.run(&IdentifyCaller {}).await.unwrap_err().code(), ErrorCode::TokenExpired);
}

#[tokio::test]
async fn nobody_revokes_the_keys_of_an_account_that_it_does_not_administer() {
    let skep = Skep::start().await;
    let (_, theirs) = tenant(&skep, "acme", Role::Admin).await;
    let request =
        CreateKey { name: "x".to_owned(), scopes: Some(vec![Scope::Admin]), ..CreateKey::default() };
    let key = theirs.run(&request).await.unwrap().value.key;
    for id in [skep.account.id, AccountId::generate()] {
        for confirmed in ["all=true&", ""] {
            let path = format!("/api/keys?{confirmed}account={id}");
            let response = skep.bare(Method::DELETE, &path).bearer_auth(&key).send().await.unwrap();
            assert_eq!(refused(response).await.code, "scope_missing");
        }
    }
    assert_eq!(skep.get("/api/whoami").await.status(), 200);
}
