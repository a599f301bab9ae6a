//! Accounts and keys by command: by the API where a server or a key is given, else in the store of a data directory.

use std::{
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{answer, skep, stdout};
use crate::harness::{Skep, binary, eventually, send, step, temp_dir};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_accounts_are_managed_on_a_running_server() {
    let server = Skep::start().await;
    step("accounts", async { accounts(&server) }).await;
    step("keys of VMs that ended", keys_of_ended_vms(&server)).await;
    step("expiries", async { expiries(&server) }).await;
    step("by the API, and in the store", by_the_api_and_in_the_store(&server)).await;
}

async fn by_the_api_and_in_the_store(server: &Skep) {
    let by_api = answer(&skep(server, &["keys", "create", "--name", "a", "--role", "agent", "--json"], ""));
    eventually("the entry of the audit", async || {
        let audit = server.get("/api/audit?action=create_key").await.ok(200);
        audit["entries"].as_array().unwrap().iter().any(|entry| entry["resource"] == by_api["id"])
    })
    .await;

    let data_dir = server.data_dir.path().to_str().unwrap();
    let local = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.env_remove("SKEP_URL").env_remove("SKEP_API_KEY").env("SKEP_DATA_DIR", data_dir);
        command.arg("keys").args(arguments).output().unwrap()
    };
    let in_store = local(&["list"]);
    assert!(stdout(&in_store).contains(by_api["id"].as_str().unwrap()), "{in_store:?}");
    assert!(
        stderr(&in_store).contains(&format!("working in the store {data_dir}/server/skep.db")),
        "{in_store:?}"
    );
    // A flag wins over variables.
    let flagged = skep(server, &["keys", "list", "--data-dir", data_dir], "");
    assert!(stderr(&flagged).contains("working in the store"), "{flagged:?}");
    let remote = skep(server, &["keys", "list"], "");
    assert_eq!(stderr(&remote), "1 key of VMs that have ended not listed; use --all\n", "no store is named");
    assert!(stdout(&remote).contains(by_api["id"].as_str().unwrap()), "{remote:?}");

    let rotated = answer(&skep(server, &["keys", "rotate", by_api["id"].as_str().unwrap(), "--json"], ""));
    assert_eq!(rotated["name"], "a");
    let revoked = skep(server, &["keys", "revoke", rotated["id"].as_str().unwrap()], "");
    assert!(stdout(&revoked).contains("a is revoked"), "{revoked:?}");
    answer(&skep(server, &["account", "create", "globex", "--json"], ""));
    let other = ["keys", "create", "--account", "globex", "--name", "first", "--role", "admin", "--json"];
    assert_ne!(answer(&skep(server, &other, ""))["account"], by_api["account"]);
    let listed = skep(server, &["keys", "list", "--account", "globex"], "");
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    assert!(stderr(&listed).contains("use a key of `globex`"), "{listed:?}");
    assert!(stdout(&local(&["list", "--account", "globex"])).contains("first"));
    let all = skep(server, &["keys", "revoke", "--all", "--account", "globex"], "");
    assert_eq!(stdout(&all), "1 key of `globex` revoked\n", "{all:?}");
}

fn expiries(server: &Skep) {
    let create = |name: &str, expiry: &str| {
        skep(
            server,
            &["keys", "create", "--name", name, "--role", "agent", "--expires-at", expiry, "--json"],
            "",
        )
    };
    assert_eq!(answer(&create("date", "2099-01-31"))["expires_at"], "2099-01-31T00:00:00.000Z");
    assert_eq!(answer(&create("time", "2099-01-31T12:00:00Z"))["expires_at"], "2099-01-31T12:00:00.000Z");
    let days: jiff::Timestamp =
        answer(&create("days", "30d"))["expires_at"].as_str().unwrap().parse().unwrap();
    let hours = (days - jiff::Timestamp::now()).total(jiff::Unit::Hour).unwrap();
    assert!((718.0..=720.0).contains(&hours), "{hours}");
    let wrong = create("wrong", "soon");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(stderr(&wrong).contains("30d") && stderr(&wrong).contains("2027-01-31"), "{wrong:?}");
    let past = create("past", "2001-01-01");
    assert!(stderr(&past).contains("`expires_at`"), "{past:?}");
    let listed = stdout(&skep(server, &["keys", "list"], ""));
    assert!(listed.contains("EXPIRES") && listed.contains("2099-01-31T00:00:00Z"), "{listed}");
    assert!(listed.lines().any(|line| line.contains("admin") && line.contains("never")), "{listed}");
}

