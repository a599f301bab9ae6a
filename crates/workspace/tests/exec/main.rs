//! Commands through the public interface of the crate, with real processes and control groups.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod fixture;

use std::{collections::BTreeMap, time::Duration};

use skep_api::{
    ErrorCode,
    exec::{ExecEvent, ExecExit, ExecOutcome, RunCommand, Stdin},
};
use skep_harness::eventually;
use skep_workspace::{Error, Output, Place, Run, run_by_name};

use fixture::{Fixture, request};

/// More than a machine under full load needs, and much less than the commands here sleep.
const LIMIT: Duration = Duration::from_secs(60);

async fn read_all(mut output: Output) -> (Vec<u8>, Vec<u8>, ExecExit) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some((_, event)) = output.next().await {
        match event {
            ExecEvent::Stdout(data) => stdout.extend_from_slice(&data),
            ExecEvent::Stderr(data) => stderr.extend_from_slice(&data),
            ExecEvent::Exit(exit) => return (stdout, stderr, exit),
        }
    }
    panic!("no exit");
}

fn code_of(result: Result<ExecOutcome, Error>) -> ErrorCode {
    result.expect_err("a refusal").code()
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.split(") ").nth(1).is_some_and(|rest| !rest.starts_with('Z'))
}

#[tokio::test]
async fn a_command_answers_with_its_output_and_code() {
    let fixture = Fixture::new();
    let outcome = fixture.run("echo out; echo err >&2; exit 3").await;
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((outcome.exit_code, outcome.signal), (Some(3), None));
    assert!(!outcome.timed_out && !outcome.truncated);
}

#[tokio::test]
async fn a_signal_is_named() {
    let fixture = Fixture::new();
    let outcome = fixture.run("kill -TERM $$").await;
    assert_eq!((outcome.exit_code, outcome.signal.as_deref()), (None, Some("SIGTERM")));
}

#[tokio::test]
async fn a_command_sees_a_clean_environment_and_its_own() {
    let fixture = Fixture::new();
    let place = fixture.place.with_env(&BTreeMap::from([
        ("OF_VM".to_owned(), "vm".to_owned()),
        ("BOTH".to_owned(), "vm".to_owned()),
    ]));
    let mut command = request("env");
    command.env = BTreeMap::from([("BOTH".to_owned(), "exec".to_owned())]);
    let outcome = command.run(&place).await.expect("it runs");
    let mut lines: Vec<&str> = outcome.stdout.lines().filter(|line| !line.starts_with("PWD=")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["BOTH=exec", "LANG=C.UTF-8", "OF_VM=vm", "PATH=/usr/local/bin:/usr/bin:/bin"]);
}

#[tokio::test]
async fn a_leading_dash_is_no_option() {
    let fixture = Fixture::new();
    let outcome = fixture.run("-x 2>/dev/null; echo $-").await;
    assert!(!outcome.stdout.contains('x'), "{}", outcome.stdout);
}

#[tokio::test]
async fn a_command_starts_in_the_given_directory() {
    let fixture = Fixture::new();
    let here = fixture.dir.path().canonicalize().expect("a path");
    assert_eq!(fixture.run("pwd").await.stdout.trim(), here.to_str().expect("text"));
    let mut elsewhere = request("pwd");
    elsewhere.cwd = Some("/usr".to_owned());
    assert_eq!(fixture.run_command(elsewhere).await.expect("it runs").stdout, "/usr\n");
}

#[tokio::test]
async fn what_no_shell_can_run_is_refused() {
    let fixture = Fixture::new();
    let refused = async |change: fn(&mut RunCommand)| {
        let mut command = request("true");
        change(&mut command);
        code_of(fixture.run_command(command).await)
    };
    assert_eq!(refused(|it| it.cwd = Some("/no/such".into())).await, ErrorCode::UnknownPath);
    assert_eq!(refused(|it| it.cwd = Some("/etc/passwd".into())).await, ErrorCode::NotADirectory);
    assert_eq!(refused(|it| it.cwd = Some("/etc/passwd/x".into())).await, ErrorCode::NotADirectory);
    assert_eq!(refused(|it| it.cwd = Some("tmp".into())).await, ErrorCode::InvalidValue);
    assert_eq!(refused(|it| it.cwd = Some("/t\0mp".into())).await, ErrorCode::InvalidValue);
    assert_eq!(refused(|it| it.command = "a\0b".into()).await, ErrorCode::InvalidValue);
    assert_eq!(refused(|it| it.command = "#".repeat(131_072)).await, ErrorCode::InvalidValue);
    assert_eq!(refused(|it| it.timeout_ms = 0).await, ErrorCode::InvalidValue);
    assert_eq!(refused(|it| drop(it.env.insert("A=B".into(), String::new()))).await, ErrorCode::InvalidValue);
    let inner = Place::new(fixture.dir.path(), fixture.dir.path(), BTreeMap::new(), &fixture.group);
    let mut outside = request("true");
    outside.cwd = Some("/usr".into());
    assert_eq!(code_of(outside.run(&inner).await), ErrorCode::PathOutsideRoots);
}

