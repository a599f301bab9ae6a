//! Tests which files a confined thread may access, with the newest rules and with those of older kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::{
            net::{SocketAddr, UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::Command,
    thread,
};

use jiff::Timestamp;
use rustix::{
    fs::{CWD, FallocateFlags, Mode, fallocate, mkfifoat},
    io::Errno,
    net::{AddressFamily, SocketType, socket},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
    thread::{UnshareFlags, unshare_unsafe},
};
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
fn a_confined_server_reads_what_libraries_need() {
    for rules in [Rules::Newest, Rules::Abi2] {
        confined(rules, |_| {
            assert!(fs::read("/etc/passwd").is_ok());
            assert!(fs::read("/proc/self/status").is_ok());
            assert!(fs::read_dir("/usr/lib").is_ok());
            assert!(fs::write("/dev/null", "x").is_ok());
            refused(fs::write("/etc/skep-test", ""), "writing below /etc");
            refused(fs::read_dir("/root"), "listing /root");
        });
    }
}

/// The numbers of capabilities(7).
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;

fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & (1 << number) != 0
}

/// What an attacker in the server would try beside files, and whether it succeeds. The socket is that of a thread outside.
fn attacks(folder: &Path, elsewhere: &SocketAddr) -> BTreeMap<&'static str, bool> {
    let myself = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let netlink = socket(AddressFamily::NETLINK, SocketType::DGRAM, None);
    let packets = socket(AddressFamily::PACKET, SocketType::RAW, None);
    // SAFETY: no descriptor table is unshared.
    let namespace = unsafe { unshare_unsafe(UnshareFlags::NEWNS) };
    BTreeMap::from([
        ("start a program", Command::new("/usr/bin/true").status().is_ok()),
        ("take a descriptor of a process", pidfd_getfd(myself, 0, PidfdGetfdFlags::empty()).is_ok()),
        ("open a netlink socket", netlink.is_ok()),
        ("open a packet socket", packets.is_ok()),
        ("make a mount namespace", namespace.is_ok()),
        ("make a pipe that has a name", mkfifoat(CWD, folder.join("pipe"), Mode::RWXU).is_ok()),
        ("connect to an abstract socket", UnixStream::connect_addr(elsewhere).is_ok()),
    ])
}

/// Tries the attacks on a thread of its own, which is confined by these rules or free, and returns those that succeed.
fn successful_attacks(rules: Option<Rules>, elsewhere: &SocketAddr) -> Vec<&'static str> {
    let elsewhere = elsewhere.clone();
    let tried = thread::spawn(move || {
        let machine = Fixture::new();
        if let Some(rules) = rules {
            confine(&machine.reach(), rules).unwrap();
            // Landlock would refuse it by EACCES.
            let executed = Command::new("/usr/bin/false").exec();
            assert_eq!(executed.raw_os_error(), Some(Errno::PERM.raw_os_error()));
        }
        // Appends reserve blocks, the server makes and accepts connections, and it starts threads.
        let file = fs::File::create(machine.own.path().join("file")).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4096).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || TcpStream::connect(address).unwrap()).join().unwrap();
        (attacks(machine.own.path(), &elsewhere), machine)
    });
    let (tried, _machine) = tried.join().unwrap();
    tried.into_iter().filter(|(_, succeeded)| *succeeded).map(|(name, _)| name).collect()
}

#[test]
fn a_confined_server_starts_no_program_and_makes_no_call_that_only_an_attacker_needs() {
    let elsewhere = SocketAddr::from_abstract_name(format!("skep-test-{}", std::process::id())).unwrap();
    let _listener = UnixListener::bind_addr(&elsewhere).unwrap();
    let free = successful_attacks(None, &elsewhere);
    // A container may deny `pidfd_getfd` to everybody.
    let mut expected = vec![
        "connect to an abstract socket",
        "make a pipe that has a name",
        "open a netlink socket",
        "start a program",
    ];
    expected.extend(has_capability(CAP_SYS_ADMIN).then_some("make a mount namespace"));
    expected.extend(has_capability(CAP_NET_RAW).then_some("open a packet socket"));
    assert!(expected.iter().all(|attack| free.contains(attack)), "the control: {free:?}");
    let of_older_kernels = ["connect to an abstract socket"];
    let newest = if landlock_abi() < 6 { &of_older_kernels[..] } else { &[] };
    assert_eq!(successful_attacks(Some(Rules::Newest), &elsewhere), newest);
    assert_eq!(successful_attacks(Some(Rules::Abi2), &elsewhere), of_older_kernels);
}

/// A root may be replaced by a link after it was checked.
#[test]
fn a_root_that_is_a_link_is_refused() {
    let machine = Fixture::new();
    let link = machine.other.path().join("link");
    std::os::unix::fs::symlink(machine.own.path(), &link).unwrap();
    let confined = |root: &Path| {
        let reach = AllowedPaths { write: vec![root.to_owned()], read: Vec::new() };
        thread::spawn(move || confine(&reach, Rules::Newest).map(drop)).join().unwrap()
    };
    let error = confined(&link).unwrap_err();
    assert!(error.to_string().contains(link.to_str().unwrap()), "{error}");
    confined(machine.own.path()).unwrap();
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
