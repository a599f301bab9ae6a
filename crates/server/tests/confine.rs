//! Tests which files a confined thread may access, with the newest rules and with those of older kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs, io::ErrorKind, os::fd::AsFd, path::Path, process::Command, thread};

use jiff::Timestamp;
use skep_api::{
    AbsolutePath,
    files::{PatternSyntax, SearchFiles},
    path::PathEncoding,
};
use skep_server::confine::{AllowedPaths, Confinement, Rules, confine, fence, landlock_abi};
use skep_store::{AccountStore, EnsureDefaultAccount, SetAccountRoots, SqliteSettings, SqliteStore};
use skep_workspace::{Place, Run};
use tempfile::TempDir;

struct Fixture {
    own: TempDir,
    images: TempDir,
    other: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = || {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("file"), "before").unwrap();
            folder
        };
        Self { own: folder(), images: folder(), other: folder() }
    }

    fn reach(&self) -> AllowedPaths {
        AllowedPaths { write: vec![self.own.path().to_owned()], read: vec![self.images.path().to_owned()] }
    }
}

/// Runs a check on a confined thread of its own. Without Landlock, the check is skipped.
fn confined(rules: Rules, check: impl FnOnce(&Fixture) + Send + 'static) {
    if landlock_abi() == 0 {
        eprintln!("this kernel has no Landlock: nothing was checked");
        return;
    }
    let confined = thread::spawn(move || {
        let machine = Fixture::new();
        assert_ne!(confine(&machine.reach(), rules).unwrap(), Confinement::None);
        check(&machine);
        machine
    });
    // Dropped on this thread, which may remove the folders.
    drop(confined.join().unwrap());
}

fn refused<T>(outcome: std::io::Result<T>, what: &str) {
    match outcome {
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}"),
        Ok(_) => panic!("{what} was possible"),
    }
}

#[test]
fn a_confined_server_reaches_its_own_and_nothing_else() {
    for rules in [Rules::Newest, Rules::Abi2] {
        confined(rules, |machine| {
            let own = machine.own.path();
            fs::write(own.join("file"), "after").unwrap();
            fs::create_dir(own.join("folder")).unwrap();
            fs::rename(own.join("file"), own.join("folder/file")).unwrap();
            fs::remove_dir_all(own.join("folder")).unwrap();

            let images = machine.images.path();
            assert_eq!(fs::read_to_string(images.join("file")).unwrap(), "before");
            refused(fs::write(images.join("new"), ""), "a new file among the images");
            refused(fs::remove_file(images.join("file")), "removing an image");

            let other = machine.other.path();
            refused(fs::read(other.join("file")), "reading elsewhere");
            refused(fs::read_dir(other), "listing elsewhere");
            refused(fs::write(other.join("new"), ""), "a new file elsewhere");
            refused(fs::remove_file(other.join("file")), "removing elsewhere");
        });
    }
}

#[test]
fn a_confined_server_runs_programs_of_the_system_and_no_others() {
    for rules in [Rules::Newest, Rules::Abi2] {
        confined(rules, |machine| {
            assert!(Command::new("/usr/bin/true").status().unwrap().success());
            assert!(fs::read("/etc/passwd").is_ok());
            assert!(fs::read("/proc/self/status").is_ok());
            assert!(fs::write("/dev/null", "x").is_ok());
            refused(fs::write("/etc/skep-test", ""), "writing below /etc");
            refused(fs::read_dir("/root"), "listing /root");
            let own = machine.own.path().join("program");
            fs::copy("/usr/bin/true", &own).unwrap();
            refused(Command::new(&own).status(), "running a program of its own");
        });
    }
}

#[test]
fn a_link_does_not_lead_out_of_the_allowed_paths() {
    for rules in [Rules::Newest, Rules::Abi2] {
        confined(rules, |machine| {
            let link = machine.own.path().join("link");
            std::os::unix::fs::symlink(machine.other.path().join("file"), &link).unwrap();
            refused(fs::read(&link), "reading through a link");
        });
    }
}

