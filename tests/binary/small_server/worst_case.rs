//! The most expensive valid request of each operation, and the files, repositories and tickets for it.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::{bodies, requests::Request};
use crate::harness::Skep;

/// The name of the request that is answered with 32 MiB of plain text.
pub(super) const LARGEST_READ: &str = "read 32 MiB of text";
const MIB: usize = 1 << 20;
/// A name that is not UTF-8 takes three times its length.
const LONG_NAME: usize = 255;

pub(super) async fn prepare(skep: &Skep) -> Vec<Request> {
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    let folder = PathBuf::from(&root);
    files(&folder);
    repository(&folder.join("repository"));
    lines(&folder.join("lines"));
    belongs_to_its_owner(&folder);
    let mut all = reads(&root);
    all.extend(searches(&root));
    all.extend(git(&root));
    all.extend(tickets(skep).await);
    all.extend(bodies::requests(skep, &root).await);
    all
}

/// Reads of large files, and one request of each other kind that needs no further files.
pub(super) async fn prepare_some(skep: &Skep) -> Vec<Request> {
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    let folder = PathBuf::from(&root);
    files(&folder);
    belongs_to_its_owner(&folder);
    let mut some = reads(&root);
    some.push(grep_with_context(&root));
    some.extend(bodies::largest(&root));
    some
}

/// Changes the owner of everything below a folder to the owner of the folder, as whom the server runs.
fn belongs_to_its_owner(folder: &Path) {
    let owner = fs::metadata(folder).unwrap();
    let owner = format!("{}:{}", owner.uid(), owner.gid());
    let done = Command::new("chown").args(["-hR", &owner]).arg(folder).status().unwrap();
    assert!(done.success());
}

fn files(root: &Path) {
    fs::write(root.join("escapes"), vec![1; 32 * MIB / 6 - 2]).unwrap();
    fs::write(root.join("text"), vec![b'x'; 32 * MIB - 2]).unwrap();
    fs::write(root.join("bytes"), vec![0xff; 24 * MIB - 3]).unwrap();
    fs::write(root.join("line"), vec![b'x'; 64 * MIB]).unwrap();
    fs::write(root.join("matches"), format!("needle {}\n", "x".repeat(4_000)).repeat(10_000)).unwrap();
    fs::write(root.join("words"), format!("{}\n", "x".repeat(4_000)).repeat(200)).unwrap();
    fs::write(root.join("short-lines"), "\n".repeat(1_000_000)).unwrap();
    File::create(root.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let names = root.join("names");
    fs::create_dir(&names).unwrap();
    for number in 0..2_000 {
        std::os::unix::fs::symlink("\u{1}".repeat(4_000), names.join(long_name(number))).unwrap();
    }
    let rules = root.join("rules");
    fs::create_dir(&rules).unwrap();
    File::create(rules.join(".gitignore")).unwrap().set_len(1 << 30).unwrap();
    for number in 0..10 {
        let below = rules.join(number.to_string());
        fs::create_dir(&below).unwrap();
        let patterns = (0..1_500).map(|pattern| format!("*[a-z]{pattern}*?{number}*\n"));
        fs::write(below.join(".gitignore"), patterns.collect::<String>()).unwrap();
        fs::write(below.join("file"), "").unwrap();
    }
}

fn long_name(number: usize) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;

    let mut name = number.to_string().into_bytes();
    name.resize(LONG_NAME, 0xff);
    std::ffi::OsString::from_vec(name).into()
}

fn run_git(folder: &Path, arguments: &[&str]) -> String {
    let git = Command::new("git").args(arguments).current_dir(folder).env("HOME", folder).output().unwrap();
    assert!(git.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&git.stderr));
    String::from_utf8(git.stdout).unwrap().trim().to_owned()
}

fn new_repository(folder: &Path) {
    fs::create_dir(folder).unwrap();
    run_git(folder, &["init", "-q", "-b", "main"]);
    run_git(folder, &["config", "user.name", "a"]);
    run_git(folder, &["config", "user.email", "a@example.com"]);
}

/// A repository with a changed file of very many lines.
fn lines(folder: &Path) {
    new_repository(folder);
    let lines = "\n".repeat(3 * MIB);
    fs::write(folder.join("lines"), &lines).unwrap();
    run_git(folder, &["add", "."]);
    run_git(folder, &["commit", "-q", "-m", "lines"]);
    fs::write(folder.join("lines"), format!("{lines}x")).unwrap();
}

