//! `skep ticket`, which needs neither root nor VMs.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Output, Stdio},
};

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

use crate::harness::{Skep, eventually, output_of, send};
pub(super) use crate::harness::{answer, command, printed};

pub(super) fn run(server: &Skep, arguments: &[&str]) -> Output {
    output_of(&mut command(server, arguments))
}

#[track_caller]
pub(super) fn refused(output: &Output, expected: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(message.contains(expected) && message.lines().count() == 1, "{expected}: {message}");
}

/// Makes a ticket, and gives its id.
pub(super) async fn ticket(server: &Skep, body: Value) -> String {
    let made = server.post("/api/tickets", &body).await.ok(201);
    made["id"].as_str().unwrap().to_owned()
}

pub(super) async fn record(server: &Skep, id: &str) -> Value {
    server.get(&format!("/api/tickets/{id}")).await.ok(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_made_worked_on_and_finished_by_command() {
    let server = Skep::start().await;
    let skep = |arguments: &[&str]| run(&server, &[&["ticket"], arguments].concat());
    let plan = printed(&skep(&["create", "Plan the port", "-p", "high", "-d", "all of it", "-m", "team=a"]));
    let port = printed(&skep(&["create", "Port the parser", "--after", &plan]));
    let shown = printed(&skep(&["show", &plan]));
    assert!(shown.contains("Plan the port") && shown.contains(r#"{"team":"a"}"#), "{shown}");
    assert!(shown.ends_with("all of it") && shown.contains("ready"), "{shown}");
    let why = printed(&skep(&["why", &port]));
    assert!(why.starts_with("blocked by 1 unfinished ticket; ") && why.contains(&plan), "{why}");
    let graph = printed(&skep(&["graph"]));
    let lines: Vec<&str> = graph.lines().collect();
    assert!(lines[0].starts_with(&port) && lines[1].starts_with(&format!("  {plan} ready")), "{graph}");
    assert_eq!(printed(&skep(&["graph", &port])), graph);
    refused(&skep(&["claim", &port]), &plan);

    let claimed = answer(&skep(&["claim", "--assignee", "agent-7", "--lease", "2m", "--json"]));
    assert_eq!((&claimed["tickets"][0]["id"], &claimed["tickets"][0]["attempt"]), (&json!(plan), &json!(1)));
    let beat = skep(&["heartbeat", &plan, "--attempt", "1", "--progress", "half of it"]);
    assert!(printed(&beat).starts_with("attempt 1 has a lease until "), "{beat:?}");
    assert_eq!(record(&server, &plan).await["progress"], "half of it");
    refused(&skep(&["heartbeat", &plan, "--assignee", "agent-8"]), "agent-7");
    let listed = printed(&skep(&["list", "--status", "in_progress"]));
    assert!(listed.contains(&plan) && listed.contains("agent-7") && !listed.contains(&port), "{listed}");
    assert!(printed(&skep(&["release", &plan, "--attempt", "1"])).contains("ready"));

    printed(&skep(&["claim", &plan, "--assignee", "agent-9"]));
    printed(&skep(&["fail", &plan, "--attempt", "2", "--result", "no idea"]));
    assert_eq!(record(&server, &plan).await["result"], json!({"output": "no idea"}));
    assert!(printed(&skep(&["why", &port])).starts_with("blocked by 1 failed ticket; "));
    assert!(printed(&skep(&["retry", &plan])).contains("ready"));
    refused(&skep(&["retry", &plan]), "is pending");
    printed(&skep(&["done", &plan, "--result", r#"{"steps": 3}"#]));
    assert_eq!(record(&server, &plan).await["result"], json!({"steps": 3}));
    let shown = printed(&skep(&["show", &plan]));
    assert!(shown.contains("completed") && shown.contains(r#"{"steps":3}"#), "{shown}");
    assert!(printed(&skep(&["list", "--ready"])).contains(&port));
    assert_eq!(printed(&skep(&["why", &port])), "ready: it can be claimed now");
    refused(&skep(&["show", "tkt_01jv0000000000000000000000"]), "no ticket");
}

/// A line for the shell that shows what it was given, and ends as the ticket's title says.
const AGENT: &str = r#"
    case "$SKEP_TICKET_TITLE" in
        object) cat ;;
        file) echo aloud; cp "$SKEP_TICKET_FILE" "$SKEP_RESULT_FILE" ;;
        broken) echo [] > "$SKEP_RESULT_FILE" ;;
        text) echo "$SKEP_TICKET_ID $SKEP_TICKET_ATTEMPT $SKEP_TICKET_ASSIGNEE"; echo aside >&2 ;;
        *) echo half; echo "no idea" >&2; exit 3 ;;
    esac"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_a_command_for_each_ticket_and_finishes_with_its_output() {
    let server = Skep::start().await;
    let mut ids = Vec::new();
    for title in ["object", "text", "fails"] {
        ids.push(ticket(&server, json!({"title": title, "description": "ü"})).await);
    }
    // What waits for one of them is worked on too, once it is ready.
    let last = ticket(&server, json!({"title": "file", "dependencies": [ids[0]]})).await;
    let broken = ticket(&server, json!({"title": "broken"})).await;
    let work = |arguments: &[&str]| {
        run(&server, &[&["ticket", "work", "--drain", "--assignee", "agent-7"], arguments].concat())
    };
    let worked = work(&[AGENT]);
    // At least one failed.
    assert_eq!(worked.status.code(), Some(3), "{worked:?}");
    assert!(String::from_utf8_lossy(&worked.stderr).contains("aside"), "{worked:?}");
    let first = record(&server, &ids[0]).await;
    assert_eq!((&first["status"], &first["assignee"]), (&json!("completed"), &json!("agent-7")));
    // The result is the content of standard input: the record.
    assert_eq!((&first["result"]["id"], &first["result"]["description"]), (&json!(ids[0]), &json!("ü")));
    let second = record(&server, &ids[1]).await;
    let printed = format!("{} 1 agent-7\n", ids[1]);
    assert_eq!(second["result"], json!({"exit_code": 0, "stdout_tail": printed, "stderr_tail": "aside\n"}));
    let third = record(&server, &ids[2]).await;
    assert_eq!(third["status"], "failed");
    let expected =
        json!({"exit_code": 3, "signal": null, "stdout_tail": "half\n", "stderr_tail": "no idea\n"});
    assert_eq!(third["result"], expected);
    // The file has the record, and the prerequisite with its result.
    let found = record(&server, &last).await["result"].clone();
    assert_eq!((&found["ticket"]["id"], &found["ticket"]["attempt"]), (&json!(last), &json!(1)));
    assert_eq!(found["prerequisites"], json!([first]));
    let broken = record(&server, &broken).await;
    assert_eq!((&broken["status"], &broken["result"]["error"]), (&json!("failed"), &json!("invalid_result")));
    assert!(broken["result"]["message"].as_str().unwrap().contains("not an object"), "{broken}");
    // The control: with nothing that fails, the exit code is 0.
    ticket(&server, json!({"title": "object"})).await;
    assert_eq!(work(&[AGENT]).status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_whose_command_cannot_be_started_is_given_back() {
    let server = Skep::start().await;

    let id = ticket(&server, json!({"title": "x", "max_attempts": 1})).await;
    // A missing program and a file that is not executable, started directly and by a shell.
    for (attempt, arguments) in [
        (1, &["/no/such/program", "x"][..]),
        (2, &["/bin/sh", "-c", "/no/such/program x"]),
        (3, &["/etc/hostname", "x"]),
        (4, &["/bin/sh", "-c", "/etc/hostname"]),
    ] {
        let wrong = run(&server, &[&["ticket", "work", "-n", "1", "--"], arguments].concat());
        refused_at_last(&wrong, "could not be started");
        let given_back = record(&server, &id).await;
        assert_eq!((&given_back["status"], &given_back["attempt"]), (&json!("pending"), &json!(attempt)));
    }
}

#[track_caller]
fn refused_at_last(output: &Output, expected: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.lines().last().unwrap().contains(expected), "{message}");
}

/// A lease whose end or renewal a test waits for.
const BRIEF: &str = "7s";
/// One that is longer than its test.
const LONG: &str = "5m";

/// A worker whose command says in a file that it runs, and does so until it is ended.
fn lasting(server: &Skep, pids: &Path, lease: &str) -> Child {
    let line = format!("sleep 600 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display());
    let arguments = ["ticket", "work", "--lease", lease, "--json", &line];
    command(server, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the file names this number of processes, and returns them.
async fn processes(pids: &Path, count: usize) -> Vec<Pid> {
    let read = || std::fs::read_to_string(pids).unwrap_or_default();
    eventually("the command", async || read().lines().count() >= count).await;
    read().lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
}

async fn gone(pids: &[Pid]) {
    eventually("the end of the command and its child", async || {
        pids.iter().all(|pid| test_kill_process(*pid).is_err())
    })
    .await;
}

/// The control is in the test itself: the file is there until the next worker starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_a_killed_worker_cannot_be_read_once_the_next_one_starts() {
    let (server, folder) = (Skep::start().await, tempfile::tempdir().unwrap());
    ticket(&server, json!({"title": "a"})).await;
    let (file, pid) = (folder.path().join("file"), folder.path().join("pid"));
    let line =
        format!("echo $SKEP_TICKET_FILE > {}; echo $$ > {}; exec sleep 600", file.display(), pid.display());
    // Workers of other tests, which clear the usual folder away when they start, have another one.
    let worker = |arguments: &[&str]| {
        let mut worker = command(&server, arguments);
        worker.env("XDG_RUNTIME_DIR", folder.path());
        worker
    };
    let mut killed = worker(&["ticket", "work", &line]).stderr(Stdio::null()).spawn().unwrap();
    let running = processes(&pid, 1).await;
    let given = std::fs::read_to_string(file).unwrap();
    let given = Path::new(given.trim_end());
    kill_process(Pid::from_child(&killed), Signal::KILL).unwrap();
    killed.wait().unwrap();
    kill_process(running[0], Signal::KILL).unwrap();
    assert!(
        given.starts_with(folder.path()) && given.exists(),
        "{} is not where a killed worker leaves it",
        given.display()
    );
    assert!(output_of(&mut worker(&["ticket", "work", "--drain", "true"])).status.success());
    assert!(!given.exists() && !given.parent().unwrap().exists(), "{} is left", given.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_gives_its_ticket_back() {
    let (server, folder) = (Skep::start().await, tempfile::tempdir().unwrap());
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let id = ticket(&server, json!({"title": "a", "max_attempts": 1})).await;
        let pids = folder.path().join(id.clone());
        let worker = lasting(&server, &pids, LONG);
        let running = processes(&pids, 2).await;
        assert_eq!(record(&server, &id).await["status"], "in_progress");
        kill_process(Pid::from_child(&worker), signal).unwrap();
        let output = worker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        gone(&running).await;
        let history = server.get(&format!("/api/tickets/{id}/history")).await.ok(200);
        assert_eq!(history["attempts"][0]["outcome"], "released", "not counted: {history}");
        send(server.request(Method::DELETE, &format!("/api/tickets/{id}"))).await.ok(200);
    }
    // Also one that only waits for work.
    let mut idle = command(&server, &["ticket", "work", "true"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(idle.stderr.take().unwrap()).lines();
    assert!(messages.next().unwrap().unwrap().contains("waits for work"));
    kill_process(Pid::from_child(&idle), Signal::TERM).unwrap();
    assert_eq!(idle.wait().unwrap().code(), Some(143));
}

/// Claims whatever there is, and waits for it.
async fn claimed_by(server: &Skep, name: &str) -> Value {
    let order = json!({"assignee": name, "wait_ms": 60_000});
    let claimed = server.post("/api/tickets/claim", &order).await.ok(200);
    claimed["tickets"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_strands_nothing() {
    let (server, folder) = (Skep::start().await, tempfile::tempdir().unwrap());
    let id = ticket(&server, json!({"title": "a"})).await;
    let pids = folder.path().join("pids");
    let mut worker = lasting(&server, &pids, BRIEF);
    let left = processes(&pids, 2).await;
    worker.kill().unwrap();
    worker.wait().unwrap();
    let next = claimed_by(&server, "agent-9").await;
    assert_eq!((&next["id"], &next["attempt"]), (&json!(id), &json!(2)));
    let history = server.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    assert_eq!(history["attempts"][0]["outcome"], "lease_expired");
    // The killed worker cannot end its command.
    left.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_sleeps_through_anothers_claim_writes_nothing_over_it() {
    let (server, folder) = (Skep::start().await, tempfile::tempdir().unwrap());
    let id = ticket(&server, json!({"title": "a"})).await;
    let pids = folder.path().join("pids");
    let mut worker = lasting(&server, &pids, BRIEF);
    let running = processes(&pids, 2).await;
    kill_process(Pid::from_child(&worker), Signal::STOP).unwrap();
    let next = claimed_by(&server, "agent-9").await;
    assert_eq!((&next["id"], &next["attempt"]), (&json!(id), &json!(2)));
    // The result of its command is no longer needed.
    running.iter().for_each(|pid| kill_process(*pid, Signal::TERM).unwrap());
    kill_process(Pid::from_child(&worker), Signal::CONT).unwrap();
    gone(&running).await;
    let done = json!({"status": "completed", "attempt": 2, "result": {"by": 9}});
    send(server.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&done)).await.ok(200);
    // It goes on with the next one, so it is through with that one.
    ticket(&server, json!({"title": "b"})).await;
    let next = processes(&pids, 4).await;
    let after = record(&server, &id).await;
    assert_eq!((&after["assignee"], &after["result"]), (&json!("agent-9"), &json!({"by": 9})));
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    worker.wait().unwrap();
    gone(&next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_beats_and_its_command_ends_when_the_ticket_is_lost() {
    let (server, folder) = (Skep::start().await, tempfile::tempdir().unwrap());
    let id = ticket(&server, json!({"title": "a", "max_attempts": 1})).await;
    let pids = folder.path().join("pids");
    let mut worker = lasting(&server, &pids, BRIEF);
    let running = processes(&pids, 2).await;
    let lease = record(&server, &id).await["lease_expires_at"].clone();
    eventually("a beat", async || record(&server, &id).await["lease_expires_at"] != lease).await;
    // Longer than the lease is, all in all: with the only attempt that it has, it would have failed.
    for _ in 0..3 {
        let before = record(&server, &id).await;
        assert_eq!((&before["status"], &before["attempt"]), (&json!("in_progress"), &json!(1)));
        let lease = before["lease_expires_at"].clone();
        eventually("a beat", async || record(&server, &id).await["lease_expires_at"] != lease).await;
    }
    let path = format!("/api/tickets/{id}");
    let patch = async |body: Value| send(server.request(Method::PATCH, &path).json(&body)).await.ok(200);
    patch(json!({"status": "pending", "retry_after_ms": 600_000})).await;
    gone(&running).await;
    let after = record(&server, &id).await;
    assert_eq!(
        (&after["status"], &after["result"]),
        (&json!("pending"), &json!(null)),
        "nothing is written over it"
    );
    // And it goes on with the next one.
    ticket(&server, json!({"title": "b"})).await;
    let next = processes(&pids, 4).await;
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    worker.wait().unwrap();
    gone(&next).await;
}
