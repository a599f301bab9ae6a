//! The expected answer of each operation.

/// The expected answer to a valid request by a key with exactly the required scopes. An operation without a row fails.
pub(super) struct Row {
    pub(super) id: &'static str,
    /// What is appended to the path.
    pub(super) query: &'static str,
    pub(super) body: Option<&'static str>,
    pub(super) answer: Answer,
}

pub(super) enum Answer {
    /// It succeeds.
    Done(u16),
    /// Its resource is unknown: the status and the code.
    Unknown(u16, &'static str),
}

use Answer::{Done, Unknown};

const fn row(id: &'static str, answer: Answer) -> Row {
    Row { id, query: "", body: None, answer }
}

const fn sends(id: &'static str, body: &'static str, answer: Answer) -> Row {
    Row { id, query: "", body: Some(body), answer }
}

const fn asks(id: &'static str, query: &'static str, answer: Answer) -> Row {
    Row { id, query, body: None, answer }
}

const OUTSIDE: Answer = Unknown(403, "path_outside_roots");
const NO_VM: Answer = Unknown(503, "swarm_unavailable");
const NO_TEMPLATE: Answer = Unknown(404, "unknown_template");
const NO_KEY: Answer = Unknown(404, "unknown_key");
const NO_TICKET: Answer = Unknown(404, "unknown_ticket");
const NO_WEBHOOK: Answer = Unknown(404, "unknown_webhook");
const NO_ACCOUNT: Answer = Unknown(404, "unknown_account");

/// These servers have no swarm, so operations on VMs end there. `tests/binary/separation.rs` tests them with VMs.
pub(super) const ROWS: &[Row] = &[
    row("health", Done(200)),
    row("openapi", Done(200)),
    row("docs", Done(200)),
    row("root", Done(200)),
    row("docs_file", Done(200)),
    sends("join_waitlist", r#"{"email": "ada@example.com"}"#, Done(202)),
    row("whoami", Done(200)),
    row("create_session", Done(201)),
    row("create_session_link", Done(201)),
    row("read_session", Done(200)),
    row("end_session", Done(200)),
    row("list_keys", Done(200)),
    sends("create_key", r#"{"name": "made", "scopes": ["admin"]}"#, Done(201)),
    Row { id: "revoke_all_keys", query: "?all=true", body: None, answer: Done(200) },
    row("read_key", NO_KEY),
    row("revoke_key", NO_KEY),
    sends("rotate_key", "{}", NO_KEY),
    row("list_accounts", Done(200)),
    sends("create_account", r#"{"name": "made"}"#, Done(201)),
    row("read_account", NO_ACCOUNT),
    sends("change_account", "{}", NO_ACCOUNT),
    row("delete_account", NO_ACCOUNT),
    row("swarm_status", Done(200)),
    row("swarm_metrics", NO_VM),
    row("system", Done(200)),
    row("list_vms", Done(200)),
    row("list_templates", Done(200)),
    sends("create_template", r#"{"name": "made", "from": "base"}"#, NO_VM),
    row("read_template", NO_TEMPLATE),
    row("delete_template", NO_TEMPLATE),
    sends("boot", "{}", NO_VM),
    row("cleanup", NO_VM),
    row("read_vm", NO_VM),
    sends("change_vm", "{}", NO_VM),
    sends("pause_vm", "{}", NO_VM),
    row("resume_vm", NO_VM),
    sends("fork_vm", "{}", NO_VM),
    sends("snapshot_vm", r#"{"name": "made"}"#, NO_VM),
    row("end_vm", NO_VM),
    row("console", NO_VM),
    row("vm_metrics", NO_VM),
    row("vm_egress", NO_VM),
    sends("exec", r#"{"command": "id", "vm": 4242}"#, NO_VM),
    sends("exec_in_vm", r#"{"command": "id"}"#, NO_VM),
    asks("exec_duplex", "?vm=4242", NO_VM),
    row("exec_duplex_in_vm", NO_VM),
    row("exec_again", NO_VM),
    row("restart", Done(202)),
    asks("read_file", "?path=/nowhere/file", OUTSIDE),
    asks("list_folder", "?path=/nowhere", OUTSIDE),
    asks("search_files", "?path=/nowhere&pattern=*", OUTSIDE),
    asks("grep_files", "?path=/nowhere&pattern=x", OUTSIDE),
    asks("watch_files", "?path=/nowhere", OUTSIDE),
    Row { id: "write_raw_file", query: "?path=/nowhere/file", body: Some("{}"), answer: OUTSIDE },
    asks("remove_file", "?path=/nowhere/file", OUTSIDE),
    sends("write_file", r#"{"path": "/nowhere/file", "content": ""}"#, OUTSIDE),
    sends("make_link", r#"{"path": "/nowhere/link", "target": "file"}"#, OUTSIDE),
    sends("make_folder", r#"{"path": "/nowhere/folder"}"#, OUTSIDE),
    sends("move_file", r#"{"from": "/nowhere/one", "to": "/nowhere/two"}"#, OUTSIDE),
    sends("copy_file", r#"{"from": "/nowhere/one", "to": "/nowhere/two"}"#, OUTSIDE),
    row("git_repositories", Done(200)),
    asks("git_status", "?path=/nowhere", OUTSIDE),
    asks("git_diff", "?path=/nowhere", OUTSIDE),
    asks("git_log", "?path=/nowhere", OUTSIDE),
    asks("git_branches", "?path=/nowhere", OUTSIDE),
    asks("git_worktrees", "?path=/nowhere", OUTSIDE),
    sends("git_add", r#"{"path": "/nowhere"}"#, OUTSIDE),
    sends("git_commit", r#"{"path": "/nowhere", "message": "x"}"#, OUTSIDE),
    sends("git_push", r#"{"path": "/nowhere"}"#, OUTSIDE),
    sends("git_pull", r#"{"path": "/nowhere"}"#, OUTSIDE),
    sends("git_init", r#"{"path": "/nowhere/folder"}"#, OUTSIDE),
    sends("git_clone", r#"{"url": "/nowhere/one", "path": "/nowhere/two"}"#, OUTSIDE),
    sends("git_checkout", r#"{"path": "/nowhere", "ref": "x"}"#, OUTSIDE),
    sends("git_change_branch", r#"{"path": "/nowhere", "name": "x"}"#, OUTSIDE),
    sends("git_change_worktree", r#"{"path": "/nowhere", "worktree": "/nowhere/x"}"#, OUTSIDE),
    sends("git_reset", r#"{"path": "/nowhere"}"#, OUTSIDE),
    sends("git_stash", r#"{"path": "/nowhere", "action": "list"}"#, OUTSIDE),
    asks("git_show", "?path=/nowhere", OUTSIDE),
    asks("git_tags", "?path=/nowhere", OUTSIDE),
    sends("git_change_tag", r#"{"path": "/nowhere", "name": "x"}"#, OUTSIDE),
    sends("git_merge", r#"{"path": "/nowhere", "ref": "x"}"#, OUTSIDE),
    asks("git_remotes", "?path=/nowhere", OUTSIDE),
    sends("git_change_remote", r#"{"path": "/nowhere", "name": "x", "remove": true}"#, OUTSIDE),
    sends("git_fetch", r#"{"path": "/nowhere"}"#, OUTSIDE),
    row("list_git_credentials", Done(200)),
    sends("set_git_credential", r#"{"host": "git.example.com", "token": "x"}"#, Done(201)),
    asks("remove_git_credential", "?host=git.example.com", Unknown(404, "unknown_credential")),
    row("list_tickets", Done(200)),
    row("count_tickets", Done(200)),
    sends("create_ticket", r#"{"title": "made"}"#, Done(201)),
    sends("create_tickets", r#"{"tickets": [{"title": "made"}]}"#, Done(201)),
    row("claim_tickets", Done(200)),
    row("read_ticket", NO_TICKET),
    sends("change_ticket", r#"{"title": "changed"}"#, NO_TICKET),
    row("delete_ticket", NO_TICKET),
    row("beat_ticket", NO_TICKET),
    row("why_ticket", NO_TICKET),
    row("ticket_history", NO_TICKET),
    row("ticket_log", NO_TICKET),
    Row { id: "events", query: "?ticket=tkt_01jv0000000000000000000000", body: None, answer: NO_TICKET },
    row("list_webhooks", Done(200)),
    sends("create_webhook", r#"{"url": "https://localhost/skep", "types": ["key.*"]}"#, Done(201)),
    row("read_webhook", NO_WEBHOOK),
    sends("change_webhook", r#"{"enabled": false}"#, NO_WEBHOOK),
    row("delete_webhook", NO_WEBHOOK),
    row("rotate_webhook", NO_WEBHOOK),
    row("list_deliveries", NO_WEBHOOK),
    row("redeliver", NO_WEBHOOK),
    row("test_webhook", NO_WEBHOOK),
    row("list_audit", Done(200)),
    row("metrics", Done(200)),
    row("list_waitlist", Done(200)),
    row("remove_from_waitlist", Unknown(404, "unknown_waitlist_entry")),
];