fn repository(folder: &Path) {
    new_repository(folder);
    let git = |arguments: &[&str]| run_git(folder, arguments);
    fs::write(folder.join("large"), "old line\n".repeat(MIB)).unwrap();
    git(&["add", "."]);
    let message = folder.join(".git/message");
    fs::write(&message, format!("subject\n\n{}", "\u{1}".repeat(MIB))).unwrap();
    for _ in 0..20 {
        git(&["commit", "-q", "--allow-empty", "-F", ".git/message"]);
    }
    fs::write(folder.join("large"), "new line\n".repeat(MIB)).unwrap();
    let head = git(&["rev-parse", "HEAD"]);
    let long = "x".repeat(200);
    let packed: String =
        (0..100_000).map(|number| format!("{head} refs/heads/{number:06}{long}\n")).collect();
    fs::write(folder.join(".git/packed-refs"), packed).unwrap();
    for number in 0..20_000 {
        fs::write(folder.join(format!("{number:06}{}", "u".repeat(240))), "").unwrap();
    }
}

fn reads(root: &str) -> Vec<Request> {
    let read = |name, rest: &str| Request::get(name, format!("/api/files/read?path={root}/{rest}"));
    vec![
        read("read 5 MiB of control characters", "escapes"),
        read(LARGEST_READ, "text").times(24),
        read("read 24 MiB as base64", "bytes&encoding=base64"),
        read("read 16 MiB as hex", "text&encoding=hex&limit=16777214"),
        read("read 24 MiB as latin1", "bytes&encoding=latin1").or(&[413]),
        read("raw download of 64 MiB", "line").raw(),
        Request::get("ls of long names and targets", format!("/api/ls?path={root}/names&limit=1000")),
    ]
}

/// The file has 10,000 long lines, and each of them matches.
fn grep_with_context(root: &str) -> Request {
    let path = format!("/api/files/grep?path={root}/matches&limit=10000&pattern=needle&context=100");
    Request::get("grep with context 100", path)
}

fn searches(root: &str) -> Vec<Request> {
    let search = |name, below: &str, rest: &str| {
        Request::get(name, format!("/api/files/search?path={root}{below}&{rest}"))
    };
    let grep = |name, below: &str, rest: &str| {
        Request::get(name, format!("/api/files/grep?path={root}/{below}&limit=10000&{rest}"))
    };
    vec![
        search("search of all names", "", "pattern=*&limit=10000"),
        search("search beside a .gitignore of 1 GiB", "/rules", "pattern=*&gitignore=true&limit=10000"),
        search("search by a large regex", "/rules", "pattern=%5Cw%7B140%7D&syntax=regex&limit=10000")
            .or(&[422]),
        grep_with_context(root),
        grep("grep of empty lines with context 100", "short-lines", "pattern=%5E&context=100"),
        grep("grep of one line of 64 MiB", "line", "pattern=y").or(&[413, 422]),
        grep("grep by a large regex", "words", "pattern=%5Cw%7B140%7D").or(&[422]),
    ]
}

fn git(root: &str) -> Vec<Request> {
    let path = format!("{root}/repository");
    let git = |name, verb: &str, rest: &str| Request::get(name, format!("/api/git/{verb}?path={path}{rest}"));
    let lines = format!("/api/git/diff?path={root}/lines&context=10000");
    vec![
        git("git status of 20,000 new files", "status", ""),
        Request::get("git diff of 3 million lines in a file", lines),
        git("git diff of 18 MiB", "diff", "&context=10000"),
        git("git log of messages of 1 MiB", "log", "&limit=1000"),
        git("git branch of 100,000", "branch", ""),
        git("git worktrees", "worktree", ""),
    ]
}

async fn tickets(skep: &Skep) -> Vec<Request> {
    let numbers = json!({"list": vec![0; 30 << 10]});
    let one = json!({"title": "t", "description": "\u{1}".repeat(10 << 10), "metadata": numbers});
    let batch = json!({"tickets": vec![one; 8]});
    let made = skep.post("/api/tickets/batch", &batch).await.ok(201);
    let ticket = made["tickets"][0]["id"].as_str().unwrap();
    vec![
        Request::post("tickets in a batch", "/api/tickets/batch", &batch),
        Request::get("tickets of small values", "/api/tickets?limit=1000"),
        Request::get("a ticket's history", format!("/api/tickets/{ticket}/history?limit=1000")),
        Request::get("why a ticket waits", format!("/api/tickets/{ticket}/why")),
        Request::post(
            "claim of tickets of small values",
            "/api/tickets/claim",
            &json!({"assignee": "a", "count": 100}),
        ),
        Request::get("audit", "/api/audit?limit=1000"),
        Request::get("waitlist", "/api/waitlist?limit=1000"),
        Request::get("keys", "/api/keys?limit=1000"),
        Request::get("accounts", "/api/accounts?limit=1000"),
    ]
}
