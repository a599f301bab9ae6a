//! Which folders may be roots of accounts, in every spelling, and roots that were replaced or stored by earlier
//! versions.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use reqwest::Method;
use serde_json::{Value, json};
use skep_server::{RootError, RootRules};
use skep_store::AccountRoot;

use crate::harness::{Skep, refused};

/// Creates an account. Returns a key of it with the role agent.
async fn tenant(skep: &Skep, name: &str, root: &Path) -> String {
    let made = skep.post("/api/accounts", &json!({"name": name, "roots": [root]}).to_string()).await;
    assert_eq!(made.status(), 201, "{name}");
    let account: Value = made.json().await.unwrap();
    let body = json!({"name": name, "role": "agent", "account": account["id"]}).to_string();
    let made: Value = skep.post("/api/keys", &body).await.json().await.unwrap();
    made["key"].as_str().unwrap().to_owned()
}

async fn read(skep: &Skep, key: &str, path: &Path) -> reqwest::Response {
    let path = format!("/api/files/read?path={}", path.display());
    skep.bare(Method::GET, &path).bearer_auth(key).send().await.unwrap()
}

#[tokio::test]
async fn a_root_that_reaches_the_store_is_refused_however_it_is_spelled() {
    let skep = Skep::start().await;
    let data = skep.data.path().canonicalize().unwrap();
    let beside = tempfile::tempdir().unwrap();
    symlink(&data, beside.path().join("link")).unwrap();
    let below_proc = PathBuf::from(format!("/proc/self/root{}", data.display()));
    for root in
        [data.clone(), below_proc, beside.path().join("link"), data.join("workspaces"), "/proc".into()]
    {
        let body = json!({"name": "acme", "roots": [root]}).to_string();
        let found = refused(skep.post("/api/accounts", &body).await).await;
        assert_eq!(
            (found.status, found.code.as_str()),
            (400, "invalid_value"),
            "{root:?}: {}",
            found.message
        );
        assert!(found.message.contains(root.to_str().unwrap()), "{}", found.message);
    }
    // The control: a folder beside it is accepted, and stored with the link resolved.
    fs::create_dir(beside.path().join("real")).unwrap();
    symlink("real", beside.path().join("other")).unwrap();
    let body = json!({"name": "acme", "roots": [beside.path().join("other")]}).to_string();
    let made: Value = skep.post("/api/accounts", &body).await.json().await.unwrap();
    assert_eq!(made["roots"], json!([beside.path().canonicalize().unwrap().join("real")]));
}

#[tokio::test]
async fn roots_of_accounts_that_would_lie_in_each_other_are_refused() {
    let skep = Skep::start().await;
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("acme/sub")).unwrap();
    symlink("acme/sub", folder.path().join("link")).unwrap();
    tenant(&skep, "acme", &folder.path().join("acme")).await;
    for root in ["acme", "acme/sub", "acme/new", "link", ""] {
        let root = folder.path().join(root);
        let body = json!({"name": "other", "roots": [root]}).to_string();
        let found = refused(skep.post("/api/accounts", &body).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, "invalid_value"), "{root:?}");
        assert!(found.message.contains("`acme`"), "{}", found.message);
    }
    // Roots of the same account may be nested, and roots of two accounts may be siblings.
    tenant(&skep, "other", &folder.path().join("other")).await;
    let accounts: Value = skep.get("/api/accounts").await.json().await.unwrap();
    let acme =
        accounts["accounts"].as_array().unwrap().iter().find(|account| account["name"] == "acme").unwrap();
    let path = format!("/api/accounts/{}", acme["id"].as_str().unwrap());
    for (root, status) in [("acme/sub", 200), ("other/sub", 400)] {
        let roots = [folder.path().join("acme"), folder.path().join(root)];
        let changed = skep.request(Method::PATCH, &path).json(&json!({"roots": roots})).send().await.unwrap();
        assert_eq!(changed.status(), status, "{root}");
    }
}

#[tokio::test]
async fn a_root_that_was_replaced_by_a_link_is_not_used() {
    let skep = Skep::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (outer, secret) = (folder.path().join("outer"), folder.path().join("secret"));
    for made in [&outer.join("inner"), &secret] {
        fs::create_dir_all(made).unwrap();
        fs::write(made.join("file"), "inside").unwrap();
    }
    fs::write(secret.join("file"), "canary").unwrap();
    let inner = outer.canonicalize().unwrap().join("inner");
    let key = tenant(&skep, "acme", &inner).await;
    assert_eq!(read(&skep, &key, &inner.join("file")).await.status(), 200);
    // What a caller of another account with an enclosing root could do: a move, and a checkout of a link.
    fs::rename(&inner, outer.join("moved")).unwrap();
    symlink(&secret, &inner).unwrap();
    assert_eq!(
        fs::read_to_string(inner.join("file")).unwrap(),
        "canary",
        "the control: the path leads there"
    );
    let found = refused(read(&skep, &key, &inner.join("file")).await).await;
    assert!(found.message.contains("symbolic link"), "{}", found.message);
    let init = json!({"path": inner.join("repository")}).to_string();
    let request = skep.bare(Method::POST, "/api/git/init").bearer_auth(&key);
    let found = request.header("content-type", "application/json").body(init).send().await.unwrap();
    let found = refused(found).await;
    assert!(found.message.contains("symbolic link"), "git, behind the helper's fence: {}", found.message);
    assert!(!secret.join("repository").exists());
}

