//! The command: a client of the API, with people's output, exit codes and streams.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    process::{Child, Command, Output, Stdio},
};

use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};
use skep_harness::process::go_on;

use crate::harness::{Skep, answer, binary, command, eventually, images::with_images, step};

mod completions;
mod file_verbs;
mod files;
mod git;
mod keys;
mod messages;
mod names;
mod progress;
mod uninstall;

fn skep(server: &Skep, arguments: &[&str], input: &str) -> Output {
    let mut child = command(server, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may not read its input at all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A pseudo-terminal: its controlling end, and the end of the program.
pub(crate) fn terminal() -> (File, File) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    // It must not become the controlling terminal of the tests, which its end would end, if they lead a session.
    let no_control = OFlags::NOCTTY.bits().cast_signed();
    let end =
        File::options().read(true).write(true).custom_flags(no_control).open(name.to_str().unwrap()).unwrap();
    (File::from(terminal), end)
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_are_booted_listed_used_watched_and_ended_by_command() {
    let server = Skep::start().await;
    // Each step leaves a server without VMs to the next one.
    step("boot, ps, exec, end, cleanup", async { swarm(&server) }).await;
    step("options of a boot, answers as JSON", async { options_of_a_boot(&server) }).await;
    step("exit codes", exit_codes(&server)).await;
    step("ps --watch", watch(&server)).await;
}

fn swarm(server: &Skep) {
    let booted = answer(&skep(server, &["boot", "-n", "2", "--json"], ""));
    let pid = booted["vms"][0]["pid"].to_string();
    let log = server.log();
    for suggested in ["boot -n 3", "exec PID uname -n", "cleanup"] {
        assert!(log.contains(&format!("\n  skep {suggested}\n")), "{suggested}: {log}");
    }
    let listed = stdout(&skep(server, &["ps"], ""));
    assert!(listed.contains(&pid) && listed.lines().all(|line| line.len() <= 110), "{listed}");
    let listed = stdout(&skep(server, &["ps", "--wide"], ""));
    assert!(listed.contains(&pid) && listed.contains(booted["vms"][1]["ip"].as_str().unwrap()), "{listed}");

    let run = skep(server, &["exec", &pid, "--", "sh", "-c", "cat; echo err >&2; exit 9"], "through ü\n");
    assert_eq!(run.status.code(), Some(9), "{run:?}");
    assert_eq!(stdout(&run), "through ü\n");
    assert_eq!(run.stderr, b"err\n");

    assert!(skep(server, &["end", &pid], "").status.success());
    let gone = skep(server, &["exec", &pid, "true"], "");
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
    assert!(String::from_utf8_lossy(&gone.stderr).contains(&pid), "{gone:?}");
    assert!(stdout(&skep(server, &["cleanup"], "")).contains('1'));

    let all = stdout(&skep(server, &["ps", "-a"], ""));
    let deleted = all.lines().find(|line| line.contains(&pid)).unwrap_or_else(|| panic!("{all}"));
    assert!(deleted.contains("ended") && deleted.ends_with("deleted"), "{all}");
    assert!(all.lines().any(|line| line.ends_with("cleanup")), "{all}");
    let all = answer(&skep(server, &["ps", "-a", "--json"], ""));
    assert_eq!(all["vms"].as_array().unwrap().len(), 2, "{all}");
    assert!(all["vms"].as_array().unwrap().iter().all(|vm| vm["ended_at"].is_string()), "{all}");
}

#[tokio::test]
async fn the_doctor_names_the_engine_and_why() {
    let output = with_images(Command::new(binary()).args(["doctor", "--json"])).output().unwrap();
    let output_text = stdout(&output);
    assert!(output_text.contains("qemu"), "{output_text}");
    assert!(output_text.contains("landlock") || output_text.contains("Landlock"), "{output_text}");
    let answer = answer(&output);
    assert_eq!(answer["healthy"], true);
    let engine = answer["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "engine");
    let detail = engine.unwrap()["detail"].as_str().unwrap();
    let why = ["isolation hardware: ", "isolation emulated: "].map(|isolation| detail.split_once(isolation));
    assert!(why.iter().flatten().any(|(_, reason)| !reason.is_empty()), "{detail}");
}

fn options_of_a_boot(server: &Skep) {
    let boot =
        "boot --ttl 10m --metadata team=blue --metadata note=a=b --env WHERE=here --template base --json";
    let booted = answer(&skep(server, &boot.split(' ').collect::<Vec<_>>(), ""));
    let vm = &booted["vms"][0];
    assert_eq!(vm["metadata"], json!({"team": "blue", "note": "a=b"}));
    assert!(vm["expires_at"].is_string(), "{vm}");
    let pid = vm["pid"].to_string();
    let run = answer(&skep(server, &["exec", "--json", "-n", &pid, "echo $WHERE"], ""));
    assert_eq!((&run["stdout"], &run["exit_code"]), (&json!("here\n"), &json!(0)));
    for verb in ["ps", "status"] {
        assert_eq!(answer(&skep(server, &[verb, "--json"], ""))["count"], 1, "{verb}");
    }
    assert_eq!(answer(&skep(server, &["end", "--json", &pid], ""))["terminated"], true);
    assert_eq!(answer(&skep(server, &["cleanup", "--json"], ""))["terminated"], 0);
}

async fn exit_codes(server: &Skep) {
    let pid = server.boot_one().await.to_string();
    // One that is not there keeps none of the others alive.
    let mixed = skep(server, &["end", "1", &pid], "");
    assert_eq!(mixed.status.code(), Some(1), "{mixed:?}");
    assert_eq!(server.count().await, 0);
    assert_eq!(skep(server, &["end"], "").status.code(), Some(2));
    assert_eq!(skep(server, &["boot", "--template", "nothing"], "").status.code(), Some(1));
    for verb in ["boot", "ps", "exec", "run", "logs", "attach", "end", "cleanup", "status", "doctor"] {
        let arguments: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let help = stdout(&skep(server, &arguments, ""));
        assert!(help.contains("Exit codes: "), "{verb}: {help}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_command_in_the_vm_too_also_while_its_output_is_not_read() {
    let server = Skep::start().await;
    let vm = server.boot_one().await;
    step("signals", signals(&server, vm)).await;
    step("a signal while output is not read", a_signal_while_output_is_not_read(&server, vm)).await;
}

async fn signals(server: &Skep, vm: u64) {
    let pid = vm.to_string();
    let sleeps = async || server.exec(vm, "pgrep -x sleep").await["exit_code"] == 0;
    for (sent, code, json) in [
        (Signal::INT, 130, false),
        (Signal::TERM, 143, false),
        (Signal::HUP, 129, false),
        (Signal::INT, 130, true),
    ] {
        let form: &[&str] = if json { &["--json"] } else { &[] };
        let arguments = [&["exec"], form, &[&pid, "sleep 600"]].concat();
        let mut child = command(server, &arguments).stdout(Stdio::null()).spawn().unwrap();
        eventually("the command", sleeps).await;
        signal(&child, sent);
        let status = child.wait().unwrap();
        // Its own exit code: what a signal ended has none.
        assert_eq!((status.code(), status.signal()), (Some(code), None), "{sent:?}, json: {json}");
        eventually("the command's end", async || !sleeps().await).await;
    }
}

async fn a_signal_while_output_is_not_read(server: &Skep, vm: u64) {
    // More than the pipe holds, and no more work for the guest after that.
    let flood = "head -c 4M /dev/zero; sleep 600";
    let mut child =
        command(server, &["exec", &vm.to_string(), flood]).stdout(Stdio::piped()).spawn().unwrap();
    // Open, and full soon.
    let unread = child.stdout.take().unwrap();
    eventually("the full pipe", async || {
        rustix::io::ioctl_fionread(&unread).unwrap()
            >= rustix::pipe::fcntl_getpipe_size(&unread).unwrap() as u64
    })
    .await;
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_that_is_interrupted_leaves_no_vm() {
    let server = Skep::start().await;
    let child =
        command(&server, &["boot", "-n", "3"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The boot does not end while a VMM of it stands still.
    let mut stopped = Vec::new();
    eventually("a VMM", async || {
        stopped = server.stop_vmms_except(&[]);
        !stopped.is_empty()
    })
    .await;
    // The server finishes what it was asked for.
    signal(&child, Signal::INT);
    stopped.into_iter().for_each(go_on);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(server.count().await, 0, "{output:?}");
}

async fn watch(server: &Skep) {
    let mut child =
        command(server, &["ps", "--json", "--watch", "100ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = move || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["count"], 0);
    server.boot_one().await;
    while next()["count"] == 0 {}
    drop(next);
    eventually("its end", async || child.try_wait().unwrap().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_shows_the_pool_and_the_engine() {
    let server = &Skep::start_on(tempfile::tempdir().unwrap(), &["--pool-size", "1", "--max-vms", "7"]).await;
    eventually("a VM in the pool", async || {
        stdout(&skep(server, &["status"], "")).contains("base: 1 of 1 ready")
    })
    .await;
    let output_text = stdout(&skep(server, &["status"], ""));
    assert!(
        output_text.contains("0; at most 7 in memory")
            && output_text.contains("MiB")
            && output_text.contains("engine"),
        "{output_text}"
    );
    let engine = server.get("/api/swarm/status").await.ok(200)["engine"].clone();
    let text = |field: &str| engine[field].as_str().unwrap();
    let isolation = format!("{}: {}", text("isolation"), text("reason"));
    for part in ["MiB promised", "MiB held", "MiB available", &isolation] {
        assert!(output_text.contains(part), "{part}: {output_text}");
    }
}
