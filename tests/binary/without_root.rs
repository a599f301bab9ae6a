//! A server without root: keeper, server and helpers are processes of one user.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    confinement::landlock_version,
    harness::{
        Skep, binary, eventually, output_of, send, serve, status_field, stdout_on_server as run, temp_dir,
    },
};

/// The lock of an earlier server, which had no keeper.
const EARLIER_LOCK: &str = "process 4711 at 127.0.0.1:4712\n";

/// The keeper's child whose command line begins like this.
fn child(skep: &Skep, verb: &str) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{}/task", skep.pid())).unwrap().flatten();
    // A thread may have ended since.
    let children =
        threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let children = children.collect::<String>();
    let is_it = |pid: &&str| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split('\0').nth(1) == Some(verb)
    };
    children.split_whitespace().find(is_it).map(|pid| pid.parse().unwrap())
}

/// A data directory as an earlier server left it: without the keeper's part, with the lock in the server's.
async fn earlier() -> (TempDir, String) {
    let skep = Skep::start().await;
    skep.post("/api/tickets", &json!({"title": "of an earlier server"})).await.ok(201);
    run(&skep, "echo kept > file").await;
    let key = skep.key.clone();
    let dir = skep.stop();
    fs::remove_dir_all(dir.path().join("keeper")).unwrap();
    fs::write(dir.path().join("server/lock"), EARLIER_LOCK).unwrap();
    (dir, key)
}

#[tokio::test]
async fn a_data_directory_of_an_earlier_server_is_taken_over() {
    let (dir, key) = earlier().await;
    let skep = Skep::start_on(dir, &[]).await;
    assert_eq!(skep.key, key, "the file of the admin key stays as it is");
    assert_eq!(skep.get("/api/tickets").await.ok(200)["tickets"][0]["title"], "of an earlier server");
    assert_eq!(run(&skep, "cat file").await, "kept\n");
    assert!(!skep.log().contains("was created"), "{}", skep.log());
    assert!(!skep.data_dir.path().join("server/lock").exists());
    assert!(skep.data_dir.path().join("keeper/lock").exists());
}

#[tokio::test]
async fn a_data_directory_that_an_earlier_server_uses_is_refused() {
    let (dir, _) = earlier().await;
    let held = File::open(dir.path().join("server/lock")).unwrap();
    flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
    let backup = dir.path().join("backup");
    let copied = Command::new(binary()).arg("backup").arg(&backup).arg("--data-dir").arg(dir.path()).output();
    assert!(copied.unwrap().status.success());
    let mut restore = Command::new(binary());
    restore.arg("restore").arg(&backup).arg("--data-dir").arg(dir.path());
    for mut command in [serve(dir.path(), &[]), restore] {
        let refused = output_of(&mut command);
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{message}");
        assert!(message.contains("is served by process 4711 at 127.0.0.1:4712"), "{message}");
    }
    drop(held);
    Skep::start_on(dir, &[]).await.get("/api/whoami").await.ok(200);
}

#[tokio::test]
async fn no_process_of_the_user_looks_into_keeper_and_server() {
    let skep = Skep::start().await;
    run(&skep, "true").await;
    let [server, helper] = ["server-process", "helper"].map(|verb| child(&skep, verb).unwrap());
    for pid in [skep.pid(), server, helper] {
        // Memory, environment and descriptors of a process that is not dumpable belong to root.
        for file in ["environ", "mem", "fd", "maps"] {
            assert_eq!(fs::metadata(format!("/proc/{pid}/{file}")).unwrap().uid(), 0, "{pid} {file}");
        }
        let look = format!("cat /proc/{pid}/environ; head -c1 /proc/{pid}/mem; ls /proc/{pid}/fd");
        assert_eq!(run(&skep, &look).await, "", "{pid}");
        // The control: it is the same user's process, and not root's.
        let uid = status_field(pid, "Uid");
        assert_eq!(uid.split_whitespace().next().unwrap(), run(&skep, "id -u").await.trim());
        assert!(!uid.starts_with('0'), "{uid}");
    }
    for pid in [server, helper] {
        assert_eq!(status_field(pid, "NoNewPrivs"), "1");
        assert_eq!(status_field(pid, "CapPrm"), "0000000000000000");
    }
}

#[tokio::test]
async fn the_server_is_confined_by_landlock_and_a_filter_of_system_calls() {
    let skep = Skep::start_on(temp_dir(), &["--log-level", "skep=debug"]).await;
    assert_eq!(skep.log().contains("confined by Landlock"), landlock_version() > 0, "{}", skep.log());
    let server = child(&skep, "server-process").unwrap();
    let filters = |pid: u32| status_field(pid, "Seccomp_filters").parse::<u32>().unwrap();
    assert_eq!(filters(server), filters(skep.pid()) + 2);
}

/// Older kernels do not restrict signals between processes of one user.
#[tokio::test]
async fn a_program_signals_neither_keeper_nor_server_where_landlock_restricts_signals() {
    let skep = Skep::start().await;
    assert_eq!(run(&skep, "sleep 600 & kill -0 $! && echo reached").await, "reached\n", "the control");
    for pid in [skep.pid(), child(&skep, "server-process").unwrap()] {
        let reached = run(&skep, &format!("kill -0 {pid} 2>&- && echo reached; true")).await;
        assert!(reached.is_empty() || landlock_version() < 6, "{pid}: {reached}");
    }
}

#[tokio::test]
async fn a_server_that_dies_is_started_again_and_its_programs_end() {
    let skep = Skep::start().await;
    let start = "setsid sh -c 'echo $$ > pid; exec sleep 600' > /dev/null 2>&1 &";
    let pid = run(&skep, &format!("{start} while ! [ -s pid ]; do sleep 0.01; done; cat pid")).await;
    let program = Path::new("/proc").join(pid.trim());
    assert!(program.exists(), "the control: it outlives its command");
    let server = child(&skep, "server-process").unwrap();
    kill_process(Pid::from_raw(server.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the end of the program", async || !program.exists()).await;
    eventually("another server", async || child(&skep, "server-process").is_some_and(|pid| pid != server))
        .await;
    // A connection waits in the backlog until the next server accepts it.
    let request = reqwest::Client::new().get(format!("{}/api/whoami", skep.url));
    send(request.bearer_auth(&skep.key)).await.ok(200);
    assert_eq!(run(&skep, "echo again").await, "again\n");
}

#[tokio::test]
async fn a_root_that_is_named_is_made() {
    let dir = tempfile::Builder::new().prefix("skep-test-").tempdir().unwrap();
    let root = dir.path().join("workspaces/made/for it");
    let skep = Skep::start_on(dir, &["--root", root.to_str().unwrap()]).await;
    assert_eq!(run(&skep, "pwd").await.trim(), root.canonicalize().unwrap().to_str().unwrap());
}