async fn keys_of_ended_vms(server: &Skep) {
    let vm = server.boot_one().await.to_string();
    let create = ["keys", "create", "--name", "of-vm", "--role", "vm", "--vm", &vm, "--json"];
    let id = answer(&skep(server, &create, ""))["id"].as_str().unwrap().to_owned();
    assert!(stdout(&skep(server, &["keys", "list"], "")).contains(&id));
    server.delete(&format!("/api/swarm/vm/{vm}")).await.ok(200);
    let listed = skep(server, &["keys", "list"], "");
    assert!(!stdout(&listed).contains(&id) && stderr(&listed).contains("1 key of VMs"), "{listed:?}");
    assert!(stdout(&skep(server, &["keys", "list", "--all"], "")).contains(&id));
    let json: Value = answer(&skep(server, &["keys", "list", "--json"], ""));
    assert!(json["keys"].as_array().unwrap().iter().any(|key| key["id"] == json!(id)), "{json}");
}

fn accounts(server: &Skep) {
    let run = |arguments: &[&str]| skep(server, &[&["account"], arguments].concat(), "");
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    let made = answer(&run(&words("create acme --allowed-ip 127.0.0.1,10.0.0.0/8 --max-vms 3 --json")));
    let id = made["id"].as_str().unwrap();
    let listed = stdout(&run(&["list"]));
    assert!(listed.contains(id) && listed.contains("127.0.0.1/32,10.0.0.0/8"), "{listed}");
    assert!(listed.contains("default") && listed.contains("everywhere"), "{listed}");
    assert_eq!(answer(&run(&["list", "--json"]))["accounts"].as_array().unwrap().len(), 2);
    let set =
        "set acme --any-ip --max-vms none --max-memory-mb 512 --max-disk-mb 4096 --max-paused-vms 8 --json";
    let set = answer(&run(&words(set)));
    assert_eq!((&set["allowed_ips"], &set["max_vms"]), (&json!([]), &Value::Null));
    assert_eq!(set["max_memory_mb"], 512);
    assert_eq!((&set["max_disk_mb"], &set["max_paused_vms"]), (&json!(4096), &json!(8)));
    assert_eq!(answer(&run(&["show", id, "--json"])), set);
    assert!(stdout(&run(&["show", "acme"])).contains("4096"));
    assert_eq!(set["egress"], "none", "the control");
    let set = answer(&run(&words("set acme --egress-preset node --json")));
    assert_eq!(set["egress"], json!({"presets": ["node"]}));
    assert_eq!(set["git_relay"], "known", "the control");
    assert_eq!(answer(&run(&words("set acme --git-relay any --json")))["git_relay"], "any");
    let nothing = run(&["set", "acme"]);
    assert!(!nothing.status.success(), "{nothing:?}");
    let refused = run(&["delete", "default", "acme"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot be deleted"), "{refused:?}");
    assert!(stdout(&refused).contains("acme is deleted"), "one that stays keeps no other: {refused:?}");
    let gone = run(&["show", "acme"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no account `acme`"), "{gone:?}");
}

/// A server that finds none of the programs that VMs need, so that it starts at once.
async fn without_vms(data_dir: TempDir) -> Skep {
    Skep::start_as(data_dir, |command| _ = command.env("PATH", "/nonexistent")).await
}

#[tokio::test]
async fn keys_are_made_rotated_and_revoked_without_a_server() {
    let server = without_vms(temp_dir()).await;
    let made = answer(&skep(&server, &["account", "create", "acme", "--json"], ""));
    let data_dir = server.stop();
    let dir = data_dir.path().to_str().unwrap().to_owned();
    let keys = |arguments: &[&str]| {
        Command::new(binary()).arg("keys").args(arguments).args(["--data-dir", &dir]).output().unwrap()
    };
    let of_acme = |arguments: &[&str]| keys(&[arguments, &["--account", "acme"]].concat());
    let old = answer(&of_acme(&["create", "--name", "ci", "--role", "admin", "--json"]));
    assert_eq!(old["account"], made["id"]);
    let new = answer(&of_acme(&["rotate", old["id"].as_str().unwrap(), "--json"]));
    assert_eq!((&new["name"], &new["scopes"]), (&old["name"], &old["scopes"]));
    let listed = stdout(&of_acme(&["list"]));
    assert!(listed.contains("rotated") && listed.contains("valid"), "{listed}");
    let unknown = keys(&["list", "--account", "nobody"]);
    assert!(stderr(&unknown).contains("no account `nobody`"), "{unknown:?}");
    answer(&keys(&["create", "--name", "other", "--role", "agent", "--json"]));
    // All but the one that the commands on this machine use.
    assert_eq!(answer(&keys(&["revoke", "--all", "--json"])), json!({"revoked": 1, "kept": 0}));
    let later = answer(&keys(&["create", "--name", "later", "--role", "operator", "--json"]));
    assert!(stdout(&keys(&["list"])).contains("later"));

    let server = without_vms(data_dir).await;
    server.get("/api/whoami").await.ok(200);
    let ask = |key: &Value| {
        let key = key["key"].as_str().unwrap().to_owned();
        send(server.bare(Method::GET, "/api/whoami").bearer_auth(key))
    };
    for key in [&old, &new, &later] {
        ask(key).await.ok(200);
    }
    assert!(keys(&["revoke", later["id"].as_str().unwrap()]).status.success());
    ask(&later).await.refused(403, "token_expired");
    let all = ["keys", "revoke", "--all", "--account", "acme", "--json", "--data-dir", &dir];
    assert_eq!(answer(&skep(&server, &all, "")), json!({"revoked": 2, "kept": 0}));
    ask(&old).await.refused(403, "token_expired");
    ask(&new).await.refused(403, "token_expired");
    assert!(keys(&["revoke", "--all", "--own"]).status.success());
    server.get("/api/whoami").await.refused(403, "token_expired");
}

#[tokio::test]
async fn the_admin_key_is_replaced_on_the_machine_also_after_its_revocation() {
    let server = without_vms(temp_dir()).await;
    let dir = server.data_dir.path().to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.env_remove("SKEP_URL").env_remove("SKEP_API_KEY");
        command.args(arguments).args(["--data-dir", &dir]).output().unwrap()
    };
    let file = server.data_dir.path().join("admin.key");
    let key_in_file = || std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let ask = |key: &str| send(server.bare(Method::GET, "/api/whoami").bearer_auth(key.to_owned()));

    // A key that is valid is replaced, and the former one is revoked.
    let first = key_in_file();
    ask(&first).await.ok(200);
    let made = answer(&run(&["keys", "reset-admin", "--json"]));
    assert_eq!((&made["name"], &made["role"]), (&json!("admin"), &json!("admin")));
    let second = key_in_file();
    assert_eq!(ask(&second).await.ok(200)["key"]["id"], made["id"]);
    ask(&first).await.refused(403, "token_expired");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // The operator is locked out, and the error names the way back.
    assert!(run(&["keys", "revoke", "--all", "--own"]).status.success());
    ask(&second).await.refused(403, "token_expired");
    let url = server.url.clone();
    let whoami = run(&["whoami", "--url", &url]);
    assert!(stderr(&whoami).contains("skep keys reset-admin"), "{whoami:?}");
    let reset = run(&["keys", "reset-admin"]);
    assert!(stdout(&reset).contains(file.to_str().unwrap()), "{reset:?}");
    let third = key_in_file();
    assert!(!stdout(&reset).contains(&third), "the key is in the file alone");
    ask(&third).await.ok(200);

    // It is that of the next start, too.
    let server = without_vms(server.stop()).await;
    send(server.bare(Method::GET, "/api/whoami").bearer_auth(third)).await.ok(200);
    send(server.bare(Method::GET, "/api/whoami").bearer_auth(second)).await.refused(403, "token_expired");
    let empty = temp_dir();
    let refused =
        Command::new(binary()).args(["keys", "reset-admin", "--data-dir"]).arg(empty.path()).output();
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("no store at"), "{refused:?}");
}
