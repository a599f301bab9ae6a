//! File operations in a temporary workspace, and attacks on a canary file outside it.

mod moves;
mod pages;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::{CWD, Mode, mkfifoat};
use skep_api::{
    AbsolutePath, Call, CallContext, ErrorCode,
    files::{
        ContentEncoding, CopyFile, FileWritten, ListFolder, MakeFolder, MoveFile, ReadFile, Relocated,
        RemoveFile, WriteCondition, WriteFile,
    },
};
use tempfile::TempDir;

use super::*;
use crate::Run;

const CANARY: &str = "canary";

struct Fixture {
    folder: TempDir,
    place: Place,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/file"), CANARY).unwrap();
        let root = folder.path().join("root");
        let place = Place::new(root.clone(), root, BTreeMap::new(), "/nowhere");
        Self { folder, place }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    fn path(&self, name: &str) -> AbsolutePath {
        AbsolutePath::parse("path", self.at(name).to_str().unwrap(), PathEncoding::Plain).unwrap()
    }

    async fn run<O: Run>(&self, operation: O) -> Result<O::Answer, ErrorCode> {
        operation.run(&self.place).await.map_err(|error| error.code())
    }

    fn reading(&self, name: &str) -> ReadFile {
        ReadFile { path: self.path(name), encoding: ContentEncoding::default(), offset: 0, limit: None }
    }

    fn writing(&self, name: &str, content: &str) -> WriteFile {
        WriteFile {
            path: self.path(name),
            content: content.to_owned(),
            encoding: ContentEncoding::default(),
            mode: None,
            create_parents: true,
            append: false,
        }
    }

    fn removing(&self, name: &str) -> RemoveFile {
        RemoveFile { path: self.path(name), recursive: true }
    }

    /// Moves a file, or copies it with `keep`.
    async fn relocate(
        &self,
        from: &str,
        to: &str,
        keep: bool,
        overwrite: bool,
    ) -> Result<Relocated, ErrorCode> {
        let (from, to) = (self.path(from), self.path(to));
        match keep {
            true => self.run(CopyFile { from, to, overwrite }).await,
            false => self.run(MoveFile { from, to, overwrite }).await,
        }
    }

    async fn write_if(&self, condition: WriteCondition, write: WriteFile) -> Result<FileWritten, ErrorCode> {
        let context = CallContext { condition, ..CallContext::default() };
        self.run(Call { context, operation: write }).await
    }

    async fn names(&self, folder: &str, limit: u32, after: Option<String>) -> (Vec<String>, Option<String>) {
        let page = self.run(ListFolder { path: self.path(folder), limit, cursor: after }).await.unwrap();
        (page.entries.into_iter().map(|entry| entry.name).collect(), page.next_cursor)
    }

