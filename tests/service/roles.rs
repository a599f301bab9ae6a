//! The permissions of each role for each operation. An operation of the document without an entry fails the test.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{
    harness::{Skep, refused},
    openapi::{Operation, document, operations},
    tickets::vms::vm,
};

/// The answer to a key of a role, for a request that is otherwise invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The key passes, and the request itself is checked next.
    Allowed,
    Refused(&'static str),
}

use Verdict::{Allowed, Refused};

const NO_SCOPE: Verdict = Refused("scope_missing");
const NOT_BY_VM: Verdict = Refused("vm_key_limited");

/// Which callers may use an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// Everybody, also without a key.
    Public,
    /// Every key.
    EveryKey,
    /// Every key except for keys of VMs.
    EveryOtherKey,
    /// Agents, and keys of VMs for their own VM and ticket.
    AgentsAndVms,
    Agents,
    Operators,
    /// Administrators of any account.
    Admins,
    /// Administrators of the server.
    ServerAdmins,
}

/// The columns of the matrix; an administrator of the server is one of the account `default`.
const ROLES: [&str; 5] = ["vm", "agent", "operator", "admin", "server admin"];

impl Audience {
    /// The answer to each of [`ROLES`].
    fn verdicts(self) -> [Verdict; 5] {
        match self {
            Self::Public | Self::EveryKey | Self::AgentsAndVms => [Allowed; 5],
            Self::EveryOtherKey | Self::Agents => [NOT_BY_VM, Allowed, Allowed, Allowed, Allowed],
            Self::Operators => [NOT_BY_VM, NO_SCOPE, Allowed, Allowed, Allowed],
            Self::Admins => [NOT_BY_VM, NO_SCOPE, NO_SCOPE, Allowed, Allowed],
            Self::ServerAdmins => [NOT_BY_VM, NO_SCOPE, NO_SCOPE, NO_SCOPE, Allowed],
        }
    }
}

use Audience::{Admins, Agents, AgentsAndVms, EveryKey, EveryOtherKey, Operators, Public, ServerAdmins};

const PERMISSIONS: &[(Audience, &[&str])] = &[
    (Public, &["health", "openapi", "root", "docs", "docs_file", "join_waitlist"]),
    (EveryKey, &["whoami"]),
    (EveryOtherKey, &["create_session", "create_session_link", "read_session", "end_session"]),
    (
        AgentsAndVms,
        &[
            "exec",
            "exec_duplex",
            "exec_in_vm",
            "exec_duplex_in_vm",
            "exec_again",
            "read_file",
            "list_folder",
            "search_files",
            "grep_files",
            "watch_files",
            "write_raw_file",
            "remove_file",
            "write_file",
            "make_folder",
            "make_link",
            "move_file",
            "copy_file",
            "git_repositories",
            "git_status",
            "git_diff",
            "git_log",
            "git_branches",
            "git_worktrees",
            "git_add",
            "git_commit",
            "git_push",
            "git_pull",
            "git_init",
            "git_clone",
            "git_checkout",
            "git_change_branch",
            "git_change_worktree",
            "git_reset",
            "git_stash",
            "git_show",
            "git_tags",
            "git_change_tag",
            "git_merge",
            "git_remotes",
            "git_change_remote",
            "git_fetch",
            "read_ticket",
            "ticket_log",
            "change_ticket",
            "beat_ticket",
        ],
    ),
    (
        Agents,
        &[
            "swarm_status",
            "swarm_metrics",
            "read_vm",
            "list_vms",
            "list_templates",
            "read_template",
            "console",
            "vm_metrics",
            "vm_egress",
            "list_git_credentials",
            "list_tickets",
            "count_tickets",
            "create_ticket",
            "create_tickets",
            "claim_tickets",
            "delete_ticket",
            "why_ticket",
            "ticket_history",
            "events",
        ],
    ),
    (
        Operators,
        &[
            "boot",
            "cleanup",
            "change_vm",
            "pause_vm",
            "resume_vm",
            "fork_vm",
            "snapshot_vm",
            "end_vm",
            "create_template",
            "delete_template",
            "metrics",
        ],
    ),
    (
        Admins,
        &[
            "list_keys",
            "create_key",
            "revoke_all_keys",
            "read_key",
            "revoke_key",
            "rotate_key",
            "set_git_credential",
            "remove_git_credential",
            "list_webhooks",
            "create_webhook",
            "read_webhook",
            "change_webhook",
            "delete_webhook",
            "rotate_webhook",
            "list_deliveries",
            "redeliver",
            "test_webhook",
            "list_audit",
        ],
    ),
    (
        ServerAdmins,
        &[
            "list_accounts",
            "create_account",
            "read_account",
            "change_account",
            "delete_account",
            "restart",
            "system",
            "list_waitlist",
            "remove_from_waitlist",
        ],
    ),
];