/// By default, SQLite spills large statements to files in /tmp, which a confined process cannot create.
#[test]
fn a_confined_store_takes_commands_of_any_size() {
    for rules in [Rules::Newest, Rules::Abi2] {
        confined(rules, |machine| {
            let threads_begin_confined = tokio::runtime::Builder::new_current_thread().enable_all().build();
            threads_begin_confined.unwrap().block_on(async {
                let settings = SqliteSettings::at(machine.own.path().join("skep.db"));
                let store = SqliteStore::open(settings).await.unwrap();
                let made = EnsureDefaultAccount { roots: vec!["/w".to_owned()], at: Timestamp::now() };
                let account = store.ensure_default_account(made).await.unwrap().id;
                for letter in ["a", "b"] {
                    let roots = vec![format!("/{}", letter.repeat(1 << 20))];
                    let changed = store.set_account_roots(SetAccountRoots { account, roots: roots.clone() });
                    assert_eq!(changed.await.unwrap().roots, roots);
                }
            });
        });
    }
}

#[test]
fn a_single_file_is_read_and_nothing_beside_it() {
    if landlock_abi() == 0 {
        eprintln!("this kernel has no Landlock: nothing was checked");
        return;
    }
    let confined = |named: bool| {
        let confined = thread::spawn(move || {
            let machine = Fixture::new();
            let other = machine.other.path();
            fs::write(other.join("beside"), "").unwrap();
            let mut reach = machine.reach();
            reach.read.extend(named.then(|| other.join("file")));
            let confinement = confine(&reach, Rules::Newest).unwrap();
            refused(fs::read(other.join("beside")), "reading beside the file");
            refused(fs::read_dir(other), "listing its folder");
            refused(fs::write(other.join("file"), ""), "writing the file");
            (fs::read(other.join("file")).is_ok(), confinement, machine)
        });
        let (is_read, confinement, _machine) = confined.join().unwrap();
        (is_read, confinement)
    };
    let (is_read, confinement) = confined(false);
    assert!(!is_read, "the control");
    // A rule that the kernel accepts only in part would be reported as `Partial`.
    assert_eq!(confined(true), (true, confinement));
}

#[test]
fn a_folder_that_is_missing_is_named() {
    let reach = AllowedPaths { write: vec![Path::new("/nowhere/at/all").to_owned()], read: Vec::new() };
    let error = thread::spawn(move || confine(&reach, Rules::Newest).unwrap_err()).join().unwrap();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

/// Searches for `*.log` below a root whose `.gitignore` excludes such files: a file in the root, or a link to one
/// outside.
fn search_by_rules(in_root: bool) -> Vec<String> {
    let machine = Fixture::new();
    let (root, outside) = (machine.own.path(), machine.other.path());
    fs::write(root.join("a.log"), "").unwrap();
    fs::write(outside.join("rules"), "*.log\n").unwrap();
    let rules = root.join(".gitignore");
    if in_root {
        fs::copy(outside.join("rules"), rules).unwrap();
    } else {
        std::os::unix::fs::symlink(outside.join("rules"), rules).unwrap();
    }
    let place = Place::new(root, root, BTreeMap::new(), "/nowhere").with_walk_fence(fence);
    let search = SearchFiles {
        path: AbsolutePath::parse("path", root.to_str().unwrap(), PathEncoding::Plain).unwrap(),
        pattern: "*.log".to_owned(),
        syntax: PatternSyntax::Glob,
        r#type: None,
        hidden: true,
        gitignore: true,
        limit: 10,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(search.run(&place)).unwrap();
    found.matches.into_iter().map(|found| found.path).collect()
}

#[test]
fn a_search_reads_no_rules_outside_its_roots() {
    assert!(search_by_rules(true).is_empty(), "the control: rules in the root count");
    assert_eq!(search_by_rules(false).len(), 1);
}

/// A fence confines only the thread of one search; other threads are not affected.
#[test]
fn a_fence_holds_its_thread_and_what_it_starts() {
    if landlock_abi() == 0 {
        eprintln!("this kernel has no Landlock: nothing was checked");
        return;
    }
    let machine = Fixture::new();
    let (inside, outside) = (machine.own.path().join("file"), machine.other.path().join("file"));
    let fenced = || {
        let folder = fs::File::open(machine.own.path()).unwrap();
        fs::read(&outside).unwrap();
        fence(&[folder.as_fd()]).unwrap();
        fs::read(&inside).unwrap();
        refused(fs::read(&outside), "reading outside");
        refused(fs::write(&inside, "x"), "writing inside");
        refused(fs::read_dir("/etc"), "listing outside");
        thread::scope(|threads| {
            threads.spawn(|| refused(fs::read(&outside), "reading outside on a thread of its own"));
        });
    };
    thread::scope(|threads| threads.spawn(fenced).join().unwrap());
    fs::read(&outside).unwrap();
}
