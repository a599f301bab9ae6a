//! Commands inside VMs.

use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{Skep, eventually, step};

#[tokio::test]
async fn a_command_is_answered_as_it_was_asked_for_and_by_the_shell_that_there_is() {
    let skep = Skep::start().await;
    let pid = skep.boot_one().await;
    step("output, code, input, environment and folder", output_code_input_environment_and_folder(&skep, pid))
        .await;
    step("a stream brings output before the end", a_stream(&skep, pid)).await;
    step("the end of the input", the_end_of_the_input(&skep, pid)).await;
    step("bad requests", bad_requests(&skep, pid)).await;
    step("many commands at once do not mix", many_commands(&skep, pid)).await;
    step("a flood keeps its first and last half", a_flood(&skep, pid)).await;
    // The VM has no shell after it.
    step("a shell that was replaced", a_shell_that_was_replaced(&skep, pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_with_its_time_its_caller_or_its_process_and_the_vm_does_not() {
    let skep = Skep::start().await;
    let pid = skep.boot_one().await;
    step("a timeout ends all that the command started", timeouts(&skep, pid)).await;
    step("a caller that goes away", a_caller_that_goes_away(&skep, pid)).await;
    step("many callers that go away at once", many_callers_that_go_away(&skep, pid)).await;
    step("children that hold the pipes", children_that_hold_the_pipes(&skep, pid)).await;
    step("the end of every process", the_end_of_every_process(&skep, pid)).await;
}

async fn output_code_input_environment_and_folder(skep: &Skep, pid: u64) {
    let answer = skep.exec(pid, "echo out; echo err >&2; exit 7").await;
    assert_eq!((&answer["stdout"], &answer["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&answer["exit_code"], &answer["signal"]), (&json!(7), &Value::Null));
    assert_eq!((&answer["timed_out"], &answer["truncated"]), (&json!(false), &json!(false)));

    let request =
        json!({"command": "cat; pwd; echo $WORD", "stdin": "in ü\n", "cwd": "/usr", "env": {"WORD": "w"}});
    assert_eq!(skep.exec_with(pid, &request).await["stdout"], "in ü\n/usr\nw\n");
    assert_eq!(skep.output(pid, "pwd").await, "/root");

    let killed = skep.exec(pid, "kill -9 $$").await;
    assert_eq!((&killed["exit_code"], &killed["signal"]), (&Value::Null, &json!("SIGKILL")));
    // Also by the route that names the VM in its body.
    let answer = skep.post("/api/exec", &json!({"command": "hostname", "vm": pid})).await.ok(200);
    assert_eq!(answer["stdout"].as_str().unwrap().trim(), skep.output(pid, "hostname").await);
}

async fn timeouts(skep: &Skep, pid: u64) {
    let command = "trap '' TERM; setsid sleep 98765 & (setsid sh -c 'trap \"\" TERM; sleep 98765' &) ; echo begun; sleep 98765";
    let answer = skep.exec_with(pid, &json!({"command": command, "timeout": 8_000})).await;
    assert_eq!(answer["timed_out"], true, "{answer}");
    assert_eq!(answer["exit_code"], Value::Null);
    assert_eq!(answer["stdout"], "begun\n");
    // They are killed before the answer, which does not wait until each of them has ended.
    eventually("the end of the children", async || {
        skep.exec(pid, "pgrep -f 'sleep 9876[5]'").await["stdout"] == ""
    })
    .await;
}

async fn children_that_hold_the_pipes(skep: &Skep, pid: u64) {
    let answer = skep.exec_with(pid, &json!({"command": "sleep 54321 & echo done", "timeout": 30000})).await;
    assert_eq!(answer["stdout"], "done\n");
    assert_eq!(answer["timed_out"], false);
    assert!(!skep.output(pid, "pgrep -f 'sleep 5432[1]'").await.is_empty());
}

async fn a_flood(skep: &Skep, pid: u64) {
    let command = "echo FIRST; head -c 5000000 /dev/zero | tr '\\0' x; echo LAST";
    let answer = skep.exec_with(pid, &json!({"command": command, "timeout": 120_000})).await;
    let stdout = answer["stdout"].as_str().unwrap();
    assert_eq!(answer["truncated"], true);
    assert!(stdout.starts_with("FIRST\nxxx") && stdout.ends_with("xxxLAST\n"));
    assert!(stdout.len() <= 1 << 20, "{}", stdout.len());
    assert_eq!(skep.output(pid, "echo alive").await, "alive");
}

async fn the_end_of_the_input(skep: &Skep, pid: u64) {
    assert_eq!(skep.output(pid, "cat | wc -c").await, "0");
    let long = "y".repeat(3_000_000);
    let answer = skep.exec_with(pid, &json!({"command": "wc -c", "stdin": long})).await;
    assert_eq!(answer["stdout"].as_str().unwrap().trim(), "3000000");
    // A command that never reads its input does not delay the answer.
    let answer = skep.exec_with(pid, &json!({"command": "exit 3", "stdin": long})).await;
    assert_eq!(answer["exit_code"], 3);
}

async fn a_stream(skep: &Skep, pid: u64) {
    let request =
        json!({"command": "echo one; echo two >&2; read line; exit 5", "stdin": "x\n", "stream": true});
    let response =
        skep.request(Method::POST, &format!("/api/swarm/vm/{pid}/exec")).json(&request).send().await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let events: Vec<_> = response.bytes_stream().eventsource().map(Result::unwrap).collect().await;
    let data = |kind: &str| -> String {
        let pieces = events.iter().filter(|event| event.event == kind);
        pieces
            .map(|event| {
                serde_json::from_str::<Value>(&event.data).unwrap()["data"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    assert_eq!((data("stdout").as_str(), data("stderr").as_str()), ("one\n", "two\n"));
    let last = events.last().unwrap();
    assert_eq!(last.event, "exit");
    assert_eq!(serde_json::from_str::<Value>(&last.data).unwrap()["exit_code"], 5);
}

async fn a_caller_that_goes_away(skep: &Skep, pid: u64) {
    for stream in [false, true] {
        let request = json!({"command": "echo begun; sleep 76543", "stream": stream, "timeout": 600_000});
        let call = skep.request(Method::POST, &format!("/api/swarm/vm/{pid}/exec")).json(&request).send();
        let running =
            async || !skep.exec(pid, "pgrep -f 'sleep 7654[3]'").await["stdout"].as_str().unwrap().is_empty();
        let seen = eventually("the command", running);
        if stream {
            let mut response = call.await.unwrap();
            response.chunk().await.unwrap();
            seen.await;
            drop(response);
        } else {
            tokio::select! {
                answer = call => panic!("answered: {answer:?}"),
                () = seen => {}
            }
        }
        eventually("the command's end", async || !running().await).await;
    }
}

async fn many_callers_that_go_away(skep: &Skep, pid: u64) {
    let path = format!("/api/swarm/vm/{pid}/exec");
    let request = json!({"command": "sleep 65432", "timeout": 600_000});
    let call = || tokio::spawn(skep.request(Method::POST, &path).json(&request).send());
    let calls: Vec<_> = (0..30).map(|_| call()).collect();
    eventually("all commands", async || skep.output(pid, "pgrep -x sleep | wc -l").await == "30").await;
    assert!(!calls.iter().any(JoinHandle::is_finished));
    calls.iter().for_each(JoinHandle::abort);
    assert_eq!(skep.output(pid, "echo alive").await, "alive");
    eventually("the end of all commands", async || {
        skep.exec(pid, "pgrep -f 'sleep 6543[2]'").await["stdout"] == ""
    })
    .await;
}

async fn bad_requests(skep: &Skep, pid: u64) {
    let path = format!("/api/swarm/vm/{pid}/exec");
    for (request, named) in [
        (json!({}), "command"),
        (json!({"command": 7}), "command"),
        (json!({"command": "true", "timeout": 0}), "timeout"),
        (json!({"command": "true", "timeout": 3_600_001}), "timeout"),
        (json!({"command": "true", "cmd": "x"}), "cmd"),
        (json!({"command": "true", "env": {"A=B": "x"}}), "env"),
        (json!({"command": "true", "cwd": ""}), "cwd"),
        (json!({"command": "a\u{0}b"}), "command"),
    ] {
        let answer = skep.post(&path, &request).await;
        assert_eq!(answer.status, 400, "{request}: {answer:?}");
        assert!(answer.body["message"].as_str().unwrap().contains(named), "{request}: {answer:?}");
    }
    let relative = skep.post(&path, &json!({"command": "mkdir a; cd a; pwd", "cwd": "."})).await.ok(200);
    assert_eq!(relative["stdout"], "/root/a\n");
    let relative = skep.post(&path, &json!({"command": "pwd", "cwd": "a/../a"})).await.ok(200);
    assert_eq!(relative["stdout"], "/root/a\n");
    let nowhere = skep.post(&path, &json!({"command": "true", "cwd": "/no/such"})).await;
    assert!(nowhere.refused(404, "unknown_path").contains("/no/such"));
    let missing = skep.post(&path, &json!({"command": "no-such-program"})).await.ok(200);
    assert_eq!(missing["exit_code"], 127);
}

async fn many_commands(skep: &Skep, pid: u64) {
    let commands = (0..12)
        .map(|number| async move { (number, skep.output(pid, &format!("sleep 0.2; echo {number}")).await) });
    for (number, output) in futures_util::future::join_all(commands).await {
        assert_eq!(output, number.to_string());
    }
}

/// A command runs in the `/bin/sh` that is there when it starts.
async fn a_shell_that_was_replaced(skep: &Skep, pid: u64) {
    assert_eq!(skep.output(pid, "echo $BASH_VERSION").await, "", "the control: it is no bash yet");
    skep.exec(pid, "ln -sf bash /bin/sh").await;
    assert_ne!(skep.output(pid, "echo $BASH_VERSION").await, "");
    skep.exec(pid, "ln -sf dash /bin/sh").await;
    assert_eq!(skep.output(pid, "echo $BASH_VERSION").await, "");
    // Without any shell the command is refused, and the VM still works.
    skep.exec(pid, "rm /bin/sh").await;
    let request = json!({"command": "true"});
    let gone = skep.post(&format!("/api/swarm/vm/{pid}/exec"), &request).await;
    gone.refused(409, "exec_failed");
}

async fn the_end_of_every_process(skep: &Skep, pid: u64) {
    for signal in ["KILL", "TERM", "STOP", "HUP"] {
        assert_eq!(skep.output(pid, "echo before").await, "before");
        // All but process 1 and the command itself.
        let killed = skep.exec(pid, &format!("trap '' TERM HUP; kill -{signal} -1; echo done")).await;
        assert_eq!(killed["stdout"], "done\n", "{signal}: {killed}");
        assert_eq!(skep.output(pid, "echo after").await, "after", "{signal}");
        let left = skep.output(pid, "ps -A -o stat= | sed -n /Z/p | wc -l").await;
        assert!(left.parse::<u32>().unwrap() <= 2, "{signal}: {left} are not reaped");
    }
}