#[tokio::test]
async fn the_longest_command_runs() {
    let fixture = Fixture::new();
    let outcome = fixture.run(&format!("echo ok #{}", "x".repeat(131_071 - 9))).await;
    assert_eq!(outcome.stdout, "ok\n");
}

#[tokio::test]
async fn the_timeout_ends_all_that_was_started() {
    let fixture = Fixture::new();
    let mut command = request("trap '' TERM; setsid sleep 1000 & echo $!; sleep 1000");
    // Long enough for the first words of the command, also on a machine that stalls for several seconds.
    command.timeout_ms = 10_000;
    // Much less than the programs sleep.
    let outcome = tokio::time::timeout(LIMIT, fixture.run_command(command));
    let outcome = outcome.await.expect("in time").expect("it runs");
    assert!(outcome.timed_out);
    assert_eq!((outcome.exit_code, outcome.signal.as_deref()), (None, Some("SIGKILL")));
    let child = outcome.stdout.trim().to_owned();
    assert!(!child.is_empty());
    eventually("the end of the child", async || !is_alive(&child)).await;
}

#[tokio::test]
async fn it_answers_at_the_shells_end_and_children_live_on() {
    let fixture = Fixture::new();
    let (go, done) = (fixture.dir.path().join("go"), fixture.dir.path().join("done"));
    // The child goes on after the answer only, so an answer that waited for it would come at the time limit.
    let child = "until [ -e go ]; do sleep 0.05; done; echo late; echo late > done; sleep 1000";
    let outcome = fixture.run(&format!("({child}) & echo $!")).await;
    assert_eq!((outcome.exit_code, outcome.timed_out), (Some(0), false));
    std::fs::write(go, "").expect("a file");
    // The pipe stays open; otherwise the first `echo` would have killed the child.
    eventually("the later work of the child", async || done.exists()).await;
    assert!(is_alive(outcome.stdout.trim()));
}

#[tokio::test]
async fn a_flood_is_cut_in_the_middle() {
    let fixture = Fixture::new();
    let outcome = fixture.run("echo begin; head -c 20000000 /dev/zero | tr '\\0' x; echo end").await;
    assert!(outcome.truncated);
    assert_eq!(outcome.stdout.len(), 1 << 20);
    assert!(outcome.stdout.starts_with("begin\nx") && outcome.stdout.ends_with("xend\n"));
}

#[tokio::test]
async fn long_input_arrives_whole() {
    let fixture = Fixture::new();
    let mut command = request("wc -c; echo done");
    command.stdin = Stdin::Text("y".repeat(3_000_000));
    assert_eq!(fixture.run_command(command.clone()).await.expect("it runs").stdout, "3000000\ndone\n");
    // Echoed while it is still being written: neither side may wait for the other.
    command.command = "cat".to_owned();
    assert!(fixture.run_command(command.clone()).await.expect("it runs").truncated);
    command.command = "echo unread".to_owned();
    assert_eq!(fixture.run_command(command).await.expect("it runs").stdout, "unread\n");
}

#[tokio::test]
async fn a_command_without_input_finds_its_end() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run("cat; echo over").await.stdout, "over\n");
}

#[tokio::test]
async fn a_reader_that_keeps_up_gets_all_of_it() {
    let fixture = Fixture::new();
    let (stdout, stderr, exit) =
        read_all(fixture.start("flood", "head -c 30000000 /dev/zero; echo e >&2")).await;
    assert_eq!((stdout.len(), stderr.as_slice()), (30_000_000, b"e\n".as_slice()));
    assert!(!exit.truncated);
}

#[tokio::test]
async fn a_reader_that_left_comes_back_for_the_rest() {
    let fixture = Fixture::new();
    let mut first = fixture.start("kept", "echo one; read line; echo two >&2; echo three");
    // Standard input is empty, so `read` returns at once.
    let Some((0, ExecEvent::Stdout(data))) = first.next().await else { panic!("no output") };
    let seen = data.len() as u64;
    let running = first.running().clone();
    drop(first);
    running.outcome().await;
    let again = fixture.place.commands().find("kept").expect("it is kept");
    let (stdout, stderr, exit) = read_all(again.attach(seen, 0)).await;
    let all = [&data[..], &stdout[..]].concat();
    assert_eq!((all.as_slice(), stderr.as_slice()), (b"one\nthree\n".as_slice(), b"two\n".as_slice()));
    assert_eq!(exit.exit_code, Some(0));
}

