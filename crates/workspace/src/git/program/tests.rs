//! Git processes as children of this process.

use std::{collections::BTreeMap, path::PathBuf};

use super::Git;
use crate::{Place, git::config::ConfigOverrides};

/// Its partial output does not become part of the message.
#[tokio::test]
async fn a_git_that_a_signal_ended_says_so() {
    let place = Place::new("/", "/", BTreeMap::new(), PathBuf::new());
    let alias = "alias.die=!echo answer; echo why >&2; kill -9 $PPID";
    let git = Git::new(&place, std::path::Path::new("/"), &ConfigOverrides::default());
    let output = git.args(["-c", alias, "die"]).run().await.unwrap();
    assert_eq!(
        (output.code, output.message().as_str()),
        (None, "why\n`git` was ended by a signal, perhaps for lack of memory; ask for less, or try again")
    );
}

/// A reaper that collected the status first would make the call fail without a reason.
#[tokio::test]
async fn a_git_that_ended_is_no_orphan_until_its_status_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new("/", "/", BTreeMap::new(), PathBuf::new());
    let git = Git::new(&place, folder.path(), &ConfigOverrides::default()).args(["version"]);
    let (group, _pipes) = git.spawn().unwrap();
    let (leader, _) = group.leader.as_ref().unwrap();
    let pid = leader.id();
    leader.wait_until_ended().await;
    assert!(place.commands().owns(pid), "a reaper may take it");
    assert!(group.wait().await.unwrap().success());
    assert!(!place.commands().owns(pid), "its number may be another process's");
}
