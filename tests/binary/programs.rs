//! Commands on the server, by a server with its keeper: their environment, permissions and limits.
//!
//! These servers run no VMs, so that they start at once.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Skep, eventually, step, try_send};

/// A text that must not occur in the output of any command.
const CANARY: &str = "canary-5ec4e7";

async fn start() -> Skep {
    // Not below /tmp: there, programs would have none of their own.
    let dir = tempfile::Builder::new().prefix("skep-test-").tempdir_in("/var/tmp").unwrap();
    Skep::start_as(dir, |command| {
        command.env("PATH", "/nonexistent").env("SKEP_INTERNAL_TEST", CANARY);
    })
    .await
}

async fn exec(skep: &Skep, body: &Value) -> Value {
    skep.post("/api/exec", body).await.ok(200)
}

async fn run(skep: &Skep, command: &str) -> Value {
    exec(skep, &json!({"command": command})).await
}

fn root(skep: &Skep) -> PathBuf {
    skep.data_dir.path().join("workspaces/default").canonicalize().unwrap()
}

/// The process of a keeper's child whose command line begins like this.
pub(crate) fn child(keeper: u32, name: &str) -> u32 {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let is_it =
        |pid: &&str| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(name);
    children.split_whitespace().find(is_it).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_program_reaches_what_is_its_own_and_ends_with_its_time() {
    let skep = start().await;
    step("a clean environment, and what a user takes for granted", environment(&skep)).await;
    step("neither the server's data nor its processes", reach(&skep)).await;
    step("no System V IPC of processes outside", system_v_ipc(&skep)).await;
    step("a control group of its own", control_groups(&skep)).await;
    step("detached processes", detached_processes(&skep)).await;
    step("a helper that dies is started again", a_helper_that_dies(&skep)).await;
    step("a fork bomb stays within its limits", a_fork_bomb(&skep)).await;
}

async fn environment(skep: &Skep) {
    // No file of another program on the machine has the name of the data directory.
    let name = skep.data_dir.path().file_name().unwrap();
    let [tmp, shm] = ["/tmp", "/dev/shm"].map(|folder| Path::new(folder).join(name).with_extension("file"));
    let (a, b) = (tmp.display(), shm.display());
    let command = format!("env; echo; pwd; id -un; echo a > {a} && cat {a}; echo b > {b}; ls /proc/$$/fd");
    let outcome = run(skep, &command).await;
    assert_eq!(outcome["exit_code"], 0, "{outcome}");
    let text = outcome["stdout"].as_str().unwrap();
    assert!(!text.contains("SKEP") && !text.contains(CANARY), "{text}");
    let (environment, rest) = text.split_once("\n\n").unwrap();
    for line in ["USER=skep", "LOGNAME=skep", "SHELL=/bin/sh", &format!("HOME={}", root(skep).display())] {
        assert!(environment.lines().any(|found| found == line), "{line}: {environment}");
    }
    assert!(environment.contains("PATH=/usr/local/sbin:"), "{environment}");
    // The program has only the descriptors of its input and output.
    assert_eq!(rest, format!("{}\nskep\na\n0\n1\n2\n", root(skep).display()));
    let helper = child(skep.pid(), "helper");
    let of_helper = fs::read_dir(format!("/proc/{helper}/fd")).unwrap().count();
    assert!(of_helper > 3, "the control: the helper, which starts the program, has {of_helper}");
    // Nothing of it is on the machine.
    assert!(!tmp.exists() && !shm.exists());
}

async fn reach(skep: &Skep) {
    let data = skep.data_dir.path().canonicalize().unwrap();
    fs::write(data.join("server/canary"), CANARY).unwrap();
    std::os::unix::fs::chown(data.join("server/canary"), Some(999), None).unwrap();
    fs::create_dir(data.join("workspaces/other")).unwrap();
    fs::write(data.join("workspaces/other/canary"), CANARY).unwrap();
    // Of the server's user, as all files of accounts are; the mode alone would let them be read.
    for file in ["server/canary", "workspaces/other/canary"] {
        fs::set_permissions(data.join(file), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    }
    run(skep, "true").await;
    let (keeper, server) = (skep.pid(), child(skep.pid(), "server-process"));
    for file in ["server/canary", "server/skep.db", "admin.key", "workspaces/other/canary", "keeper/lock"] {
        let path = data.join(file);
        assert!(fs::read(&path).is_ok(), "{file} is not there to be found");
        let tried =
            run(skep, &format!("cat {0}; echo x >> {0}; ln {0} stolen; cat stolen", path.display())).await;
        assert_eq!(tried["stdout"], "", "{file}: {tried}");
    }
    for pid in [keeper, server, 1] {
        let look = format!(
            "cat /proc/{pid}/environ; head -c1 /proc/{pid}/mem; ls /proc/{pid}/fd; readlink /proc/{pid}/exe"
        );
        assert_eq!(run(skep, &look).await["stdout"], "", "{pid}");
    }
    let killed = run(skep, &format!("kill -9 {server} {keeper}; kill -9 1; kill -9 -1; true")).await;
    assert!(killed["exit_code"] == 0 || killed["signal"] == "SIGKILL", "{killed}");
    assert_eq!(child(skep.pid(), "server-process"), server);
    let groups = "for f in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do echo 0 > $f; done; ls /run/skep; ls /sys/fs/cgroup";
    assert_eq!(run(skep, groups).await["stdout"], "");
    for forbidden in ["mount -t tmpfs x /mnt", "unshare -m true", "chroot / true", "nsenter -t 1 -m true"] {
        assert_ne!(run(skep, forbidden).await["exit_code"], 0, "{forbidden}");
    }
    // The control: it is the same user that runs the server, and it can access its own files.
    assert_eq!(run(skep, "echo own > own; cat own").await["stdout"], "own\n");
}

/// Runs a program of util-linux as the server's user outside of the helper, and returns what it prints.
fn outside(skep: &Skep, program: &[&str]) -> Option<String> {
    let server = fs::metadata(format!("/proc/{}", child(skep.pid(), "server-process"))).unwrap();
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={}", server.uid()), format!("--regid={}", server.gid())]);
    let output = command.arg("--clear-groups").args(program).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// A segment of shared memory, a queue and a semaphore of System V, which are removed on drop.
struct SystemV<'a> {
    skep: &'a Skep,
    ids: String,
}

const REMOVE_IPC: &str = "ipcrm --shmem-id $1 && ipcrm --queue-id $2 && ipcrm --semaphore-id $3";

impl<'a> SystemV<'a> {
    fn new(skep: &'a Skep) -> Self {
        let make = "for kind in '--shmem 1' --queue '--semaphore 1'; do ipcmk $kind; done";
        let made = outside(skep, &["sh", "-c", make]).unwrap();
        let ids: Vec<&str> = made.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(ids.len(), 3, "{made}");
        Self { skep, ids: ids.join(" ") }
    }

    /// Removes the objects, and returns whether all of them existed.
    fn remove(&self) -> bool {
        outside(self.skep, &["sh", "-c", &format!("set -- {}; {REMOVE_IPC}", self.ids)]).is_some()
    }
}

impl Drop for SystemV<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

async fn system_v_ipc(skep: &Skep) {
    let objects = SystemV::new(skep);
    let tried = run(skep, &format!("set -- {}; {}", objects.ids, REMOVE_IPC.replace("&&", ";"))).await;
    assert_eq!(tried["stderr"].as_str().unwrap().matches("invalid id").count(), 3, "{tried}");
    // The control: a process of the same user outside removes them.
    assert!(objects.remove());
}

/// The control groups of the processes with this variable in their environment, a line for each hierarchy.
fn groups_of(variable: &str) -> BTreeSet<String> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let has_variable = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    processes
        .filter(has_variable)
        .filter_map(|process| fs::read_to_string(process.join("cgroup")).ok())
        .collect()
}

async fn control_groups(skep: &Skep) {
    let mut groups = Vec::new();
    let mut commands = Vec::new();
    for number in 0..2 {
        let (name, value) = ("COMMAND_OF_TEST", format!("{}-{number}", skep.pid()));
        let variable = format!("{name}={value}");
        let command = "while ! test -e both; do sleep 0.05; done";
        let body = json!({"command": command, "env": {name: value}});
        commands.push(tokio::spawn(try_send(skep.request(Method::POST, "/api/exec").json(&body))));
        eventually("the command", async || !groups_of(&variable).is_empty()).await;
        groups.push(groups_of(&variable));
    }
    assert!(groups.iter().all(|groups| groups.len() == 1) && groups[0] != groups[1], "{groups:?}");
    fs::write(root(skep).join("both"), "").unwrap();
    for command in commands {
        assert_eq!(command.await.unwrap().unwrap().ok(200)["exit_code"], 0);
    }
}

async fn detached_processes(skep: &Skep) {
    let daemon = "(setsid flock lock sh -c 'touch begun; while ! test -e go; do sleep 0.05; done; touch gone' \
                  > /dev/null 2>&1 &)";
    let is_alive = |skep: &Skep| {
        let lock = File::open(root(skep).join("lock")).unwrap();
        matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
    };
    let body = json!({"command": format!("{daemon}; sleep 600"), "timeout": 1000});
    // On a busy machine, the time may be up before the daemon begins.
    eventually("a daemon that has begun", async || {
        let outcome = exec(skep, &body).await;
        assert_eq!((&outcome["timed_out"], &outcome["exit_code"]), (&json!(true), &Value::Null));
        root(skep).join("begun").exists()
    })
    .await;
    eventually("the daemon's end", async || !is_alive(skep)).await;

    assert_eq!(run(skep, daemon).await["exit_code"], 0);
    eventually("the daemon", async || is_alive(skep)).await;
    // One that ended with its shell would do nothing any more.
    fs::write(root(skep).join("go"), "").unwrap();
    eventually("what the daemon does later", async || root(skep).join("gone").exists()).await;
}

async fn a_fork_bomb(skep: &Skep) {
    // The shell forks once, before the bomb: dash forks for each part of a pipeline, and a fork that fails ends it.
    let bomb = exec(skep, &json!({"command": "b() { b | b & }; (b) & exec sleep 60", "timeout": 3000})).await;
    assert_eq!(bomb["timed_out"], true, "{bomb}");
    // The server is not affected, and commands run again once the processes are reaped.
    skep.health().await;
    // Until then, its shell cannot be started, which is refused, or cannot start the program.
    eventually("a command after it", async || {
        let answer = skep.post("/api/exec", &json!({"command": "/usr/bin/true"})).await;
        answer.status == 200 && answer.body["exit_code"] == 0
    })
    .await;
    assert_eq!(run(skep, "echo alive").await["stdout"], "alive\n");
}

async fn a_helper_that_dies(skep: &Skep) {
    run(skep, "true").await;
    let helper = child(skep.pid(), "helper");
    let running = skep
        .request(Method::POST, "/api/exec")
        .json(&json!({"command": "echo > on; sleep 600", "timeout": 900_000}));
    let running = tokio::spawn(try_send(running));
    eventually("the command", async || root(skep).join("on").exists()).await;
    let pid = rustix::process::Pid::from_raw(helper.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    running.await.unwrap().unwrap().refused(503, "exec_unavailable");
    assert_eq!(run(skep, "echo again").await["stdout"], "again\n");
    assert_ne!(child(skep.pid(), "helper"), helper);
}