    fn canary_is_whole(&self) {
        let outside = self.folder.path().join("outside");
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), CANARY);
        assert_eq!(fs::read_dir(outside).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn a_file_is_written_and_read_in_windows() {
    let fixture = Fixture::new();
    let made = fixture.run(fixture.writing("a/b/file", "0123456789")).await.unwrap();
    assert_eq!((made.created, made.size_bytes), (true, 10));
    let whole = fixture.run(fixture.reading("a/b/file")).await.unwrap();
    assert_eq!((whole.content.as_str(), whole.truncated, &whole.etag), ("0123456789", false, &made.etag));
    for (offset, limit, content, truncated) in [
        (2, Some(3), "234", true),
        (8, Some(9), "89", false),
        (7, Some(3), "789", false),
        (7, Some(2), "78", true),
        (10, None, "", false),
        (99, Some(1), "", false),
        (u64::MAX, Some(1), "", false),
        (0, Some(10), "0123456789", false),
    ] {
        let window = ReadFile { offset, limit, ..fixture.reading("a/b/file") };
        let window = fixture.run(window).await.unwrap();
        assert_eq!((window.content.as_str(), window.truncated, window.size_bytes), (content, truncated, 10));
    }
    let again = fixture.run(fixture.writing("a/b/file", "new")).await.unwrap();
    assert!(!again.created && again.etag != made.etag);
    assert_eq!(fs::read_to_string(fixture.at("a/b/file")).unwrap(), "new");
}

#[tokio::test]
async fn a_character_that_a_window_cuts_is_refused_and_not_replaced() {
    let fixture = Fixture::new();
    fixture.run(fixture.writing("file", "aé")).await.unwrap();
    let cut = ReadFile { limit: Some(2), ..fixture.reading("file") };
    assert_eq!(fixture.run(cut.clone()).await.unwrap_err(), ErrorCode::NotText);
    let digits = ReadFile { encoding: ContentEncoding("hex".to_owned()), ..cut };
    assert_eq!(fixture.run(digits).await.unwrap().content, "61c3");
}

#[tokio::test]
async fn mode_and_owner_of_a_replaced_file_are_kept() {
    let fixture = Fixture::new();
    fixture.run(fixture.writing("file", "old")).await.unwrap();
    assert_eq!(fs::metadata(fixture.at("file")).unwrap().mode() & 0o7777, 0o644);
    fs::set_permissions(fixture.at("file"), fs::Permissions::from_mode(0o750)).unwrap();
    fixture.run(fixture.writing("file", "new")).await.unwrap();
    assert_eq!(fs::metadata(fixture.at("file")).unwrap().mode() & 0o7777, 0o750);
    fixture.run(WriteFile { mode: Some(0o600), ..fixture.writing("file", "newer") }).await.unwrap();
    assert_eq!(fs::metadata(fixture.at("file")).unwrap().mode() & 0o7777, 0o600);
    // The new content does not get the privileges of the old one.
    fs::set_permissions(fixture.at("file"), fs::Permissions::from_mode(0o7755)).unwrap();
    fixture.run(fixture.writing("file", "newest")).await.unwrap();
    assert_eq!(fs::metadata(fixture.at("file")).unwrap().mode() & 0o7777, 0o1755);
    fixture.run(WriteFile { mode: Some(0o6711), ..fixture.writing("file", "last") }).await.unwrap();
    assert_eq!(fs::metadata(fixture.at("file")).unwrap().mode() & 0o7777, 0o711);
}

#[tokio::test]
async fn a_write_happens_only_under_its_condition() {
    let fixture = Fixture::new();
    let absent = || fixture.write_if(WriteCondition::Absent, fixture.writing("file", "one"));
    let made = absent().await.unwrap();
    assert_eq!(absent().await.unwrap_err(), ErrorCode::PreconditionFailed);
    let matching = |tag: &str| {
        fixture.write_if(WriteCondition::Matches(vec![tag.to_owned()]), fixture.writing("file", "two"))
    };
    assert_eq!(matching("\"other\"").await.unwrap_err(), ErrorCode::PreconditionFailed);
    matching(&made.etag).await.unwrap();
    assert_eq!(matching(&made.etag).await.unwrap_err(), ErrorCode::PreconditionFailed);
    let there = fixture.write_if(WriteCondition::Exists, fixture.writing("nothing", ""));
    assert_eq!(there.await.unwrap_err(), ErrorCode::PreconditionFailed);
    assert_eq!(fixture.names("", 10, None).await.0, ["file"], "what was refused leaves nothing");
}

#[tokio::test]
async fn a_reader_sees_the_old_or_the_new_content() {
    let fixture = Fixture::new();
    let contents = ["a".repeat(200_000), "b".repeat(100_000)];
    fixture.run(fixture.writing("file", &contents[0])).await.unwrap();
    let (path, done) = (fixture.at("file"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                let content = fs::read_to_string(&path).unwrap();
                assert!(contents.contains(&content), "{} bytes are neither", content.len());
                seen += 1;
            }
            seen
        });
        let roots = fixture.place.roots().unwrap();
        for turn in 0..100 {
            let write = fixture.writing("file", &contents[turn % 2]);
            write::write(&roots, &fixture.place, &write, &WriteCondition::None).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

#[tokio::test]
async fn what_is_added_is_added_at_the_end() {
    let fixture = Fixture::new();
    let add = |content| WriteFile { append: true, ..fixture.writing("log", content) };
    assert!(fixture.run(add("one ")).await.unwrap().created);
    let second = fixture.run(add("two")).await.unwrap();
    assert_eq!((second.created, second.size_bytes), (false, 7));
    assert_eq!(fs::read_to_string(fixture.at("log")).unwrap(), "one two");
}

#[tokio::test]
async fn a_link_is_written_through_inside_and_never_outside() {
    let fixture = Fixture::new();
    fixture.run(fixture.writing("file", "old")).await.unwrap();
    symlink("file", fixture.at("inside")).unwrap();
    symlink(fixture.folder.path().join("outside/file"), fixture.at("out")).unwrap();
    symlink("../outside/new", fixture.at("dangling")).unwrap();
    symlink("../outside", fixture.at("folder")).unwrap();
    fixture.run(fixture.writing("inside", "new")).await.unwrap();
    assert_eq!(fs::read_to_string(fixture.at("file")).unwrap(), "new");
    assert!(fs::symlink_metadata(fixture.at("inside")).unwrap().is_symlink());
    for name in ["out", "dangling", "folder/new", "folder/file", "../outside/new"] {
        assert_eq!(
            fixture.run(fixture.writing(name, "evil")).await.unwrap_err(),
            ErrorCode::PathOutsideRoots,
            "{name}"
        );
        let append = WriteFile { append: true, ..fixture.writing(name, "evil") };
        assert_eq!(fixture.run(append).await.unwrap_err(), ErrorCode::PathOutsideRoots, "{name}");
    }
    fixture.canary_is_whole();
}

#[tokio::test]
async fn what_has_no_content_is_neither_read_nor_written() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("folder")).unwrap();
    mkfifoat(CWD, fixture.at("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    for name in ["folder", "fifo"] {
        assert_eq!(fixture.run(fixture.reading(name)).await.unwrap_err(), ErrorCode::NotAFile, "{name}");
        assert_eq!(fixture.run(fixture.writing(name, "")).await.unwrap_err(), ErrorCode::NotAFile, "{name}");
    }
    let list = ListFolder { path: fixture.path("fifo"), limit: 1, cursor: None };
    assert_eq!(fixture.run(list).await.unwrap_err(), ErrorCode::NotADirectory);
}

#[tokio::test]
async fn a_folder_is_listed_by_name_page_by_page() {
    let fixture = Fixture::new();
    for name in ["b", "a", "C", "ä", "a b"] {
        fs::write(fixture.at(name), name).unwrap();
    }
    let all = ["C", "a", "a b", "b", "ä"];
    assert_eq!(fixture.names("", 10, None).await, (all.map(str::to_owned).to_vec(), None));
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (names, next) = fixture.names("", 2, after).await;
        seen.extend(names);
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, all);
    let wrong = ListFolder { path: fixture.path(""), limit: 1, cursor: Some("!".to_owned()) };
    assert_eq!(fixture.run(wrong).await.unwrap_err(), ErrorCode::InvalidValue);
}

