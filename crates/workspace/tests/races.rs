//! A folder is repeatedly replaced by a link while every operation walks through it. Nothing outside may be read,
//! changed, created or removed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use skep_api::{
    AbsolutePath,
    files::{
        ContentEncoding, CopyFile, GrepFiles, ListFolder, MakeFolder, MoveFile, PatternSyntax, ReadFile,
        RemoveFile, SearchFiles, WriteCondition, WriteFile,
    },
    path::PathEncoding,
    streams::{StreamFile, UploadFile, WatchFolder},
};
use skep_workspace::{Content, Place, Run, RunStreamed, no_content};

const CANARY: &str = "canary";
const INSIDE: &str = "inside";
/// Long enough for thousands of exchanges on a busy machine.
const TIME: Duration = Duration::from_secs(4);
/// How often at least something must get through. Writes wait for the disk, so on a slow one this takes longer.
const MIN_SEEN: u32 = 20;
const TIME_LIMIT: Duration = Duration::from_secs(120);

fn path(path: &Path) -> AbsolutePath {
    AbsolutePath::parse("path", path.to_str().unwrap(), PathEncoding::Plain).unwrap()
}

/// All names below a folder, with the contents of files.
fn state(folder: &Path) -> Vec<(String, String)> {
    let mut state: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap_or_default()))
        .collect();
    state.sort();
    state
}

async fn all(mut content: Content) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(piece)) = content.next().await {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_becomes_a_link_never_leads_outside() {
    let fixture = tempfile::tempdir().unwrap();
    let (root, outside) = (fixture.path().join("root"), fixture.path().join("outside"));
    for folder in [root.join("folder"), outside.clone()] {
        fs::create_dir_all(&folder).unwrap();
    }
    for name in ["file", CANARY] {
        fs::write(outside.join(name), CANARY).unwrap();
    }
    symlink(&outside, root.join("link")).unwrap();
    let before = state(&outside);
    let place = Place::new(root.clone(), root.clone(), BTreeMap::new(), "/nowhere");
    let done = AtomicBool::new(false);
    let exchange = || {
        while !done.load(Ordering::Relaxed) {
            let (folder, link) = (root.join("folder"), root.join("link"));
            renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        }
    };
    let runtime = tokio::runtime::Handle::current();
    let seen = thread::scope(|threads| {
        threads.spawn(exchange);
        let walking = threads.spawn(|| runtime.block_on(walk(&place, &root)));
        let seen = walking.join();
        done.store(true, Ordering::Relaxed);
        seen.unwrap()
    });
    assert_eq!(state(&outside), before);
    assert!(seen > MIN_SEEN, "the exchange let almost nothing through: {seen}");
}

/// Runs all operations repeatedly. Returns how often something was read.
async fn walk(place: &Place, root: &Path) -> u32 {
    let (folder, file) = (root.join("folder"), path(&root.join("folder/file")));
    let begun = Instant::now();
    let mut seen = 0;
    while begun.elapsed() < TIME || (seen <= MIN_SEEN && begun.elapsed() < TIME_LIMIT) {
        seen += write(place, &file).await;
        let stream = StreamFile { path: file.clone(), range: None, if_range: None };
        if let Ok((_, content)) = stream.run_streamed(no_content(), place).await {
            assert_ne!(all(content).await, CANARY.as_bytes());
            seen += 1;
        }
        let encoding = ContentEncoding::default();
        let read = ReadFile { path: file.clone(), encoding, offset: 0, limit: None };
        if let Ok(read) = read.run(place).await {
            assert_eq!(read.content, INSIDE);
        }
        let grep =
            GrepFiles { path: path(&folder), pattern: CANARY.to_owned(), glob: None, context: 0, limit: 10 };
        if let Ok(found) = grep.run(place).await {
            assert!(found.matches.is_empty(), "{found:?}");
        }
        let list = ListFolder { path: path(&folder), limit: 10, cursor: None };
        let _ = list.run(place).await;
        let _ = WatchFolder { path: path(&folder) }.run_streamed(no_content(), place).await;
        let (from, to) = (file.clone(), path(&root.join("copy")));
        if (CopyFile { from, to: to.clone(), overwrite: true }).run(place).await.is_ok() {
            assert_eq!(fs::read_to_string(to.as_path()).unwrap(), INSIDE);
        }
        let (from, moved) = (file.clone(), path(&root.join("moved")));
        if (MoveFile { from, to: moved.clone(), overwrite: true }).run(place).await.is_ok() {
            assert_eq!(fs::read_to_string(moved.as_path()).unwrap(), INSIDE);
        }
        let (from, to) = (moved, path(&root.join("folder/moved")));
        let _ = MoveFile { from, to, overwrite: true }.run(place).await;
        if let Ok(found) = search(&folder, CANARY).run(place).await {
            assert!(found.matches.is_empty(), "{found:?}");
        }
        let _ = RemoveFile { path: file.clone(), recursive: true }.run(place).await;
    }
    seen
}

fn search(folder: &Path, name: &str) -> SearchFiles {
    SearchFiles {
        path: path(folder),
        pattern: name.to_owned(),
        syntax: PatternSyntax::Glob,
        r#type: None,
        hidden: true,
        gitignore: false,
        limit: 10,
    }
}

async fn write(place: &Place, file: &AbsolutePath) -> u32 {
    let condition = WriteCondition::None;
    let write = WriteFile {
        path: file.clone(),
        content: INSIDE.to_owned(),
        encoding: ContentEncoding::default(),
        mode: None,
        create_parents: true,
        append: false,
    };
    let written = write.run(place).await.is_ok();
    let upload = UploadFile { path: file.clone(), mode: None, create_parents: true, condition };
    let content: Content = Box::pin(stream::iter([Ok(INSIDE.into())]));
    let uploaded = upload.run_streamed(content, place).await.is_ok();
    let below = file.as_path().parent().unwrap().join("a/b");
    let _ = MakeFolder { path: path(&below), mode: None }.run(place).await;
    u32::from(written) + u32::from(uploaded)
}
