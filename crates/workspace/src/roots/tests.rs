//! Attempts to leave the roots, each aimed at a canary file of the test.

use std::{
    fs,
    io::Read,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use proptest::{prelude::*, test_runner::TestRunner};
use rustix::fs::{CWD, FileType, RenameFlags, mkfifoat, renameat_with};
use skep_api::ErrorCode;
use tempfile::TempDir;

use super::*;

const CANARY: &str = "canary";
const INSIDE: &str = "inside";

/// Two roots, and a folder beside them that must not be accessible.
struct Fixture {
    folder: TempDir,
    roots: Roots,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one/sub", "two", "outside"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("outside/file"), CANARY).unwrap();
        for name in ["one/file", "one/sub/file", "two/file"] {
            fs::write(at(name), INSIDE).unwrap();
        }
        let roots = Roots::open([at("one"), at("two")]).unwrap();
        Self { roots, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn code(&self, name: &str) -> Option<ErrorCode> {
        self.roots.find(&self.at(name), FinalLink::Follow).err().map(|error| error.code())
    }

    fn content(&self, name: &str) -> String {
        content(&self.roots.find(&self.at(name), FinalLink::Follow).unwrap())
    }
}

fn content(found: &PathHandle) -> String {
    let mut text = String::new();
    found.open_for_reading().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn what_lies_below_a_root_is_found() {
    let fixture = Fixture::new();
    for name in ["one/file", "one/sub/../file", "one/./sub//file", "two/file", "one/../two/file"] {
        assert_eq!(fixture.content(name), INSIDE, "{name}");
    }
    assert!(fixture.roots.find(&fixture.at("one"), FinalLink::Follow).unwrap().is_directory());
    assert_eq!(fixture.code("one/nothing"), Some(ErrorCode::UnknownPath));
    assert_eq!(fixture.code("one/file/below"), Some(ErrorCode::NotADirectory));
}

#[test]
fn no_name_leads_out() {
    let fixture = Fixture::new();
    for name in [
        "outside/file",
        "one/../outside/file",
        "one/sub/../../outside/file",
        "one/../../../../etc/hostname",
        "",
    ] {
        assert_eq!(fixture.code(name), Some(ErrorCode::PathOutsideRoots), "{name}");
    }
}

#[test]
fn no_link_leads_out() {
    let fixture = Fixture::new();
    let outside = fixture.at("outside");
    for (name, target) in [
        ("absolute", outside.join("file")),
        ("relative", PathBuf::from("../outside/file")),
        ("far", PathBuf::from("../../../../../../../../etc/hostname")),
        ("folder", outside.clone()),
        ("root", PathBuf::from("/")),
        ("self", PathBuf::from("/proc/self/root")),
    ] {
        symlink(target, fixture.at("one").join(name)).unwrap();
    }
    symlink("folder", fixture.at("one/twice")).unwrap();
    for name in
        ["absolute", "relative", "far", "folder/file", "root/etc", "self/etc", "twice/file", "twice", "root"]
    {
        assert_eq!(fixture.code(&format!("one/{name}")), Some(ErrorCode::PathOutsideRoots), "{name}");
    }
    // The control: without roots these links do lead there.
    assert_eq!(fs::read_to_string(fixture.at("one/twice/file")).unwrap(), CANARY);
}

#[test]
fn a_link_inside_is_followed_unless_the_link_itself_is_requested() {
    let fixture = Fixture::new();
    symlink(fixture.at("two/file"), fixture.at("one/across")).unwrap();
    symlink("sub", fixture.at("one/beside")).unwrap();
    symlink(fixture.at("one/across"), fixture.at("two/back")).unwrap();
    for name in ["one/across", "one/beside/file", "two/back"] {
        assert_eq!(fixture.content(name), INSIDE, "{name}");
    }
    let kept = fixture.roots.find(&fixture.at("one/across"), FinalLink::NoFollow).unwrap();
    assert_eq!(kept.kind(), FileType::Symlink);
    assert!(kept.open_for_reading().is_err());
    let followed = fixture.roots.find(&fixture.at("two/back"), FinalLink::Follow).unwrap();
    assert_eq!(followed.path(), fixture.at("two/file").canonicalize().unwrap());
}

#[test]
fn links_that_never_end_are_refused() {
    let fixture = Fixture::new();
    symlink("loop", fixture.at("one/loop")).unwrap();
    symlink(fixture.at("two/b"), fixture.at("one/a")).unwrap();
    symlink(fixture.at("one/a"), fixture.at("two/b")).unwrap();
    for name in ["one/loop", "one/a", "two/b/deeper"] {
        assert_eq!(fixture.code(name), Some(ErrorCode::TooManyLinks), "{name}");
    }
}

#[test]
fn what_has_no_content_is_never_opened() {
    let fixture = Fixture::new();
    mkfifoat(CWD, fixture.at("one/fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    let fifo = fixture.roots.find(&fixture.at("one/fifo"), FinalLink::Follow).unwrap();
    assert!(fifo.open_for_reading().is_err() && fifo.open_for_appending().is_err());
}

#[test]
fn no_more_is_read_than_is_asked_for() {
    let fixture = Fixture::new();
    let found = |name: &str| fixture.roots.find(&fixture.at(name), FinalLink::Follow).unwrap();
    assert_eq!(found("one/file").content(3).unwrap(), &INSIDE.as_bytes()[..3]);
    // It grew after the lookup.
    let before = found("one/file");
    fs::write(fixture.at("one/file"), "x".repeat(100_000)).unwrap();
    assert_eq!(before.content(1 << 20).unwrap().len(), 100_000);
    fs::File::create(fixture.at("one/sparse")).unwrap().set_len(10 << 40).unwrap();
    assert_eq!(found("one/sparse").content(8).unwrap(), [0; 8]);
}

#[test]
fn kernel_file_systems_inside_a_root_are_refused() {
    let roots = Roots::open([PathBuf::from("/")]).unwrap();
    for path in ["/proc/self/environ", "/proc", "/sys/kernel"] {
        let error = roots.find(Path::new(path), FinalLink::Follow).unwrap_err();
        assert_eq!(error.code(), ErrorCode::PathOutsideRoots, "{path}");
    }
    // A magic link, whose target only the kernel knows, is never followed.
    let error = roots.find(Path::new("/proc/self/root/etc"), FinalLink::Follow).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooManyLinks);
    assert!(roots.find(Path::new("/etc"), FinalLink::Follow).unwrap().is_directory());
    // Not even if a root lies in such a file system.
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    let roots = Roots::open([own.clone()]).unwrap();
    let error = roots.find(&own.join("environ"), FinalLink::Follow).unwrap_err();
    assert_eq!(error.code(), ErrorCode::PathOutsideRoots);
}

#[test]
fn a_root_that_was_replaced_by_a_link_is_not_opened() {
    let fixture = Fixture::new();
    let root = fixture.at("one/sub");
    assert!(Roots::open([root.clone()]).is_ok());
    fs::rename(&root, fixture.at("one/moved")).unwrap();
    symlink(fixture.at("outside"), &root).unwrap();
    // The control: the path leads to the canary.
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), CANARY);
    symlink(fixture.at("."), fixture.at("one/up")).unwrap();
    for linked in [root, fixture.at("one/up/outside"), PathBuf::from("/proc/self/root/etc")] {
        let error = Roots::open([linked.clone()]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotADirectory, "{linked:?}");
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert!(PathHandle::find_cached(std::slice::from_ref(&linked), &linked.join("file")).is_none());
    }
}

#[test]
fn a_slot_is_a_name_in_a_folder_inside() {
    let fixture = Fixture::new();
    symlink(fixture.at("outside"), fixture.at("one/out")).unwrap();
    symlink(fixture.at("outside/file"), fixture.at("one/link")).unwrap();
    let slot = fixture.roots.slot(&fixture.at("one/sub/new")).unwrap();
    assert_eq!(
        (slot.name().to_str(), slot.folder().path()),
        (Some("new"), &*fixture.at("one/sub").canonicalize().unwrap())
    );
    // The link itself is inside.
    assert!(fixture.roots.slot(&fixture.at("one/link")).is_ok());
    for name in ["one/out/new", "one", "two", "outside/new", "one/..", "one/sub/../../two"] {
        let error = fixture.roots.slot(&fixture.at(name)).err();
        assert_eq!(error.map(|error| error.code()), Some(ErrorCode::PathOutsideRoots), "{name}");
    }
}

#[test]
fn a_path_that_is_exchanged_during_the_lookup_stays_inside() {
    let fixture = Fixture::new();
    let (inside, link) = (fixture.at("one/sub"), fixture.at("one/exchanged"));
    symlink(fixture.at("outside"), &link).unwrap();
    let done = AtomicBool::new(false);
    let mut seen = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &inside, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..20_000 {
            for name in ["one/sub/file", "one/exchanged/file", "one/sub/../exchanged/../../one/sub/file"] {
                let Ok(found) = fixture.roots.find(&fixture.at(name), FinalLink::Follow) else { continue };
                assert_eq!(content(&found), INSIDE, "{name}");
                seen += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen > 100, "the exchange let almost nothing through: {seen}");
}

/// Special path components, and some that lead outside.
fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["..", ".", "sub", "file", "out", "across", "up", "one", "two", "outside", ""])
}

#[test]
fn whatever_the_path_nothing_outside_is_found() {
    let fixture = Fixture::new();
    symlink(fixture.at("outside"), fixture.at("one/out")).unwrap();
    symlink(fixture.at("two"), fixture.at("one/across")).unwrap();
    symlink("../..", fixture.at("one/sub/up")).unwrap();
    let paths = prop::collection::vec(name(), 0..12);
    let outcome = TestRunner::new(ProptestConfig::default()).run(&paths, |names| {
        let path = fixture.at("one").join(names.join("/").trim_start_matches('/'));
        for last in [FinalLink::Follow, FinalLink::NoFollow] {
            if let Ok(found) = fixture.roots.find(&path, last) {
                let real = fs::read_link(found.proc_path()).unwrap();
                let below = ["one", "two"].map(|root| fixture.at(root).canonicalize().unwrap());
                prop_assert!(below.iter().any(|root| real.starts_with(root)), "{path:?} led to {real:?}");
            }
        }
        Ok(())
    });
    outcome.unwrap();
}