#[tokio::test]
async fn a_root_that_an_earlier_version_stored_does_not_reach_the_store() {
    let skep = Skep::start().await;
    let key = tenant(&skep, "acme", &skep.data.path().join("workspaces/acme-files")).await;
    let data = skep.data.path().canonicalize().unwrap();
    fs::write(data.join("canary"), "canary").unwrap();
    let database = rusqlite::Connection::open(data.join("skep.db")).unwrap();
    let roots = json!([data]).to_string();
    assert_eq!(database.execute("UPDATE accounts SET roots = ?1 WHERE name = 'acme'", [roots]).unwrap(), 1);
    drop(database);
    // A change through the API, so that the server reloads the account.
    let accounts: Value = skep.get("/api/accounts").await.json().await.unwrap();
    let acme =
        accounts["accounts"].as_array().unwrap().iter().find(|account| account["name"] == "acme").unwrap();
    assert_eq!(acme["roots"], json!([data]));
    let path = format!("/api/accounts/{}", acme["id"].as_str().unwrap());
    let changed = skep.request(Method::PATCH, &path).json(&json!({"max_vms": 1})).send().await.unwrap();
    assert_eq!(changed.status(), 200);
    let found = refused(read(&skep, &key, &data.join("canary")).await).await;
    assert_eq!((found.status, found.code.as_str()), (403, "path_outside_roots"));
    assert!(found.message.contains("server's own data"), "{}", found.message);
}

/// A data directory with a store, and folders beside it.
struct Fixture {
    folder: tempfile::TempDir,
    rules: RootRules,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data/server", "data/workspaces/default", "srv/acme/sub", "server-files"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("data/server/skep.db"), "canary").unwrap();
        let rules = RootRules::new(&folder.path().join("data")).unwrap();
        Self { folder, rules }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn check(&self, path: &Path) -> Result<PathBuf, RootError> {
        let acme = AccountRoot { account: "acme".to_owned(), path: self.at("srv/acme") };
        self.rules.check(path, &[acme])
    }
}

#[test]
fn no_spelling_of_a_root_reaches_the_store() {
    let fixture = Fixture::new();
    let server = fixture.at("data/server");
    symlink(fixture.at("data"), fixture.at("link")).unwrap();
    symlink(&server, fixture.at("srv/into")).unwrap();
    let below_proc = PathBuf::from(format!("/proc/self/root{}", server.display()));
    for path in [
        PathBuf::from("/"),
        fixture.folder.path().to_owned(),
        fixture.at("data"),
        fixture.at("data/new"),
        fixture.at("data/workspaces"),
        server.clone(),
        server.join("new"),
        fixture.at("link"),
        fixture.at("link/server"),
        fixture.at("srv/into"),
        fixture.at("srv/into/new"),
        fixture.at("data/workspaces/../server"),
        below_proc.clone(),
    ] {
        let refused = fixture.check(&path);
        assert!(matches!(refused, Err(RootError::ServerData { .. })), "{path:?}: {refused:?}");
    }
    // The control: these paths pass a comparison of text, and resolve to the canary.
    for path in [fixture.at("link/server"), fixture.at("srv/into"), below_proc] {
        assert!(!path.starts_with(fixture.at("data")));
        assert_eq!(fs::read_to_string(path.join("skep.db")).unwrap(), "canary");
    }
}

#[test]
fn roots_of_two_accounts_lie_apart() {
    let fixture = Fixture::new();
    symlink(fixture.at("srv/acme"), fixture.at("link")).unwrap();
    for path in ["srv", "srv/acme", "srv/acme/sub", "srv/acme/new", "link", "link/sub"] {
        let refused = fixture.check(&fixture.at(path));
        assert!(matches!(refused, Err(RootError::OverlapsOtherAccount { .. })), "{path}: {refused:?}");
    }
    // Also for a root that no longer exists.
    let gone = AccountRoot { account: "gone".to_owned(), path: fixture.at("gone/below") };
    assert!(fixture.rules.check(&fixture.at("gone"), &[gone]).is_err());
}

#[test]
fn a_root_is_stored_resolved() {
    let fixture = Fixture::new();
    symlink(fixture.at("server-files"), fixture.at("link")).unwrap();
    let real = |name: &str| fixture.folder.path().canonicalize().unwrap().join(name);
    for (path, resolved) in [
        ("server-files", "server-files"),
        ("link/new", "server-files/new"),
        ("data/workspaces/default", "data/workspaces/default"),
        ("data/workspaces/other", "data/workspaces/other"),
    ] {
        assert_eq!(fixture.check(&fixture.at(path)).unwrap(), real(resolved));
    }
    let stored = |name: &str| fixture.rules.check_stored(&real(name), &[]);
    assert!(stored("server-files").is_ok());
    assert!(matches!(stored("link"), Err(RootError::Linked { .. })));
}

#[test]
fn the_systems_folders_are_no_roots() {
    let fixture = Fixture::new();
    for path in ["/proc", "/proc/self", "/proc/self/fd", "/sys", "/sys/kernel", "/dev", "/dev/pts"] {
        let refused = fixture.check(Path::new(path));
        assert!(matches!(refused, Err(RootError::System { .. })), "{path}: {refused:?}");
    }
}
