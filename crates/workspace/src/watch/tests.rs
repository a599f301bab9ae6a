//! Watching a folder, and paths that must not be watched.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use futures_util::StreamExt;
use skep_api::{AbsolutePath, ErrorCode, path::PathEncoding, streams::ChangeType};
use tempfile::TempDir;

use super::*;
use crate::no_content;

struct Ground {
    folder: TempDir,
    changes: Content,
    seen: Vec<FileChange>,
}

impl Ground {
    async fn watch() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("root/old/below")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("root/there"), "x").unwrap();
        std::os::unix::fs::symlink("../outside", folder.path().join("root/link")).unwrap();
        let changes = begin(&folder, "root").await.unwrap();
        Self { folder, changes, seen: Vec::new() }
    }

    fn at(&self, name: &str) -> PathBuf {
        let root = self.folder.path().join("root");
        if name.is_empty() { root } else { root.join(name) }
    }

    /// Reads changes until this one arrives.
    async fn until(&mut self, kind: ChangeType, name: &str) {
        let path = self.at(name).display().to_string();
        let is = |change: &FileChange| change.r#type == kind && change.path == path;
        while !self.seen.iter().any(is) {
            let lines = tokio::time::timeout(Duration::from_secs(20), self.changes.next()).await;
            let lines = lines.unwrap_or_else(|_| panic!("{name} is not told; seen: {:?}", self.seen));
            for line in lines.unwrap().unwrap().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.seen.push(serde_json::from_slice(line).unwrap());
            }
        }
    }

    /// The changes of one name so far.
    fn of(&self, name: &str) -> Vec<ChangeType> {
        let path = self.at(name).display().to_string();
        self.seen.iter().filter(|change| change.path == path).map(|change| change.r#type).collect()
    }
}

async fn begin(folder: &TempDir, name: &str) -> Result<Content, ErrorCode> {
    let root = folder.path().join("root");
    let place = Place::new(root.clone(), root, BTreeMap::new(), "/nowhere");
    let path = folder.path().join(name);
    let path = AbsolutePath::parse("path", path.to_str().unwrap(), PathEncoding::Plain).unwrap();
    let watched = WatchFolder { path }.run_streamed(no_content(), &place).await;
    watched.map(|(_, content)| content).map_err(|error| error.code())
}

#[tokio::test]
async fn each_change_is_told_also_in_folders_that_are_new() {
    let mut ground = Ground::watch().await;
    fs::write(ground.at("new"), "x").unwrap();
    ground.until(ChangeType::Created, "new").await;
    fs::write(ground.at("there"), "y").unwrap();
    ground.until(ChangeType::Modified, "there").await;
    fs::create_dir_all(ground.at("a/b/c")).unwrap();
    fs::write(ground.at("a/b/c/file"), "x").unwrap();
    ground.until(ChangeType::Created, "a/b/c/file").await;
    assert_eq!(ground.of("a/b"), [ChangeType::Created], "{:?}", ground.seen);
    fs::write(ground.at("a/b/c/late"), "x").unwrap();
    ground.until(ChangeType::Created, "a/b/c/late").await;
    fs::remove_file(ground.at("new")).unwrap();
    ground.until(ChangeType::Deleted, "new").await;
    fs::remove_dir_all(ground.at("")).unwrap();
    ground.until(ChangeType::Deleted, "").await;
    assert!(ground.changes.next().await.is_none(), "nothing is left to watch");
}

#[tokio::test]
async fn a_rename_is_one_change_and_what_is_below_is_known_by_its_new_name() {
    let mut ground = Ground::watch().await;
    fs::rename(ground.at("old"), ground.at("new")).unwrap();
    ground.until(ChangeType::Renamed, "new").await;
    let renamed = ground.seen.last().unwrap().clone();
    assert_eq!(renamed.from, Some(ground.at("old").display().to_string()));
    fs::write(ground.at("new/below/file"), "x").unwrap();
    ground.until(ChangeType::Created, "new/below/file").await;
    // Moved out of the tree: reported as deleted, and not watched any more.
    let outside = ground.folder.path().join("outside/moved");
    fs::rename(ground.at("new"), &outside).unwrap();
    ground.until(ChangeType::Deleted, "new").await;
    fs::write(outside.join("below/secret"), "x").unwrap();
    fs::write(ground.folder.path().join("outside/secret"), "x").unwrap();
    fs::write(ground.at("last"), "x").unwrap();
    ground.until(ChangeType::Created, "last").await;
    assert!(!ground.seen.iter().any(|change| change.path.contains("secret")), "{:?}", ground.seen);
}

/// The API writes to a temporary file first, which must not be reported.
#[tokio::test]
async fn an_atomic_write_is_one_change() {
    let mut ground = Ground::watch().await;
    for (name, change) in [("fresh", ChangeType::Created), ("there", ChangeType::Modified)] {
        let temporary = ground.at(".skep-0123456789abcdef");
        fs::write(&temporary, "x").unwrap();
        fs::rename(&temporary, ground.at(name)).unwrap();
        ground.until(change, name).await;
        assert_eq!(ground.of(name), [change], "{:?}", ground.seen);
    }
    assert!(!ground.seen.iter().any(|change| change.path.contains(".skep-")), "{:?}", ground.seen);
}

#[tokio::test]
async fn nothing_outside_is_watched() {
    let ground = Ground::watch().await;
    for name in ["outside", "root/link", "root/../outside"] {
        assert_eq!(begin(&ground.folder, name).await.err(), Some(ErrorCode::PathOutsideRoots), "{name}");
    }
    assert_eq!(begin(&ground.folder, "root/there").await.err(), Some(ErrorCode::NotADirectory));
    assert_eq!(begin(&ground.folder, "root/none").await.err(), Some(ErrorCode::UnknownPath));
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_so() {
    let mut ground = Ground::watch().await;
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    // Each iteration causes at least two events.
    for number in 0..limit.trim().parse::<u32>().unwrap().min(200_000) {
        let name = ground.at(&format!("flood{}", number % 2));
        fs::write(&name, "x").unwrap();
        fs::remove_file(&name).unwrap();
    }
    ground.until(ChangeType::Overflow, "").await;
    fs::write(ground.at("after"), "x").unwrap();
    ground.until(ChangeType::Created, "after").await;
}
