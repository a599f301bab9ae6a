//! Roots outside of the data directory: they are accessible, and their siblings are not.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    files::fixture::percent_encoded,
    harness::{Answer, Skep, Tenant, send, step},
};

/// A text that must not occur in any answer.
const CANARY: &str = "canary-7d21c0";
/// The owner of the roots, as whom the server runs.
const USER: u32 = 65_534;

/// Folders outside of every data directory that are all the server's user's own: only rules keep it from one of them.
struct Outside(TempDir);

impl Outside {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("skep-test-").tempdir_in("/var/tmp").unwrap();
        let outside = Self(folder);
        fs::set_permissions(outside.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["root", "acme", "beside"] {
            let path = outside.at(name);
            fs::create_dir(&path).unwrap();
            chown(&path, Some(USER), Some(USER)).unwrap();
        }
        let commit = "git -c user.name=Ada -c user.email=ada@example.com commit -qm";
        outside.as_user(&format!("echo {CANARY} > canary; git init -q .; git add .; {commit} {CANARY}"));
        for root in ["root", "acme"] {
            symlink(outside.at("beside"), outside.at(root).join("link")).unwrap();
        }
        outside
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command beside the roots, as the server's user without its rules.
    fn as_user(&self, command: &str) -> String {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-ec", command]).current_dir(self.at("beside")).env("HOME", "/nonexistent");
        let output = shell.uid(USER).gid(USER).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The entries beside the roots.
    fn beside(&self) -> BTreeSet<PathBuf> {
        fs::read_dir(self.at("beside")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    async fn start(&self, dir: TempDir) -> Skep {
        let root = self.at("root");
        Skep::start_as(dir, |command| _ = command.arg("--root").arg(root)).await
    }
}

fn data_dir() -> TempDir {
    tempfile::Builder::new().prefix("skep-test-").tempdir_in("/var/tmp").unwrap()
}

/// The caller of the account `default`.
fn administrator(skep: &Skep) -> Tenant<'_> {
    Tenant { skep, id: String::new(), key: skep.key.clone() }
}

async fn get(by: &Tenant<'_>, route: &str, path: &Path, query: &str) -> Answer {
    let path = percent_encoded(path.to_str().unwrap());
    send(by.request(Method::GET, &format!("{route}?path={path}{query}"))).await
}

/// Files, grep and git, read and written, all below a root.
async fn is_reached(by: &Tenant<'_>, root: &Path) {
    let work = root.join("work");
    by.post("/api/git/init", &json!({"path": work})).await.ok(201);
    let note = json!({"path": work.join("note"), "content": "a needle\n"});
    by.post("/api/files/write", &note).await.ok(201);
    let read = get(by, "/api/files/read", &work.join("note"), "").await.ok(200);
    assert_eq!(read["content"], "a needle\n");
    let found = get(by, "/api/files/grep", root, "&pattern=needle").await.ok(200);
    assert_eq!(found["matches"].as_array().unwrap().len(), 1, "{found}");
    by.post("/api/git/add", &json!({"path": work})).await.ok(200);
    let person = json!({"name": "Ada", "email": "ada@example.com"});
    let commit = json!({"path": work, "message": "Begin", "author": person});
    let made = by.post("/api/git/commit", &commit).await.ok(201);
    let log = get(by, "/api/git/log", &work, "").await.ok(200);
    assert_eq!(log["commits"][0]["id"], made["commit"], "{log}");
}

/// The same calls about what lies beside it, by its name, by a link and by a detour.
async fn nothing_beside_is_reached(by: &Tenant<'_>, root: &Path, outside: &Outside) {
    let before = outside.beside();
    let mut answers = Vec::new();
    for path in [outside.at("beside"), root.join("link"), root.join("../beside")] {
        for (route, name, query) in [
            ("/api/ls", "", ""),
            ("/api/files/read", "canary", ""),
            ("/api/files/grep", "", "&pattern=canary"),
            ("/api/files/grep", "canary", "&pattern=canary"),
            ("/api/files/search", "", "&pattern=*"),
            ("/api/git/log", "", ""),
            ("/api/git/status", "", ""),
        ] {
            let path = if name.is_empty() { path.clone() } else { path.join(name) };
            answers.push((route, path.clone(), get(by, route, &path, query).await));
        }
        for (route, body) in [
            ("/api/files/write", json!({"path": path.join("new"), "content": "x"})),
            ("/api/mkdir", json!({"path": path.join("new")})),
            ("/api/files/copy", json!({"from": path.join("canary"), "to": root.join("stolen")})),
            ("/api/git/init", json!({"path": path.join("new")})),
            ("/api/git/commit", json!({"path": path, "message": "x", "all": true})),
            (
                "/api/git/worktree",
                json!({"path": root.join("work"), "worktree": path.join("new"), "ref": "HEAD"}),
            ),
        ] {
            answers.push((route, path.clone(), by.post(route, &body).await));
        }
    }
    for (route, path, answer) in answers {
        assert!(answer.status.is_client_error(), "{route} {}: {answer:?}", path.display());
        assert!(!answer.body.to_string().contains(CANARY), "{route} {}: {answer:?}", path.display());
    }
    // A search of the whole root does not follow the link either.
    let found = get(by, "/api/files/grep", root, "&pattern=canary").await.ok(200);
    assert_eq!(found["matches"], json!([]), "{found}");
    assert_eq!(outside.beside(), before);
    // The control: the user alone would reach it.
    assert!(outside.as_user("cat canary; git log").matches(CANARY).count() == 2);
}

async fn a_root_of_the_server(skep: &Skep, outside: &Outside) {
    let root = outside.at("root");
    let caller = administrator(skep);
    is_reached(&caller, &root).await;
    nothing_beside_is_reached(&caller, &root, outside).await;

    let run = async |command: String| -> Value {
        skep.post("/api/exec", &json!({"command": command, "cwd": root})).await.ok(200)
    };
    let own = run("cat work/note; echo more > work/more; git -C work log --format=%s".to_owned()).await;
    assert_eq!((&own["stdout"], &own["exit_code"]), (&json!("a needle\nBegin\n"), &json!(0)), "{own}");
    assert_eq!(fs::read_to_string(root.join("work/more")).unwrap(), "more\n");
    let before = outside.beside();
    for beside in [outside.at("beside").display().to_string(), "link".to_owned(), "../beside".to_owned()] {
        let look =
            format!("cat {beside}/canary; ls {beside}/; grep -r canary {beside}/; git -C {beside} log");
        let leave =
            format!("echo x > {beside}/new; mkdir {beside}/new; ln {beside}/canary stolen; cat stolen");
        let tried = run(format!("{look}; {leave}; mv {beside}/canary stolen; echo end")).await;
        assert_eq!(tried["stdout"], "end\n", "{tried}");
        assert!(!tried.to_string().contains(CANARY), "{tried}");
        assert!(tried["stderr"].as_str().unwrap().contains("Permission denied"), "{tried}");
    }
    assert_eq!(outside.beside(), before);
}

#[tokio::test]
async fn roots_of_the_server_and_of_an_account_are_reached_and_their_siblings_are_not() {
    let outside = Outside::new();
    let skep = outside.start(data_dir()).await;
    let root = outside.at("acme");
    let made = skep.post("/api/accounts", &json!({"name": "acme", "roots": [root]})).await.ok(201);
    let request = json!({"name": "admin", "role": "admin", "account": made["id"]});
    let key = skep.post("/api/keys", &request).await.ok(201)["key"].as_str().unwrap().to_owned();

    // A root that an account was given is reached from the next start on.
    let skep = outside.start(skep.stop()).await;
    step("a root of the server", a_root_of_the_server(&skep, &outside)).await;
    let acme = Tenant { skep: &skep, id: made["id"].as_str().unwrap().to_owned(), key };
    step("a root of an account", a_root_of_an_account(&acme, &root, &outside)).await;
}

async fn a_root_of_an_account(acme: &Tenant<'_>, root: &Path, outside: &Outside) {
    is_reached(acme, root).await;
    nothing_beside_is_reached(acme, root, outside).await;
    // What is one account's is beside the other's.
    let foreign = get(&administrator(acme.skep), "/api/files/read", &root.join("work/note"), "").await;
    assert!(foreign.status.is_client_error(), "{foreign:?}");
    let tried = json!({"command": format!("cat {}", root.join("work/note").display())});
    let tried = acme.skep.post("/api/exec", &tried).await.ok(200);
    assert_eq!(tried["stdout"], "", "{tried}");
}
