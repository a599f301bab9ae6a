//! `skep ticket list`, `batch`, `edit`, `delete`, `history` and `wait`, and labels by command.

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use serde_json::{Value, json};

use super::command::{answer, command, printed, record, refused, run, ticket};
use crate::harness::Skep;

/// The ids of a printed table, in order.
fn ids(table: &str) -> Vec<String> {
    let first = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    table.lines().skip(1).map(first).collect()
}

const PLAN: &str = r#"{"tickets": [
    {"ref": "port", "title": "Port the parser", "dependencies": ["ref:plan"], "labels": ["plan/a"]},
    {"ref": "plan", "title": "Plan the port", "labels": ["plan/a", "gpu"]}
]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_made_from_a_file_and_worked_on_by_its_label() {
    let (server, folder) = (Skep::start().await, tempfile::tempdir().unwrap());
    let skep = |arguments: &[&str]| run(&server, &[&["ticket"], arguments].concat());
    let file = folder.path().join("plan.json");
    std::fs::write(&file, PLAN).unwrap();
    let file = file.to_str().unwrap();
    let made = printed(&skep(&["batch", file]));
    let [port, plan] = ids(&made).try_into().unwrap();
    assert!(made.lines().nth(1).unwrap().contains("port  Port the parser"), "{made}");
    let mut piped = command(&server, &["ticket", "batch", "-", "--json"]);
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(PLAN.replace("plan/a", "plan/b").as_bytes()).unwrap();
    let second = answer(&piped.wait_with_output().unwrap());
    assert_eq!(second["tickets"][0]["blocked_by"][0]["id"], second["refs"]["plan"]);
    for (text, message) in
        [("[1]", "not a batch"), (r#"{"tickets": [{"titel": "a"}]}"#, "`titel`"), ("", "not a batch")]
    {
        let wrong = folder.path().join("wrong.json");
        std::fs::write(&wrong, text).unwrap();
        refused(&skep(&["batch", wrong.to_str().unwrap()]), message);
    }
    refused(&skep(&["batch", "/no/such/file"]), "cannot be read");

    assert_eq!(
        ids(&printed(&skep(&["list", "--label", "gpu", "--label", "plan/a"]))),
        std::slice::from_ref(&plan)
    );
    assert_eq!(ids(&printed(&skep(&["list", "--blocked", "-l", "plan/a"]))), std::slice::from_ref(&port));
    let by_label = printed(&skep(&["create", "third", "--label", "plan/c", "--label", "gpu"]));
    assert_eq!(record(&server, &by_label).await["labels"], json!(["plan/c", "gpu"]));
    // Ids do not contain these letters, so only titles match.
    assert_eq!(ids(&printed(&skep(&["list", "--q", "THIRD"]))), std::slice::from_ref(&by_label));
    let related = ids(&printed(&skep(&["list", "--related-to", &plan])));
    assert_eq!(related, [port.clone(), plan.clone()]);
    let wrong = skep(&["create", "x", "--label", "A b"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    // A worker of one plan takes nothing of the other.
    let worked = skep(&["work", "--drain", "--label", "plan/a", "true"]);
    assert!(worked.status.success(), "{worked:?}");
    for (id, status) in [(&port, "completed"), (&plan, "completed"), (&by_label, "pending")] {
        assert_eq!(record(&server, id).await["status"], status);
    }
    let left = second["refs"]["plan"].as_str().unwrap();
    assert_eq!(record(&server, left).await["status"], "pending");
    let claimed = answer(&skep(&["claim", "--label", "plan/b", "--json"]));
    assert_eq!(claimed["tickets"][0]["id"], left);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_tickets_are_listed_first_and_blocked_ones_alone() {
    let server = Skep::start().await;
    let skep = |arguments: &[&str]| run(&server, &[&["ticket"], arguments].concat());
    let mut all = Vec::new();
    for title in ["a", "b", "c", "d"] {
        all.push(ticket(&server, json!({"title": title})).await);
    }
    let waits = ticket(&server, json!({"title": "e", "dependencies": [all[2]]})).await;
    printed(&skep(&["done", &all[0]]));
    printed(&skep(&["fail", &all[1]]));
    printed(&skep(&["claim", &all[3]]));
    let (a, b, c, d) = (&all[0], &all[1], &all[2], &all[3]);
    assert_eq!(ids(&printed(&skep(&["list"]))), [c, d, &waits, b, a].map(Clone::clone));
    assert_eq!(ids(&printed(&skep(&["list", "--blocked"]))), std::slice::from_ref(&waits));
    assert_eq!(ids(&printed(&skep(&["list", "--ready"]))), std::slice::from_ref(c));
    let counts = printed(&skep(&["summary"]));
    let counts: Vec<Vec<&str>> = counts.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = ["pending 2 (1 ready, 1 blocked, 0 waiting)", "in progress 1", "completed 1", "failed 1"];
    assert_eq!(counts, expected.map(|line| line.split(' ').collect::<Vec<_>>()));
    // Page by page, by what the command itself names.
    let mut seen = Vec::new();
    let mut options = Vec::new();
    loop {
        let mut arguments = vec!["list", "-n", "1"];
        arguments.extend(options.iter().map(String::as_str));
        let page = skep(&arguments);
        seen.extend(ids(&printed(&page)));
        let more = String::from_utf8(page.stderr).unwrap();
        let Some(next) = more.trim_end().strip_prefix("There is more: ") else { break };
        let next: Vec<String> = next.split(' ').map(str::to_owned).collect();
        // The status and the order of the page before count on, unless others are named.
        if next[0] == "--cursor" {
            options.truncate(
                options.iter().position(|word: &String| word == "--cursor").unwrap_or(options.len()),
            );
            options.extend(next);
        } else {
            options = next;
        }
        assert!(seen.len() < 9, "{seen:?}");
    }
    // The last open one leads to those that are finished.
    seen.sort();
    all.push(waits);
    all.sort();
    assert_eq!(seen, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_edited_field_by_field() {
    let server = Skep::start().await;
    let skep = |arguments: &[&str]| run(&server, &[&["ticket"], arguments].concat());
    let first = ticket(&server, json!({"title": "first"})).await;
    let id = ticket(&server, json!({"title": "a", "dependencies": [first], "labels": ["one"]})).await;
    printed(&skep(&[
        "edit",
        &id,
        "--title",
        "b",
        "-d",
        "all of it",
        "-p",
        "high",
        "-l",
        "two",
        "-l",
        "three",
        "-m",
        "team=a",
        "--max-runtime",
        "2h",
        "--not-before",
        "2999-01-01T00:00:00Z",
    ]));
    let edited = record(&server, &id).await;
    let expected = json!({"title": "b", "description": "all of it", "priority": "high", "labels": ["two", "three"],
        "metadata": {"team": "a"}, "max_runtime_ms": 7_200_000, "not_before": "2999-01-01T00:00:00.000Z"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(edited[field], *value, "{field}");
    }
    printed(&skep(&[
        "edit",
        &id,
        "-d",
        "",
        "--no-labels",
        "--no-metadata",
        "--no-not-before",
        "--no-dependencies",
    ]));
    let edited = record(&server, &id).await;
    assert_eq!((&edited["labels"], &edited["ready"]), (&json!([]), &json!(true)), "{edited}");
    assert_eq!((&edited["description"], &edited["metadata"]), (&Value::Null, &Value::Null));
    assert_eq!(skep(&["edit", &id]).status.code(), Some(2), "nothing to change");
    printed(&skep(&["edit", &id, "--after", &first]));
    assert_eq!(record(&server, &id).await["dependencies"], json!([first]));
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_are_deleted_and_their_history_is_read() {
    let server = Skep::start().await;
    let skep = |arguments: &[&str]| run(&server, &[&["ticket"], arguments].concat());
    let first = ticket(&server, json!({"title": "first"})).await;
    let id = ticket(&server, json!({"title": "a", "dependencies": [first]})).await;
    printed(&skep(&["edit", &id, "--title", "b"]));
    refused(&skep(&["delete", &first]), &id);
    printed(&skep(&["delete", &first, "--dependents", "detach"]));
    assert_eq!(record(&server, &id).await["ready"], true);
    printed(&skep(&["claim", &id, "--assignee", "agent-7"]));
    refused(&skep(&["delete", &id]), "agent-7");
    assert_eq!(printed(&skep(&["delete", &id, "--force"])), format!("{id} deleted"));
    let history = printed(&skep(&["history", &id]));
    let lines: Vec<&str> = history.lines().collect();
    assert!(lines[0].contains("created"), "{history}");
    assert!(
        history.contains("title=b") && history.contains("claimed") && history.contains("deleted"),
        "{history}"
    );
    assert!(lines.last().unwrap().contains("agent-7") && history.contains("released"), "{history}");
    assert_eq!(answer(&skep(&["history", &id, "--json"]))["attempts"][0]["assignee"], "agent-7");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_last_ticket_and_its_exit_code_names_failures() {
    let server = Skep::start().await;
    let skep = |arguments: &[&str]| run(&server, &[&["ticket"], arguments].concat());
    let (a, b) = (ticket(&server, json!({"title": "a"})).await, ticket(&server, json!({"title": "b"})).await);
    let waits = |ids: &[&str]| {
        let mut waiting = command(&server, &[&["ticket", "wait"], ids].concat());
        waiting.stdout(Stdio::piped()).spawn().unwrap()
    };
    let timed_out = skep(&["wait", &a, "--timeout", "1ms"]);
    assert_eq!(timed_out.status.code(), Some(124), "{timed_out:?}");
    assert!(String::from_utf8_lossy(&timed_out.stderr).contains(&a), "{timed_out:?}");
    // One that is finished before it begins, and one after it is seen to wait.
    printed(&skep(&["done", &a]));
    let mut waiting = waits(&[&a, &b, &a]);
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), format!("{a} completed: a"));
    assert!(waiting.try_wait().unwrap().is_none(), "`{b}` is not finished");
    printed(&skep(&["fail", &b]));
    assert_eq!(lines.next().unwrap().unwrap(), format!("{b} failed: b"));
    assert_eq!(waiting.wait().unwrap().code(), Some(3));
    // The control: all are completed.
    assert!(skep(&["wait", &a]).status.success());
    let gone = ticket(&server, json!({"title": "c"})).await;
    let mut waiting = command(&server, &["ticket", "wait", &gone, &a]);
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), format!("{a} completed: a"));
    printed(&skep(&["delete", &gone]));
    let ended = waiting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains(&gone), "{ended:?}");
    let unknown = "tkt_01jv0000000000000000000000";
    refused(&skep(&["wait", unknown]), unknown);
}
