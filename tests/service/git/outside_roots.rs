//! Repositories that refer to folders outside the roots. In the control of each attack, plain git reads them.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::json;

use super::{git, refused, repository, send};
use crate::harness::Skep;

const SECRET: &str = "the secret of another account";

/// A repository outside the roots, whose commit holds a secret.
fn outside(skep: &Skep) -> String {
    let path = skep.data.path().join("outside").display().to_string();
    fs::create_dir_all(&path).unwrap();
    git(&path, &["init", "-q", "-b", "main"]);
    fs::write(format!("{path}/file"), SECRET).unwrap();
    git(&path, &["add", "."]);
    git(&path, &["commit", "-qm", SECRET]);
    path
}

/// Checks that no read operation on this path reveals the secret.
async fn assert_secret_is_hidden(skep: &Skep, path: &str) {
    for verb in ["status?", "log?", "diff?", "diff?from=HEAD&", "branch?", "worktree?"] {
        let response = skep.get(&format!("/api/git/{verb}path={path}")).await;
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(!text.contains(SECRET), "{verb}: {status} {text}");
        assert_ne!(status, 500, "{verb}: {text}");
    }
}

#[tokio::test]
async fn a_git_dir_that_lies_elsewhere_is_refused() {
    let skep = Skep::start().await;
    let there = outside(&skep);
    let (file, link) = (skep.at("file"), skep.at("link"));
    fs::create_dir_all(&file).unwrap();
    fs::create_dir_all(&link).unwrap();
    fs::write(format!("{file}/.git"), format!("gitdir: {there}/.git\n")).unwrap();
    symlink(format!("{there}/.git"), format!("{link}/.git")).unwrap();
    for path in [&file, &link] {
        assert!(git(path, &["log"]).contains(SECRET), "the control");
        let response = skep.get(&format!("/api/git/log?path={path}")).await;
        refused(response, 409, "hostile_repository").await;
        assert_secret_is_hidden(&skep, path).await;
    }
    let within = repository(&skep, "within");
    for name in ["objects", "refs"] {
        fs::rename(format!("{within}/.git/{name}"), format!("{within}/.git/{name}.old")).unwrap();
        symlink(format!("{there}/.git/{name}"), format!("{within}/.git/{name}")).unwrap();
    }
    assert!(git(&within, &["log"]).contains(SECRET), "the control");
    assert_secret_is_hidden(&skep, &within).await;
}

#[tokio::test]
async fn a_common_dir_that_lies_elsewhere_is_refused() {
    let skep = Skep::start().await;
    let there = outside(&skep);
    let path = repository(&skep, "project");
    git(&path, &["worktree", "add", "-q", &skep.at("beside")]);
    fs::write(format!("{path}/.git/worktrees/beside/commondir"), format!("{there}/.git\n")).unwrap();
    fs::write(format!("{path}/.git/worktrees/beside/HEAD"), "ref: refs/heads/main\n").unwrap();
    assert!(git(skep.at("beside"), &["log"]).contains(SECRET), "the control");
    assert_secret_is_hidden(&skep, &skep.at("beside")).await;
}

#[tokio::test]
async fn alternates_outside_the_roots_are_refused() {
    let skep = Skep::start().await;
    let there = outside(&skep);
    let path = repository(&skep, "project");
    let hash = git(&there, &["rev-parse", "HEAD"]).trim().to_owned();
    let alternates = format!("{path}/.git/objects/info/alternates");
    fs::write(&alternates, format!("{there}/.git/objects\n")).unwrap();
    assert!(git(&path, &["log", &hash]).contains(SECRET), "the control");
    let response = skep.get(&format!("/api/git/log?path={path}&ref={hash}")).await;
    let message = refused(response, 409, "hostile_repository").await;
    assert!(message.contains("alternates"), "{message}");
    // Indirectly, by another repository inside the roots.
    let other = repository(&skep, "other");
    fs::rename(&alternates, format!("{other}/.git/objects/info/alternates")).unwrap();
    fs::write(&alternates, format!("{other}/.git/objects\n")).unwrap();
    assert!(git(&path, &["log", &hash]).contains(SECRET), "the control");
    let response = skep.get(&format!("/api/git/log?path={path}&ref={hash}")).await;
    refused(response, 409, "hostile_repository").await;
}