#[tokio::test]
async fn a_name_that_is_not_utf8_can_be_listed_and_used() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::new();
    let name = std::ffi::OsStr::from_bytes(b"50%\xff");
    fs::write(fixture.at("").join(name), "x").unwrap();
    let page = fixture.run(ListFolder { path: fixture.path(""), limit: 9, cursor: None }).await.unwrap();
    let entry = &page.entries[0];
    assert_eq!((entry.name.as_str(), entry.name_encoding), ("50%25%FF", Some(PathEncoding::Percent)));
    let path = AbsolutePath::parse("path", &entry.path, PathEncoding::Percent).unwrap();
    let found = fixture.run(ReadFile { path, ..fixture.reading("") }).await.unwrap();
    assert_eq!((found.content.as_str(), found.path), ("x", entry.path.clone()));
}

#[tokio::test]
async fn folders_are_made_once_and_not_through_files() {
    let fixture = Fixture::new();
    let make = |name: &str| MakeFolder { path: fixture.path(name), mode: Some(0o700) };
    assert!(fixture.run(make("a/b/c")).await.unwrap().created);
    assert!(!fixture.run(make("a/b/c")).await.unwrap().created);
    assert_eq!(fs::metadata(fixture.at("a/b/c")).unwrap().mode() & 0o7777, 0o700);
    fs::write(fixture.at("file"), "").unwrap();
    symlink("../outside", fixture.at("out")).unwrap();
    for (name, code) in [
        ("file", ErrorCode::NotADirectory),
        ("file/below", ErrorCode::NotADirectory),
        ("out/new", ErrorCode::PathOutsideRoots),
        ("../outside/new", ErrorCode::PathOutsideRoots),
    ] {
        assert_eq!(fixture.run(make(name)).await.unwrap_err(), code, "{name}");
    }
    fixture.canary_is_whole();
}