fn id(operation: &Operation) -> &str {
    operation.described["operationId"].as_str().unwrap()
}

fn decided(operation: &Operation) -> Audience {
    let id = id(operation);
    let found: Vec<Audience> =
        PERMISSIONS.iter().filter(|(_, ids)| ids.contains(&id)).map(|(who, _)| *who).collect();
    match found.as_slice() {
        [who] => *who,
        [] => {
            panic!("{} {} (`{id}`): decide here which roles may ask for it", operation.method, operation.path)
        }
        _ => panic!("`{id}` is decided twice: {found:?}"),
    }
}

/// A key of each of [`ROLES`].
async fn keys(skep: &Skep) -> [String; 5] {
    let make = async |body: Value| {
        let made: Value = skep.post("/api/keys", &body.to_string()).await.json().await.unwrap();
        made["key"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    };
    let account = skep.post("/api/accounts", r#"{"name": "acme"}"#).await;
    let account: Value = account.json().await.unwrap();
    let role = |role: &str| json!({"name": role, "role": role});
    [
        vm(skep, 1).await.1,
        make(role("agent")).await,
        make(role("operator")).await,
        make(json!({"name": "admin", "role": "admin", "account": account["id"]})).await,
        make(role("admin")).await,
    ]
}

/// A request whose parameters are all invalid.
fn wrong(operation: &Operation, skep: &Skep) -> RequestBuilder {
    let path = format!("{}?bogus=1", operation.concrete());
    skep.bare(operation.method.clone(), &path).header("content-type", "text/plain").body("{")
}

async fn verdict(request: RequestBuilder, what: &str) -> Verdict {
    let found = refused(request.send().await.unwrap()).await;
    match (found.status, found.code.as_str()) {
        (400, _) => Allowed,
        (403, "scope_missing") => NO_SCOPE,
        (403, "vm_key_limited") => NOT_BY_VM,
        (401, "missing_token") => Refused("missing_token"),
        other => panic!("{what}: {other:?}: {}", found.message),
    }
}

#[tokio::test]
async fn each_role_has_exactly_its_permissions() {
    let skep = Skep::start().await;
    let all = operations(&document(&skep).await);
    for operation in &all {
        decided(operation);
    }
    for one in PERMISSIONS.iter().flat_map(|(_, ids)| ids.iter()) {
        assert!(all.iter().any(|operation| id(operation) == *one), "{one} is no operation");
    }
    let keys = keys(&skep).await;
    for operation in &all {
        let who = decided(operation);
        let what = format!("{} {} (`{}`)", operation.method, operation.path, id(operation));
        if who == Public {
            assert!(operation.scopes.is_none(), "{what} needs a key");
            continue;
        }
        assert!(operation.scopes.is_some(), "{what} needs no key");
        assert_eq!(verdict(wrong(operation, &skep), &what).await, Refused("missing_token"), "{what}, no key");
        for ((role, key), expected) in ROLES.iter().zip(&keys).zip(who.verdicts()) {
            let found = verdict(wrong(operation, &skep).bearer_auth(key), &what).await;
            assert_eq!(found, expected, "{what}, {role}");
        }
    }
}

#[tokio::test]
async fn a_key_of_a_vm_reaches_no_file_and_no_program_of_the_server() {
    let skep = Skep::start().await;
    let (_, key) = vm(&skep, 1).await;
    let path = skep.at("file");
    std::fs::write(&path, "canary").unwrap();
    let ask = async |method: Method, path: &str, body: Value| {
        let request = skep.bare(method.clone(), path).bearer_auth(&key);
        let request = if method == Method::POST { request.json(&body) } else { request };
        refused(request.send().await.unwrap()).await
    };
    for (method, route, body) in [
        (Method::GET, format!("/api/files/read?path={path}"), json!(null)),
        (Method::GET, format!("/api/ls?path={}", skep.at("")), json!(null)),
        (Method::POST, "/api/files/write".to_owned(), json!({"path": path, "content": "x"})),
        (Method::POST, "/api/files/copy".to_owned(), json!({"from": path, "to": skep.at("copy")})),
        (Method::GET, format!("/api/git/status?path={}", skep.at("")), json!(null)),
        (Method::POST, "/api/git/init".to_owned(), json!({"path": skep.at("repository")})),
        (Method::POST, "/api/git/clone".to_owned(), json!({"url": skep.at(""), "path": skep.at("clone")})),
        (Method::POST, "/api/exec".to_owned(), json!({"command": "id"})),
    ] {
        let found = ask(method, &route, body).await;
        assert_eq!(
            (found.status, found.code.as_str()),
            (403, "vm_key_limited"),
            "{route}: {}",
            found.message
        );
    }
    // The control: another key reaches them.
    assert_eq!(skep.get(&format!("/api/files/read?path={path}")).await.status(), 200);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "canary");
}