#[tokio::test]
async fn a_slow_reader_holds_the_command_until_it_leaves() {
    let fixture = Fixture::new();
    let output = fixture.start("slow", "head -c 10000000 /dev/zero; touch finished");
    let finished = fixture.dir.path().join("finished");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!finished.exists(), "the command ran ahead of its reader");
    let running = output.running().clone();
    drop(output);
    assert_eq!(running.outcome().await.exit_code, Some(0));
    assert!(finished.exists());
}

#[tokio::test]
async fn a_cancelled_command_ends() {
    let fixture = Fixture::new();
    let output = fixture.start("cancelled", "sleep 1000");
    output.running().cancel();
    let (_, _, exit) = read_all(output).await;
    assert_eq!((exit.exit_code, exit.signal.as_deref()), (None, Some("SIGKILL")));
}

#[tokio::test]
async fn commands_are_listed_while_they_run_and_their_groups_vanish() {
    let fixture = Fixture::new();
    let output = fixture.start("listed", "echo $$; sleep 0.2");
    let again = fixture.place.commands().start("listed", &request("true"), &fixture.place);
    assert_eq!(again.expect_err("a refusal").code(), ErrorCode::ExecFailed);
    let (stdout, _, _) = read_all(output).await;
    let pid: u32 = String::from_utf8_lossy(&stdout).trim().parse().expect("a pid");
    let is_left = || fixture.group.join("listed").exists() || fixture.place.commands().owns(pid);
    eventually("the end of all that the command has", async || !is_left()).await;
}

#[tokio::test]
async fn what_ended_can_be_forgotten_and_what_runs_cannot() {
    let fixture = Fixture::new();
    read_all(fixture.start("ended", "echo before")).await;
    let output = fixture.start("running", "sleep 1000");
    let commands = fixture.place.commands();
    assert!(commands.find("ended").is_ok());
    commands.forget_ended();
    assert_eq!(commands.find("ended").expect_err("a refusal").code(), ErrorCode::UnknownExec);
    assert!(commands.find("running").is_ok());
    output.running().cancel();
    assert_eq!(read_all(output).await.2.signal.as_deref(), Some("SIGKILL"));
    // The id is free again, and the new command is not discarded together with the previous one.
    assert_eq!(read_all(fixture.start("ended", "echo after")).await.0, b"after\n");
    assert!(commands.find("ended").is_ok());
}

#[tokio::test]
async fn an_operation_is_found_by_its_name() {
    let fixture = Fixture::new();
    let body = serde_json::to_vec(&request("echo named")).expect("JSON");
    let answer = run_by_name("run-command", &body, &fixture.place.for_call("a-call")).await.expect("it runs");
    let outcome: ExecOutcome = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(outcome.stdout, "named\n");
    assert!(fixture.place.commands().find("a-call").is_ok());
    let unknown = run_by_name("no-such", b"{}", &fixture.place).await;
    assert_eq!(unknown.expect_err("a refusal").code(), ErrorCode::UnknownRoute);
    let malformed = run_by_name("run-command", b"{", &fixture.place).await;
    assert_eq!(malformed.expect_err("a refusal").code(), ErrorCode::MalformedBody);
}

#[tokio::test]
async fn a_command_that_leaves_its_control_group_is_answered_at_its_timeout_all_the_same() {
    let fixture = Fixture::new();
    let parent = fixture.group.parent().expect("a parent").display();
    let mut command = request(&format!("echo $$ > {parent}/cgroup.procs; exec sleep 1000"));
    command.timeout_ms = 300;
    let outcome = tokio::time::timeout(LIMIT, fixture.run_command(command));
    let outcome = outcome.await.expect("in time").expect("it runs");
    assert!(outcome.timed_out && outcome.duration_ms < LIMIT.as_millis() as u64, "{outcome:?}");
}

#[tokio::test]
async fn commands_at_once_keep_their_streams_and_codes_apart() {
    let fixture = Fixture::new();
    let commands = fixture.place.commands();
    let running: Vec<_> = (0..20)
        .map(|number| {
            let command = request(&format!("echo {number} in; sleep 0.05; echo {number} >&2; exit {number}"));
            commands.start(&format!("at-once-{number}"), &command, &fixture.place).expect("it starts")
        })
        .collect();
    for (number, running) in (0..).zip(running) {
        let outcome = running.outcome().await;
        assert_eq!(outcome.stdout, format!("{number} in\n"));
        assert_eq!(outcome.stderr, format!("{number}\n"));
        assert_eq!(outcome.exit_code, Some(number));
    }
}
