//! Clients that third-party generators make from the OpenAPI document: they compile, and call operations of a server.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::json;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::harness::Skep;

/// Far more than any of the programs takes.
const PATIENCE: Duration = Duration::from_secs(600);
/// The operations that each client calls, by their names.
const CALLS: usize = 15;

/// The programs that generate clients and what they need at run time, as `make test` installs them.
fn installed() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients");
    let path = env::var_os("SKEP_CLIENTS").map_or(path, PathBuf::from);
    assert!(
        path.join("ready").is_file(),
        "{} is not set up: run `make clients`, or `make test`",
        path.display()
    );
    path
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(path)
}

/// A server, its document in a file, and a folder for the client.
struct Fixture {
    skep: Skep,
    folder: TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let skep = Skep::start().await;
        let document = skep.get("/api/openapi.json").await.ok(200);
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
        Self { skep, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a program prints on standard output; one that fails ends the test.
    async fn run(&self, program: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        command.env("SKEP_URL", &self.skep.url).env("SKEP_API_KEY", &self.skep.key);
        command.env("SKEP_TEST_FOLDER", self.skep.data_dir.path().join("workspaces/default/generated"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "*").env("no_proxy", "*");
        // The generator of the Python client formats it by a program beside itself.
        let mut path = vec![program.parent().unwrap().to_owned()];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap()));
        command.env("PATH", env::join_paths(path).unwrap());
        let output = timeout(PATIENCE, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("{} has not ended", program.display())).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: {}\n{stdout}\n{stderr}", program.display(), output.status);
        stdout
    }

    /// Each operation that a client called has a line, and nothing of its VM is left.
    async fn ended_after(&self, calls: &str) {
        assert_eq!(calls.lines().count(), CALLS, "{calls}");
        assert_eq!(self.skep.get("/api/swarm/status").await.ok(200)["vms"], json!([]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_made_from_the_document_works() {
    let workshop = Fixture::start().await;
    let programs = installed().join("python/bin");
    let options =
        ["--path", "openapi.json", "--meta", "none", "--output-path", "skep_client", "--fail-on-warning"];
    let arguments = [&["generate"], &options[..]].concat();
    workshop.run(&programs.join("openapi-python-client"), &arguments).await;
    let python = programs.join("python");
    workshop.run(&python, &["-W", "error", "-m", "compileall", "-q", "skep_client"]).await;
    let calls = workshop.run(&python, &[source("python/use.py").to_str().unwrap(), "."]).await;
    workshop.ended_after(&calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typescript_client_made_from_the_document_works() {
    let workshop = Fixture::start().await;
    symlink(installed().join("typescript/node_modules"), workshop.at("node_modules")).unwrap();
    for name in ["package.json", "tsconfig.json", "use.ts"] {
        fs::copy(source("typescript").join(name), workshop.at(name)).unwrap();
    }
    let programs = workshop.at("node_modules/.bin");
    workshop.run(&programs.join("openapi-typescript"), &["openapi.json", "-o", "schema.d.ts"]).await;
    workshop.run(&programs.join("tsc"), &[]).await;
    let calls = workshop.run(Path::new("/usr/bin/env"), &["node", "use.js"]).await;
    workshop.ended_after(&calls).await;
}
