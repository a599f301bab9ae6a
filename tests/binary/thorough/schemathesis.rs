//! Runs schemathesis, which generates requests from the OpenAPI document, with all its checks against a real server.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::harness::{Skep, temp_dir};

/// Far longer than a run takes beside other tests, so that only a hanging run fails.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Requests of each operation, at least; `schemathesis.toml` asks for as many.
const EXAMPLES: u64 = 100;
/// The share of the operations, in percent, that answer some of them with 2xx.
const REACHED: usize = 95;
/// Operations that are not called at all.
const LEFT_OUT: [&str; 3] = ["exec_duplex", "exec_duplex_in_vm", "restart"];
/// Runs until each operation was tried often enough; the first one is of all of them.
const ROUNDS: usize = 6;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schemathesis")
}

/// The program in the virtual environment that `make test` makes.
fn program() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/schemathesis/bin/schemathesis");
    let path = std::env::var_os("SKEP_SCHEMATHESIS").map_or(path, PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `make schemathesis`, or `make test`", path.display());
    path
}

async fn server() -> Skep {
    let data_dir = temp_dir();
    // All requests come from one address, and what one of them boots shall not outlive the run. A line for each request
    // would hide why a test failed.
    let quiet = "info,skep_server::request_log=warn";
    let options =
        ["--max-vms", "4", "--default-ttl", "10m", "--waitlist-limit", "1000000/s", "--log-level", quiet];
    Skep::start_on(data_dir, &options).await
}

/// How often each operation answered each status.
type Answers = BTreeMap<String, BTreeMap<String, u64>>;

/// A run in a folder of its own.
struct Run {
    status: ExitStatus,
    /// What the program wrote to its standard output and standard error.
    output: String,
    answers: Answers,
}

/// Who calls: an administrator of the account `default`, and one of another account, as `schemathesis.toml` names them.
async fn callers(skep: &Skep) -> Value {
    let name = format!("peer-{:x}", rand::random::<u64>());
    let tenant = skep.tenant(&name).await.key;
    let callers = [("default", &skep.key), ("tenant", &tenant)].map(|(name, key)| {
        let header = json!({"name": "Authorization", "value": format!("Bearer {key}")});
        json!({"name": name, "fixedHeaders": [header]})
    });
    json!({"auth": callers})
}

/// Runs it on a document, as it is served or not.
async fn run(skep: &Skep, document: &Value, options: &[&str]) -> Run {
    let own = TempDir::new().unwrap();
    let at = |name: &str| own.path().join(name);
    let (file, users, report, output) =
        (at("openapi.json"), at("users.json"), at("report.json"), at("output"));
    fs::write(&file, document.to_string()).unwrap();
    fs::write(&users, callers(skep).await.to_string()).unwrap();
    let mut command = Command::new(program());
    command.arg("--config-file").arg(folder().join("schemathesis.toml")).arg("run").arg(&file);
    command.args([
        "--url",
        &skep.url,
        "--no-color",
        "--continue-on-failure",
        // Shrinking a failure of a sequence of requests can take longer than the whole run, which then shows none.
        "--no-shrink",
        "--suppress-health-check",
        "all",
    ]);
    command.args(options).current_dir(own.path());
    let hooks = folder();
    command.env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", hooks).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("SKEP_URL", &skep.url).env("SKEP_API_KEY", &skep.key);
    command.env("SKEP_FUZZ_USERS", &users).env("SKEP_FUZZ_REPORT", &report);
    // The server under test is here, whatever proxy leads elsewhere.
    command.env("NO_PROXY", "*").env("no_proxy", "*");
    // In a file, so that a run that does not end shows how far it came.
    let written = File::create(&output).unwrap();
    command.stdin(Stdio::null()).stdout(written.try_clone().unwrap()).stderr(written).kill_on_drop(true);
    let ended = timeout(PATIENCE, command.status()).await;
    let output = String::from_utf8_lossy(&fs::read(&output).unwrap()).into_owned();
    let status = ended.unwrap_or_else(|_| panic!("schemathesis has not ended in {PATIENCE:?}:\n{output}"));
    let answers = fs::read(&report).map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default();
    Run { status: status.unwrap(), output, answers }
}

/// The names of all operations but those that `schemathesis.toml` leaves out.
fn operations(document: &Value) -> Vec<&str> {
    let items = document["paths"].as_object().unwrap().values();
    let operations = items.flat_map(|item| item.as_object().unwrap().values());
    let names = operations.map(|operation| operation["operationId"].as_str().unwrap());
    names.filter(|name| !LEFT_OUT.contains(name)).collect()
}

/// Runs it on the document as it is served, and again on what it tried too seldom: it gives an operation up where the
/// ids that it draws from earlier answers change meanwhile.
async fn tried_often(skep: &Skep, document: &Value) -> Answers {
    let mut all = Answers::new();
    let mut options: Vec<&str> = Vec::new();
    for _ in 0..ROUNDS {
        let run = run(skep, document, &options).await;
        println!("{}", run.output);
        assert!(run.status.success(), "{}", run.output);
        for (name, answers) in run.answers {
            for (status, count) in answers {
                *all.entry(name.clone()).or_default().entry(status).or_default() += count;
            }
        }
        let seldom =
            |name: &&str| all.get(*name).is_none_or(|answers| answers.values().sum::<u64>() < EXAMPLES);
        let seldom: Vec<&str> = operations(document).into_iter().filter(seldom).collect();
        if seldom.is_empty() {
            break;
        }
        options = vec!["--phases", "fuzzing"];
        options.extend(seldom.into_iter().flat_map(|name| ["--include-operation-id", name]));
    }
    all
}

#[tokio::test]
async fn no_request_made_from_the_document_finds_a_fault() {
    let skep = server().await;
    let document = skep.get("/api/openapi.json").await.ok(200);
    let all = tried_often(&skep, &document).await;
    let names = operations(&document);
    let mut never = Vec::new();
    for name in &names {
        let answers = all.get(*name).unwrap_or_else(|| panic!("{name} was never called"));
        let examples: u64 = answers.values().sum();
        println!("{name}: {examples} examples, {answers:?}");
        assert!(examples >= EXAMPLES, "{name} was tried by {examples} examples only: {answers:?}");
        assert!(!answers.contains_key("500"), "{name}: {answers:?}");
        if !answers.keys().any(|status| status.starts_with('2')) {
            never.push(name);
        }
    }
    println!("{} of {} operations were done, all but {never:?}", names.len() - never.len(), names.len());
    assert!(never.len() * 100 <= names.len() * (100 - REACHED), "these were never done: {never:?}");
}

/// The control: a document that contradicts the server is detected.
#[tokio::test]
async fn a_document_that_is_wrong_is_found_out() {
    let skep = server().await;
    let document = skep.get("/api/openapi.json").await.ok(200);
    let only = ["--include-operation-id", "whoami", "--max-examples", "5", "--phases", "coverage,fuzzing"];
    let right = run(&skep, &document, &only).await;
    assert!(right.status.success(), "{}", right.output);
    let whoami = "/paths/~1api~1whoami/get/responses/200/content/application~1json/schema";
    for (wrong, found) in [
        (json!({"type": "array"}), "Response violates schema"),
        (json!({"type": "object", "required": ["no_such_field"]}), "Response violates schema"),
    ] {
        let mut document = document.clone();
        *document.pointer_mut(whoami).unwrap() = wrong;
        let run = run(&skep, &document, &only).await;
        assert!(!run.status.success() && run.output.contains(found), "{}", run.output);
    }
}