#[tokio::test]
async fn what_is_removed_is_counted_and_links_are_not_followed() {
    let fixture = Fixture::new();
    for name in ["tree/a/file", "tree/b/c/file"] {
        fixture.run(fixture.writing(name, "")).await.unwrap();
    }
    symlink("../../outside", fixture.at("tree/out")).unwrap();
    symlink("../outside", fixture.at("out")).unwrap();
    let careful = RemoveFile { recursive: false, ..fixture.removing("tree") };
    assert_eq!(fixture.run(careful).await.unwrap_err(), ErrorCode::NotEmpty);
    let removed = fixture.run(fixture.removing("tree")).await.unwrap();
    assert_eq!((removed.removed, removed.r#type), (7, FileType::Directory));
    assert_eq!(fixture.run(fixture.removing("out")).await.unwrap().r#type, FileType::Symlink);
    for (name, code) in [
        ("", ErrorCode::PathOutsideRoots),
        ("..", ErrorCode::PathOutsideRoots),
        ("../outside/file", ErrorCode::PathOutsideRoots),
        ("nothing", ErrorCode::UnknownPath),
    ] {
        assert_eq!(fixture.run(fixture.removing(name)).await.unwrap_err(), code, "{name}");
    }
    fixture.canary_is_whole();
}

#[tokio::test]
async fn trees_are_moved_and_copied_whole() {
    let fixture = Fixture::new();
    fixture.run(fixture.writing("tree/sub/file", "content")).await.unwrap();
    symlink("sub/file", fixture.at("tree/link")).unwrap();
    fs::set_permissions(fixture.at("tree/sub"), fs::Permissions::from_mode(0o711)).unwrap();
    fixture.relocate("tree", "copy", true, false).await.unwrap();
    fixture.relocate("tree", "moved", false, false).await.unwrap();
    assert!(!fixture.at("tree").exists());
    for name in ["copy", "moved"] {
        assert_eq!(fs::read_to_string(fixture.at(name).join("link")).unwrap(), "content", "{name}");
        assert!(fs::symlink_metadata(fixture.at(name).join("link")).unwrap().is_symlink());
        assert_eq!(fs::metadata(fixture.at(name).join("sub")).unwrap().mode() & 0o7777, 0o711);
    }
    let within = fixture.relocate("copy", "copy/sub/copy", true, false).await;
    assert_eq!(within.unwrap_err(), ErrorCode::AlreadyExists);
}

#[tokio::test]
async fn a_file_is_replaced_only_on_request() {
    let fixture = Fixture::new();
    for name in ["one", "two"] {
        fixture.run(fixture.writing(name, name)).await.unwrap();
    }
    for keep in [true, false] {
        let refused = fixture.relocate("one", "two", keep, false).await;
        assert_eq!(refused.unwrap_err(), ErrorCode::AlreadyExists);
    }
    assert!(fixture.relocate("one", "two", false, true).await.unwrap().replaced);
    assert_eq!(fs::read_to_string(fixture.at("two")).unwrap(), "one");
    symlink("../outside", fixture.at("out")).unwrap();
    for (from, to) in [("two", "out/new"), ("out/file", "mine"), ("../outside/file", "mine")] {
        for keep in [true, false] {
            let refused = fixture.relocate(from, to, keep, true).await;
            assert_eq!(refused.unwrap_err(), ErrorCode::PathOutsideRoots, "{from} {to}");
        }
    }
    fixture.canary_is_whole();
}

#[tokio::test]
async fn cached_and_uncached_reads_give_the_same_answer() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("folder")).unwrap();
    fs::write(fixture.at("folder/file"), "0123456789").unwrap();
    fs::write(fixture.at("empty"), "").unwrap();
    fs::write(fixture.at("binary"), [0xff, 0]).unwrap();
    symlink("folder/file", fixture.at("link")).unwrap();
    let roots = fixture.place.roots().unwrap();
    let mut at_once = 0;
    for name in ["folder/file", "link", "empty", "binary", "folder/../empty"] {
        for (encoding, offset, limit) in [
            ("utf-8", 0, None),
            ("hex", 3, Some(4)),
            ("base64", 9, Some(100)),
            ("utf-8", u64::MAX, None),
            ("utf-8", i64::MAX.cast_unsigned(), None),
            ("no", 0, None),
        ] {
            let encoding = ContentEncoding(encoding.to_owned());
            let request = ReadFile { encoding, offset, limit, ..fixture.reading(name) };
            let Some(found) = fixture.place.find_cached(request.path.as_path()) else { continue };
            let waited = super::read::read(&roots, &request);
            if let Some(content) = super::read::read_cached(&found, &request) {
                assert_eq!(content, waited.unwrap(), "{request:?}");
                at_once += 1;
            }
        }
    }
    // At least one read must have come from the cache, except on overlayfs, which may support none.
    assert!(at_once > 0 || rustix::fs::statfs(fixture.folder.path()).unwrap().f_type == 0x794c_7630);
}

#[test]
fn only_files_below_a_root_are_found_in_the_cache() {
    let fixture = Fixture::new();
    let outside = fixture.folder.path().join("outside");
    symlink(&outside, fixture.at("out")).unwrap();
    symlink("../outside/file", fixture.at("up")).unwrap();
    mkfifoat(CWD, fixture.at("fifo"), Mode::RUSR).unwrap();
    fs::write(fixture.at("file"), "x").unwrap();
    let found = |path: PathBuf| fixture.place.find_cached(&path);
    for path in [
        fixture.at("out/file"),
        fixture.at("up"),
        fixture.at("../outside/file"),
        fixture.at("missing"),
        outside.join("file"),
        fixture.folder.path().join("root"),
    ] {
        assert!(found(path.clone()).is_none(), "{path:?}");
    }
    for name in ["fifo", "."] {
        let looked = found(fixture.at(name));
        assert!(
            looked.is_none_or(|found| super::read::read_cached(&found, &fixture.reading("file")).is_none()),
            "{name}"
        );
    }
    // Through a link the root is a different folder than the configured one.
    let linked = fixture.folder.path().join("linked");
    symlink(fixture.at(""), &linked).unwrap();
    let place = Place::new(&linked, &linked, BTreeMap::new(), "/nowhere");
    assert!(place.find_cached(&linked.join("file")).is_none());
    assert!(found(fixture.at("file")).is_some(), "the control");
}
