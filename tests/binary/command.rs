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

use crate::harness::{Skep, answer, binary, command, eventually, output_of};

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
fn terminal() -> (File, File) {
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
async fn a_swarm_is_booted_used_and_ended_by_command() {
    let server = Skep::start().await;
    let booted = answer(&skep(&server, &["boot", "-n", "2", "--json"], ""));
    let pid = booted["vms"][0]["pid"].to_string();
    let listed = stdout(&skep(&server, &["ps"], ""));
    assert!(listed.contains(&pid) && listed.lines().all(|line| line.len() <= 110), "{listed}");
    let listed = stdout(&skep(&server, &["ps", "--wide"], ""));
    assert!(listed.contains(&pid) && listed.contains(booted["vms"][1]["ip"].as_str().unwrap()), "{listed}");

    let run = skep(&server, &["exec", &pid, "--", "sh", "-c", "cat; echo err >&2; exit 9"], "through ü\n");
    assert_eq!(run.status.code(), Some(9), "{run:?}");
    assert_eq!(stdout(&run), "through ü\n");
    assert_eq!(run.stderr, b"err\n");

    assert!(skep(&server, &["end", &pid], "").status.success());
    let gone = skep(&server, &["exec", &pid, "true"], "");
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
    assert!(String::from_utf8_lossy(&gone.stderr).contains(&pid), "{gone:?}");
    assert!(stdout(&skep(&server, &["cleanup"], "")).contains('1'));

    let all = stdout(&skep(&server, &["ps", "-a"], ""));
    let deleted = all.lines().find(|line| line.contains(&pid)).unwrap_or_else(|| panic!("{all}"));
    assert!(deleted.contains("ended") && deleted.ends_with("deleted"), "{all}");
    assert!(all.lines().any(|line| line.ends_with("cleanup")), "{all}");
    let all = answer(&skep(&server, &["ps", "-a", "--json"], ""));
    assert_eq!(all["vms"].as_array().unwrap().len(), 2, "{all}");
    assert!(all["vms"].as_array().unwrap().iter().all(|vm| vm["ended_at"].is_string()), "{all}");
}

#[tokio::test]
async fn keys_are_made_and_revoked_without_a_server() {
    let data_dir = Skep::start().await.stop();
    let dir = data_dir.path().to_str().unwrap().to_owned();
    let keys = |arguments: &[&str]| {
        let output =
            Command::new(binary()).arg("keys").args(arguments).args(["--data-dir", &dir]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let made = keys(&["create", "--name", "later", "--role", "operator", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert!(keys(&["list"]).contains("later"));

    let server = Skep::start_on(data_dir, &[]).await;
    let ask = || {
        crate::harness::send(
            server.bare(reqwest::Method::GET, "/api/whoami").bearer_auth(made["key"].as_str().unwrap()),
        )
    };
    ask().await.ok(200);
    keys(&["revoke", made["id"].as_str().unwrap()]);
    ask().await.refused(403, "token_expired");
}

#[tokio::test]
async fn keys_are_rotated_and_revoked_together_without_a_server() {
    let server = Skep::start().await;
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
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no account `nobody`"), "{unknown:?}");
    answer(&keys(&["create", "--name", "other", "--role", "agent", "--json"]));
    // All but the one that the commands on this machine use.
    assert_eq!(answer(&keys(&["revoke", "--all", "--json"])), json!({"revoked": 1}));
    let server = Skep::start_on(data_dir, &[]).await;
    server.get("/api/whoami").await.ok(200);
    let ask = |key: &Value| {
        let key = key["key"].as_str().unwrap().to_owned();
        crate::harness::send(server.bare(reqwest::Method::GET, "/api/whoami").bearer_auth(key))
    };
    ask(&old).await.ok(200);
    ask(&new).await.ok(200);
    let dir = server.data_dir.path().to_str().unwrap();
    let all = ["keys", "revoke", "--all", "--account", "acme", "--json", "--data-dir", dir];
    assert_eq!(answer(&skep(&server, &all, "")), json!({"revoked": 2}));
    ask(&old).await.refused(403, "token_expired");
    ask(&new).await.refused(403, "token_expired");
    assert!(keys(&["revoke", "--all", "--own"]).status.success());
    server.get("/api/whoami").await.refused(403, "token_expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_made_changed_and_deleted_by_command() {
    let server = Skep::start().await;
    let run = |arguments: &[&str]| skep(&server, &[&["account"], arguments].concat(), "");
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
    let nothing = run(&["set", "acme"]);
    assert!(!nothing.status.success(), "{nothing:?}");
    let refused = run(&["delete", "default", "acme"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot be deleted"), "{refused:?}");
    assert!(stdout(&refused).contains("acme is deleted"), "one that stays keeps no other: {refused:?}");
    let gone = run(&["show", "acme"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no account `acme`"), "{gone:?}");
}

#[tokio::test]
async fn the_doctor_names_the_engine_and_why() {
    let output = Command::new(binary()).args(["doctor", "--json"]).output().unwrap();
    let output_text = stdout(&output);
    assert!(output_text.contains("qemu"), "{output_text}");
    assert!(output_text.contains("landlock") || output_text.contains("Landlock"), "{output_text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_takes_what_the_api_takes_and_every_verb_answers_as_json() {
    let server = Skep::start().await;
    let boot =
        "boot --ttl 10m --metadata team=blue --metadata note=a=b --env WHERE=here --template base --json";
    let booted = answer(&skep(&server, &boot.split(' ').collect::<Vec<_>>(), ""));
    let vm = &booted["vms"][0];
    assert_eq!(vm["metadata"], json!({"team": "blue", "note": "a=b"}));
    assert!(vm["expires_at"].is_string(), "{vm}");
    let pid = vm["pid"].to_string();
    let run = answer(&skep(&server, &["exec", "--json", "-n", &pid, "echo $WHERE"], ""));
    assert_eq!((&run["stdout"], &run["exit_code"]), (&json!("here\n"), &json!(0)));
    for verb in ["ps", "status"] {
        assert_eq!(answer(&skep(&server, &[verb, "--json"], ""))["count"], 1, "{verb}");
    }
    assert_eq!(answer(&skep(&server, &["end", "--json", &pid], ""))["terminated"], true);
    assert_eq!(answer(&skep(&server, &["cleanup", "--json"], ""))["terminated"], 0);
    let doctor = Command::new(binary()).args(["doctor", "--json"]).output().unwrap();
    assert_eq!(answer(&doctor)["healthy"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_of_the_pool_and_of_what_the_machine_holds() {
    let server = Skep::start_on(tempfile::tempdir().unwrap(), &["--pool-size", "1", "--max-vms", "7"]).await;
    eventually("a VM in the pool", async || {
        stdout(&skep(&server, &["status"], "")).contains("base: 1 of 1 ready")
    })
    .await;
    let output_text = stdout(&skep(&server, &["status"], ""));
    assert!(
        output_text.contains("0; at most 7 in memory")
            && output_text.contains("MiB")
            && output_text.contains("engine"),
        "{output_text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_a_refusal_from_a_wrong_command_line_and_help_documents_them() {
    let server = Skep::start().await;
    let pid = server.boot_one().await.to_string();
    // One that is not there keeps none of the others alive.
    let mixed = skep(&server, &["end", "1", &pid], "");
    assert_eq!(mixed.status.code(), Some(1), "{mixed:?}");
    assert_eq!(server.count().await, 0);
    assert_eq!(skep(&server, &["end"], "").status.code(), Some(2));
    assert_eq!(skep(&server, &["boot", "--template", "nothing"], "").status.code(), Some(1));
    for verb in
        ["boot", "ps", "exec", "run", "logs", "attach", "end", "cleanup", "status", "doctor", "bench boot"]
    {
        let arguments: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let help = stdout(&skep(&server, &arguments, ""));
        assert!(help.contains("Exit codes: "), "{verb}: {help}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_command_in_the_vm_too() {
    let server = Skep::start().await;
    let vm = server.boot_one().await;
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
        let mut child = command(&server, &arguments).stdout(Stdio::null()).spawn().unwrap();
        eventually("the command", sleeps).await;
        signal(&child, sent);
        let status = child.wait().unwrap();
        // Its own exit code: what a signal ended has none.
        assert_eq!((status.code(), status.signal()), (Some(code), None), "{sent:?}, json: {json}");
        eventually("the command's end", async || !sleeps().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_command_while_its_output_is_not_read() {
    let server = Skep::start().await;
    let pid = server.boot_one().await.to_string();
    let mut child = command(&server, &["exec", &pid, "yes"]).stdout(Stdio::piped()).spawn().unwrap();
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
    // So many that the boot takes longer than a busy machine needs to see the first one.
    let child =
        command(&server, &["boot", "-n", "8"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The server finishes what it was asked for.
    eventually("a VMM", async || !server.vmms().is_empty()).await;
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(server.count().await, 0, "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_changes_until_its_output_is_closed() {
    let server = Skep::start().await;
    let mut child =
        command(&server, &["ps", "--json", "--watch", "100ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = move || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["count"], 0);
    server.boot_one().await;
    while next()["count"] == 0 {}
    drop(next);
    eventually("its end", async || child.try_wait().unwrap().is_some()).await;
}

/// The runs of a report, by mode.
fn runs(report: &Value) -> Vec<(&str, &Value)> {
    report["runs"].as_array().unwrap().iter().map(|run| (run["mode"].as_str().unwrap(), run)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_measures_boots_out_of_the_pool_and_leaves_none() {
    let server = Skep::start_on(tempfile::tempdir().unwrap(), &["--pool-size", "2"]).await;
    let arguments = "bench boot -n 2 -c 2 --every 10ms --commands 3 --idle 300ms --json";
    let report = answer(&output_of(&mut command(&server, &arguments.split(' ').collect::<Vec<_>>())));
    let modes: Vec<&str> = runs(&report).iter().map(|(mode, _)| *mode).collect();
    assert_eq!(modes, ["sequential", "staggered", "burst"]);
    for (mode, run) in runs(&report) {
        assert_eq!((&run["succeeded"], &run["success_rate"]), (&json!(2), &json!(1.0)), "{mode}: {run}");
        let group = &run["groups"][0];
        assert_eq!((&group["source"], &group["vms"]), (&json!("pool"), &json!(2)), "{mode}: {run}");
        let p50 = |figure: &str| group[figure]["p50"].as_f64().unwrap();
        assert!(p50("tti_ms") > p50("ready_ms") && p50("ready_ms") > 0.0, "{mode}: {run}");
        assert!(p50("proportional_mb") > p50("private_mb") && p50("private_mb") > 1.0, "{mode}: {run}");
        assert!(p50("private_mb") >= p50("anonymous_mb") && p50("anonymous_mb") > 1.0, "{mode}: {run}");
        // A refill alone takes tens of milliseconds of a processor.
        let cpu = run["cost"]["cpu_ms_per_vm"].as_f64().unwrap();
        assert!(cpu > run["cost"]["server_cpu_ms_per_vm"].as_f64().unwrap() && cpu > 20.0, "{mode}: {run}");
    }
    assert!(report["commands"]["elapsed_ms"]["max"].as_f64() > Some(0.0), "{report}");
    let idle = &report["idle"];
    assert_eq!((&idle["running"]["vms"], &idle["parked"]["vms"]), (&json!(2), &json!(2)), "{report}");
    assert_eq!(server.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_reports_cold_boots_separately_and_names_unavailable_measurements() {
    let server = Skep::start().await;
    let arguments = "bench boot -n 1 --mode sequential --commands 0 --idle 0s --json";
    let report = answer(&output_of(&mut command(&server, &arguments.split(' ').collect::<Vec<_>>())));
    assert_eq!(report["runs"][0]["groups"][0]["source"], "cold", "{report}");
    let refused = output_of(&mut command(&server, &["bench", "boot", "--source", "pool"]));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--pool-size"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_whose_boots_fail_says_so_and_ends_with_1() {
    let server = Skep::start_on(tempfile::tempdir().unwrap(), &["--max-vms", "1"]).await;
    let arguments = "bench boot -n 2 -c 2 --mode burst --commands 0 --idle 0s --json";
    let failed = output_of(&mut command(&server, &arguments.split(' ').collect::<Vec<_>>()));
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let report: Value = serde_json::from_slice(&failed.stdout).unwrap();
    let run = &report["runs"][0];
    assert_eq!((&run["succeeded"], &run["success_rate"]), (&json!(0), &json!(0.0)), "{run}");
    assert_eq!(run["failures"].as_array().unwrap().len(), 2, "{run}");
    // Once, however often it was.
    assert_eq!(String::from_utf8_lossy(&failed.stderr).lines().count(), 1, "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_that_is_interrupted_ends_its_vms_and_no_others() {
    let server = Skep::start().await;
    let other = server.boot_one().await;
    let arguments = ["bench", "boot", "-n", "1000", "-c", "2", "--mode", "burst"];
    let mut child = command(&server, &arguments).stdout(Stdio::null()).spawn().unwrap();
    eventually("its VMs", async || server.count().await > 1).await;
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(server.count().await, 1);
    assert_eq!(server.output(other, "echo alive").await, "alive");
}
