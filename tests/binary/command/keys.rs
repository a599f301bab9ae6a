//! Keys by command: by the API where a server or a key is given, else in the store of a data directory.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{answer, skep, stdout};
use crate::harness::{Skep, binary, eventually};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn keys_go_by_the_api_where_a_server_is_given_and_else_name_their_store() {
    let server = Skep::start().await;
    let by_api = answer(&skep(&server, &["keys", "create", "--name", "a", "--role", "agent", "--json"], ""));
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
    let flagged = skep(&server, &["keys", "list", "--data-dir", data_dir], "");
    assert!(stderr(&flagged).contains("working in the store"), "{flagged:?}");
    let remote = skep(&server, &["keys", "list"], "");
    assert!(
        stderr(&remote).is_empty() && stdout(&remote).contains(by_api["id"].as_str().unwrap()),
        "{remote:?}"
    );

    let rotated = answer(&skep(&server, &["keys", "rotate", by_api["id"].as_str().unwrap(), "--json"], ""));
    assert_eq!(rotated["name"], "a");
    let revoked = skep(&server, &["keys", "revoke", rotated["id"].as_str().unwrap()], "");
    assert!(stdout(&revoked).contains("a is revoked"), "{revoked:?}");
    answer(&skep(&server, &["account", "create", "acme", "--json"], ""));
    let other = ["keys", "create", "--account", "acme", "--name", "first", "--role", "admin", "--json"];
    assert_ne!(answer(&skep(&server, &other, ""))["account"], by_api["account"]);
    let listed = skep(&server, &["keys", "list", "--account", "acme"], "");
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    assert!(stderr(&listed).contains("use a key of `acme`"), "{listed:?}");
    assert!(stdout(&local(&["list", "--account", "acme"])).contains("first"));
    let all = skep(&server, &["keys", "revoke", "--all", "--account", "acme"], "");
    assert_eq!(stdout(&all), "1 key of `acme` revoked\n", "{all:?}");
}

#[tokio::test]
async fn an_expiry_is_a_duration_a_date_or_a_time_and_is_listed() {
    let server = Skep::start().await;
    let create = |name: &str, expiry: &str| {
        skep(
            &server,
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
    assert!(stderr(&past).contains("--expires-at"), "{past:?}");
    let listed = stdout(&skep(&server, &["keys", "list"], ""));
    assert!(listed.contains("EXPIRES") && listed.contains("2099-01-31T00:00:00Z"), "{listed}");
    assert!(listed.lines().any(|line| line.contains("admin") && line.contains("never")), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_vms_that_ended_are_listed_on_request_only() {
    let server = Skep::start().await;
    let vm = server.boot_one().await.to_string();
    let create = ["keys", "create", "--name", "of-vm", "--role", "vm", "--vm", &vm, "--json"];
    let id = answer(&skep(&server, &create, ""))["id"].as_str().unwrap().to_owned();
    assert!(stdout(&skep(&server, &["keys", "list"], "")).contains(&id));
    server.delete(&format!("/api/swarm/vm/{vm}")).await.ok(200);
    let listed = skep(&server, &["keys", "list"], "");
    assert!(!stdout(&listed).contains(&id) && stderr(&listed).contains("1 key of VMs"), "{listed:?}");
    assert!(stdout(&skep(&server, &["keys", "list", "--all"], "")).contains(&id));
    let json: Value = answer(&skep(&server, &["keys", "list", "--json"], ""));
    assert!(json["keys"].as_array().unwrap().iter().any(|key| key["id"] == json!(id)), "{json}");
}