#[tokio::test]
async fn files_of_a_git_directory_that_are_links_to_the_outside_are_refused() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let file = skep.data.path().join("file");
    fs::write(&file, format!("{SECRET}\n")).unwrap();
    for name in ["packed-refs", "shallow", "objects/info/alternates"] {
        let link = format!("{path}/.git/{name}");
        symlink(&file, &link).unwrap();
        let printed = Command::new("git").args(["-C", &path, "fsck", "--full"]).output().unwrap().stderr;
        assert!(String::from_utf8_lossy(&printed).contains(SECRET), "the control: {name}: {printed:?}");
        let response = skep.get(&format!("/api/git/log?path={path}")).await;
        let message = refused(response, 409, "hostile_repository").await;
        assert!(message.contains(name), "{message}");
        fs::remove_file(link).unwrap();
    }
    // Also in a repository that lends its objects.
    let lender = repository(&skep, "lender");
    symlink(&file, format!("{lender}/.git/objects/info/alternates")).unwrap();
    fs::write(format!("{path}/.git/objects/info/alternates"), format!("{lender}/.git/objects\n")).unwrap();
    let response = skep.get(&format!("/api/git/log?path={path}")).await;
    let message = refused(response, 409, "hostile_repository").await;
    assert!(message.contains("alternates"), "{message}");
}

/// Git compares the file of each entry in the index, wherever its name leads.
#[tokio::test]
async fn names_in_an_index_that_lead_outside_reveal_no_content() {
    let skep = Skep::start().await;
    let path = repository(&skep, "project");
    let secret = skep.data.path().join("secret");
    fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let up = "../".repeat(Path::new(&path).components().count() - 1);
    let name = format!("{up}{}", secret.strip_prefix("/").unwrap().display());
    // Git does not stage such a name, so it replaces the name of an entry of the same length. The checksum of an index is optional.
    let stand_in = "x".repeat(name.len());
    let blob = git(&path, &["rev-parse", "HEAD:file"]);
    let entry = format!("100644,{},{stand_in}", blob.trim());
    git(&path, &["update-index", "--add", "--cacheinfo", &entry]);
    let index = format!("{path}/.git/index");
    let mut content = fs::read(&index).unwrap();
    let at = content.windows(name.len()).position(|window| window == stand_in.as_bytes()).unwrap();
    content[at..at + name.len()].copy_from_slice(name.as_bytes());
    let sum = content.len() - 20;
    content[sum..].fill(0);
    fs::write(&index, content).unwrap();
    assert!(git(&path, &["diff"]).contains(SECRET), "the control");
    assert_secret_is_hidden(&skep, &path).await;
}

#[tokio::test]
async fn a_work_tree_that_lies_elsewhere_is_not_used() {
    let skep = Skep::start().await;
    let there = outside(&skep);
    let path = repository(&skep, "project");
    git(&path, &["config", "core.worktree", &there]);
    fs::write(format!("{there}/planted"), SECRET).unwrap();
    assert!(git(&path, &["status", "--short"]).contains("planted"), "the control");
    let status = super::get(&skep, "status", &format!("path={path}")).await;
    assert_eq!(status["clean"], true, "{status}");
    super::post(&skep, "reset", json!({"path": path, "mode": "hard"})).await;
    assert_eq!(fs::read_to_string(format!("{there}/file")).unwrap(), SECRET, "nothing is written there");
}

#[tokio::test]
async fn nothing_is_made_or_cloned_outside() {
    let skep = Skep::start().await;
    let there = outside(&skep);
    let path = repository(&skep, "project");
    symlink(skep.data.path(), skep.at("way")).unwrap();
    for target in
        [skep.data.path().join("new").display().to_string(), skep.at("way/new"), skep.at("../../new")]
    {
        for (verb, body) in [
            ("init", json!({"path": target})),
            ("clone", json!({"path": target, "url": path})),
            ("worktree", json!({"path": path, "worktree": target})),
        ] {
            refused(send(&skep, verb, body).await, 403, "path_outside_roots").await;
        }
        assert!(!skep.data.path().join("new").exists());
    }
    let url = json!({"path": skep.at("clone"), "url": there});
    refused(send(&skep, "clone", url).await, 403, "path_outside_roots").await;
    for url in [format!("file://{there}"), format!("file://{path}"), "../outside".to_owned()] {
        let status = send(&skep, "clone", json!({"path": skep.at("clone"), "url": url})).await.status();
        assert!([400, 403].contains(&status.as_u16()), "{url}: {status}");
    }
    // Also by a remote of the repository.
    git(&path, &["remote", "add", "origin", &there]);
    refused(send(&skep, "pull", json!({"path": path, "branch": "main"})).await, 403, "path_outside_roots")
        .await;
    refused(send(&skep, "push", json!({"path": path})).await, 403, "path_outside_roots").await;
}
