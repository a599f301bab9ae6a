//! Watching a folder, and paths that must not be watched.

use std::{collections::BTreeMap, fs, io::Write, path::PathBuf, time::Duration};

use futures_util::StreamExt;
use skep_api::{AbsolutePath, ErrorCode, path::PathEncoding, streams::ChangeType};
use tempfile::TempDir;

use super::*;
use crate::no_content;

struct Fixture {
    folder: TempDir,
    changes: Content,
    seen: Vec<FileChange>,
}

impl Fixture {
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
            let lines = lines.unwrap_or_else(|_| panic!("{name} is not reported; seen: {:?}", self.seen));
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
async fn changes_are_reported_also_in_new_folders() {
    let mut fixture = Fixture::watch().await;
    fs::write(fixture.at("new"), "x").unwrap();
    fixture.until(ChangeType::Created, "new").await;
    fs::write(fixture.at("there"), "y").unwrap();
    fixture.until(ChangeType::Modified, "there").await;
    fs::create_dir_all(fixture.at("a/b/c")).unwrap();
    fs::write(fixture.at("a/b/c/file"), "x").unwrap();
    fixture.until(ChangeType::Created, "a/b/c/file").await;
    assert_eq!(fixture.of("a/b"), [ChangeType::Created], "{:?}", fixture.seen);
    fs::write(fixture.at("a/b/c/late"), "x").unwrap();
    fixture.until(ChangeType::Created, "a/b/c/late").await;
    fs::remove_file(fixture.at("new")).unwrap();
    fixture.until(ChangeType::Deleted, "new").await;
    fs::remove_dir_all(fixture.at("")).unwrap();
    fixture.until(ChangeType::Deleted, "").await;
    assert!(fixture.changes.next().await.is_none(), "nothing is left to watch");
}

#[tokio::test]
async fn a_rename_is_one_change_and_what_is_below_is_known_by_its_new_name() {
    let mut fixture = Fixture::watch().await;
    fs::rename(fixture.at("old"), fixture.at("new")).unwrap();
    fixture.until(ChangeType::Renamed, "new").await;
    let renamed = fixture.seen.last().unwrap().clone();
    assert_eq!(renamed.from, Some(fixture.at("old").display().to_string()));
    fs::write(fixture.at("new/below/file"), "x").unwrap();
    fixture.until(ChangeType::Created, "new/below/file").await;
    // Moved out of the tree: reported as deleted, and not watched any more.
    let outside = fixture.folder.path().join("outside/moved");
    fs::rename(fixture.at("new"), &outside).unwrap();
    fixture.until(ChangeType::Deleted, "new").await;
    fs::write(outside.join("below/secret"), "x").unwrap();
    fs::write(fixture.folder.path().join("outside/secret"), "x").unwrap();
    fs::write(fixture.at("last"), "x").unwrap();
    fixture.until(ChangeType::Created, "last").await;
    assert!(!fixture.seen.iter().any(|change| change.path.contains("secret")), "{:?}", fixture.seen);
}

/// The API writes to a temporary file first, which must not be reported.
#[tokio::test]
async fn an_atomic_write_is_one_change() {
    let mut fixture = Fixture::watch().await;
    for (name, change) in [("fresh", ChangeType::Created), ("there", ChangeType::Modified)] {
        let temporary = fixture.at(".skep-0123456789abcdef");
        fs::write(&temporary, "x").unwrap();
        fs::rename(&temporary, fixture.at(name)).unwrap();
        fixture.until(change, name).await;
        assert_eq!(fixture.of(name), [change], "{:?}", fixture.seen);
    }
    assert!(!fixture.seen.iter().any(|change| change.path.contains(".skep-")), "{:?}", fixture.seen);
}

#[tokio::test]
async fn nothing_outside_is_watched() {
    let fixture = Fixture::watch().await;
    for name in ["outside", "root/link", "root/../outside"] {
        assert_eq!(begin(&fixture.folder, name).await.err(), Some(ErrorCode::PathOutsideRoots), "{name}");
    }
    assert_eq!(begin(&fixture.folder, "root/there").await.err(), Some(ErrorCode::NotADirectory));
    assert_eq!(begin(&fixture.folder, "root/none").await.err(), Some(ErrorCode::UnknownPath));
}

#[tokio::test]
async fn an_overflow_is_reported_to_a_slow_reader() {
    let mut fixture = Fixture::watch().await;
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let mut files = ["flood0", "flood1"].map(|name| fs::File::create(fixture.at(name)).unwrap());
    // By turns, because an event that equals the last one in the queue is not added.
    for number in 0..=limit.trim().parse::<usize>().unwrap().min(500_000) {
        files[number % 2].write_all(b"x").unwrap();
    }
    fixture.until(ChangeType::Overflow, "").await;
    fs::write(fixture.at("after"), "x").unwrap();
    fixture.until(ChangeType::Created, "after").await;
}
