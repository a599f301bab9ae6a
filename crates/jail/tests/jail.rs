//! Tests of real processes in real jails. Needs root. This binary is also the stage.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Trial};
use rustix::process::{getpid, getuid, set_child_subreaper};
use skep_jail::{
    Cgroup, CgroupLimits, CgroupTree, Confinement, Handles, Jail, ProcessSpec, ResourceLimits, Seclusion,
    Session, spawn,
};

const UID: u32 = 0x7fff_0000;
const FILE_BYTES: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("stage") {
        return skep_jail::stage::main();
    }
    let arguments = Arguments::from_args();
    assert!(arguments.list || getuid().is_root(), "the tests of the jail need root: run them with sudo");
    set_child_subreaper(Some(getpid())).unwrap();
    let trials = [
        ("it_sees_nothing_of_the_machine", it_sees_nothing_of_the_machine as fn()),
        ("it_has_no_privilege", it_has_no_privilege),
        ("it_inherits_only_what_it_was_given", it_inherits_only_what_it_was_given),
        ("denied_calls_fail", denied_calls_fail),
        ("it_has_a_session_of_its_own", it_has_a_session_of_its_own),
        ("a_file_over_the_limit_is_an_error_not_the_end", a_file_over_the_limit_is_an_error_not_the_end),
        ("a_program_that_is_missing_is_named", a_program_that_is_missing_is_named),
        ("a_device_belongs_to_its_user", a_device_belongs_to_its_user),
        ("removing_its_group_leaves_nothing", removing_its_group_leaves_nothing),
        ("a_memory_hog_dies_in_its_group", a_memory_hog_dies_in_its_group),
        ("a_processor_hog_is_held_to_its_quota", a_processor_hog_is_held_to_its_quota),
        ("a_group_name_is_taken_once", a_group_name_is_taken_once),
        ("a_tree_is_removed_with_all_that_runs_in_it", a_tree_is_removed_with_all_that_runs_in_it),
        ("a_mere_user_sees_the_machine_without_privilege", a_mere_user_sees_the_machine_without_privilege),
        ("a_mere_user_ends_with_whoever_started_it", a_mere_user_ends_with_whoever_started_it),
        ("root_starts_no_process_as_its_own_user", root_starts_no_process_as_its_own_user),
        ("only_the_named_folders_hold_programs", only_the_named_folders_hold_programs),
    ];
    let trials = trials.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    if !arguments.list {
        CgroupTree::create(&tree_name()).unwrap().remove().unwrap();
    }
    conclusion.exit_code()
}

fn it_sees_nothing_of_the_machine() {
    let text =
        output("ls -a /; echo; ls /dev; echo; ls /proc; echo; hostname; cat /proc/1/net/dev; ls /etc/passwd");
    let mut parts = text.split("\n\n");
    assert_eq!(lines(parts.next()), [".", "..", "bin", "dev", "lib", "lib64", "proc", "sbin", "usr"]);
    assert_eq!(lines(parts.next()), ["null", "urandom", "zero"]);
    let processes = lines(parts.next());
    assert!(
        processes.iter().all(|name| name.parse::<u32>().is_ok_and(|pid| pid < 100) || name.contains("self"))
    );
    let rest = lines(parts.next());
    assert_eq!(rest.first(), Some(&"jailed"));
    let links: Vec<_> = rest.iter().filter(|line| line.contains(':')).collect();
    assert!(links.len() == 1 && links[0].trim_start().starts_with("lo:"), "{links:?}");
    assert!(!text.contains("/etc/passwd"), "{text}");
}

fn it_has_no_privilege() {
    let text = output("cat /proc/self/status; ls -n /proc/self/status; umask; env");
    for line in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(text.contains(&format!("{line}:\t0000000000000000\n")), "{text}");
    }
    assert!(text.contains(&format!("Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n")), "{text}");
    assert!(text.contains(&format!("Gid:\t{UID}\t{UID}\t{UID}\t{UID}\n")), "{text}");
    assert!(text.contains("NoNewPrivs:\t1\n") && text.contains("Seccomp:\t2\n"), "{text}");
    assert!(text.contains("Groups:\t \n") && text.contains("\n0077\n"), "{text}");
    assert!(!text.contains("PATH=/"), "the environment leaks: {text}");
}

fn it_inherits_only_what_it_was_given() {
    // A descriptor without CLOEXEC, as a library may leave it open in the caller.
    let careless = rustix::io::dup(File::open("/etc/passwd").unwrap()).unwrap();
    let group = group();
    let (reader, writer) = io::pipe().unwrap();
    let second = File::open("/dev/zero").unwrap();
    let handles = handles(&group, vec![writer.into(), second.into()]);
    let _jailed =
        spawn(stage(), &shell("exec >&3; ls /proc/1/fd; head -c 3 <&4 | od -An -tx1"), handles).unwrap();
    assert_eq!(read(reader), "0\n1\n2\n3\n4\n 00 00 00\n");
    drop(careless);
    group.remove().unwrap();
}

fn denied_calls_fail() {
    let text = output(
        "mount -t tmpfs x /dev 2>&1; unshare -U true 2>&1; unshare -m true 2>&1; touch /x /usr/x 2>&1; \
         echo a >/proc/sys/kernel/hostname; python3 -c 'import socket; socket.socket(socket.AF_VSOCK)' 2>&1",
    );
    assert!(!text.contains("a >"), "{text}");
    for wanted in ["mount", "unshare: unshare failed", "Read-only file system", "PermissionError"] {
        assert!(text.contains(wanted), "{wanted} is missing: {text}");
    }
    // Without the filter, `socketpair` of this family fails with `Operation not supported`.
    let text = output("python3 -c 'import socket; socket.socketpair(socket.AF_INET)' 2>&1");
    assert!(text.contains("PermissionError"), "{text}");
    // Control: the same program can create Unix sockets.
    let text = output(
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX); socket.socketpair(); print(\"made\")' 2>&1",
    );
    assert_eq!(text, "made\n");
}

fn it_has_a_session_of_its_own() {
    let group = group();
    let jailed = spawn(stage(), &shell("exec sleep 60"), handles(&group, vec![])).unwrap();
    assert_ne!(session_of(&jailed.pid.to_string()), session_of("self"));
    group.remove().unwrap();
    assert!(jailed.wait(TIMEOUT).unwrap());
    assert!(jailed.reap().is_some());
}

/// As text: if the session leader is outside of the PID namespace, the number is 0, which a typed PID cannot represent.
fn session_of(process: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().to_owned()
}

fn a_file_over_the_limit_is_an_error_not_the_end() {
    let file = std::env::temp_dir().join(format!("{}-file", tree_name()));
    let (reader, writer) = io::pipe().unwrap();
    let group = group();
    let handles = handles(&group, vec![writer.into(), File::create_new(&file).unwrap().into()]);
    let script = "head -c 3000000 /dev/zero >&4 2>/dev/null; echo still here >&3";
    let _jailed = spawn(stage(), &shell(script), handles).unwrap();
    assert_eq!(read(reader), "still here\n");
    assert_eq!(fs::metadata(&file).unwrap().len(), FILE_BYTES);
    fs::remove_file(&file).unwrap();
    group.remove().unwrap();
}

fn a_program_that_is_missing_is_named() {
    let group = group();
    let mut order = shell("true");
    order.program = "/usr/bin/no-such-program".into();
    let error = spawn(stage(), &order, handles(&group, vec![])).unwrap_err();
    assert!(error.to_string().contains("/usr/bin/no-such-program: No such file"), "{error}");
    group.remove().unwrap();
}

fn a_device_belongs_to_its_user() {
    let mut order = shell("ls -ln /dev/full >&3; head -c 1 /dev/full | wc -c >&3");
    let Confinement::Jail(jail) = &mut order.confinement else { unreachable!() };
    jail.devices = vec!["/dev/full".into()];
    let text = output_of(&order);
    assert!(
        text.starts_with("crw------- 1") && text.contains(&UID.to_string()) && text.ends_with("1\n"),
        "{text}"
    );
}

fn removing_its_group_leaves_nothing() {
    let group = group();
    let jailed =
        spawn(stage(), &shell("sleep 600 & sleep 600 & exec sleep 600"), handles(&group, vec![])).unwrap();
    let root = format!("/proc/{}", jailed.pid);
    assert_eq!(fs::metadata(&root).unwrap().uid(), UID);
    assert!(!jailed.wait(Duration::ZERO).unwrap());
    assert!(group.memory_bytes() > 0);
    let cgroup = fs::read_to_string(format!("{root}/cgroup")).unwrap();
    group.remove().unwrap();
    assert!(jailed.wait(TIMEOUT).unwrap());
    assert!(jailed.reap().is_some());
    assert!(!Path::new(&root).exists());
    assert!(cgroup.contains(&tree_name()), "it was never in its group: {cgroup}");
}

fn a_memory_hog_dies_in_its_group() {
    let group = group();
    assert_eq!(group.oom_kills(), 0);
    let hog = "python3 -c 'x = bytearray(400 << 20)'; sleep 600";
    let _jailed = spawn(stage(), &shell(hog), handles(&group, vec![])).unwrap();
    let begun = Instant::now();
    while group.oom_kills() == 0 {
        assert!(begun.elapsed() < TIMEOUT, "nothing was killed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(group.cpu_us() > 0);
    group.remove().unwrap();
}

fn a_processor_hog_is_held_to_its_quota() {
    let throttled = |cpu_percent| {
        let tree = CgroupTree::create(&tree_name()).unwrap();
        let name = format!("hog-{cpu_percent:?}");
        let group = tree.create_group(&name, &CgroupLimits { cpu_percent, ..limits() }).unwrap();
        let _jailed = spawn(stage(), &shell("while :; do :; done"), handles(&group, vec![])).unwrap();
        let begun = Instant::now();
        // Many periods of a quota of 10 %.
        while group.cpu_us() < 300_000 {
            assert!(begun.elapsed() < TIMEOUT, "the hog does nothing: {} us", group.cpu_us());
            std::thread::sleep(Duration::from_millis(10));
        }
        let times = tree.paths().find_map(|root| throttled_in(&root.join(&name))).unwrap();
        group.remove().unwrap();
        times
    };
    assert!(throttled(Some(10)) > 5, "the quota holds up nobody");
    // Control: without a quota it is not throttled.
    assert_eq!(throttled(None), 0);
}

/// How often the processes of a group were throttled.
fn throttled_in(group: &Path) -> Option<u64> {
    let stat = fs::read_to_string(group.join("cpu.stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok())
}

fn a_group_name_is_taken_once() {
    let tree = CgroupTree::create(&tree_name()).unwrap();
    let group = tree.create_group("twice", &limits()).unwrap();
    assert!(tree.create_group("twice", &limits()).is_err());
    // The first group is not affected by the refusal.
    assert!(group.open_procs_files().is_ok());
    group.remove().unwrap();
    assert!(group.open_procs_files().is_err());
}

fn a_tree_is_removed_with_all_that_runs_in_it() {
    let tree = CgroupTree::create(&format!("{}-whole", tree_name())).unwrap();
    let paths: Vec<PathBuf> = tree.paths().map(Path::to_owned).collect();
    assert!(!paths.is_empty() && paths.iter().all(|path| path.is_dir()));
    let group = tree.create_group("one", &limits()).unwrap();
    let jailed = spawn(stage(), &shell("exec sleep 600"), handles(&group, vec![])).unwrap();
    for path in &paths {
        skep_jail::cgroup::remove_tree(path).unwrap();
    }
    assert!(jailed.wait(TIMEOUT).unwrap());
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    // Again: a missing tree is not an error.
    tree.remove().unwrap();
}

fn a_mere_user_sees_the_machine_without_privilege() {
    let (reader, writer) = io::pipe().unwrap();
    let mut order = shell("cat /proc/self/status >&3; ls /etc/passwd >&3; ls /proc/self/fd >&3");
    order.confinement = Confinement::User;
    order.groups = vec![UID + 1];
    let handles = Handles { inherited: vec![writer.into()], ..Handles::default() };
    let jailed = spawn(stage(), &order, handles).unwrap();
    let text = read(reader);
    assert!(jailed.wait(TIMEOUT).unwrap());
    assert!(jailed.reap().unwrap().success());
    assert!(
        text.contains("CapEff:\t0000000000000000\n") && text.contains("CapBnd:\t0000000000000000\n"),
        "{text}"
    );
    assert!(text.contains("NoNewPrivs:\t1\n") && text.contains("/etc/passwd\n"), "{text}");
    assert!(text.contains(&format!("Groups:\t{} \n", UID + 1)), "{text}");
}

fn a_mere_user_ends_with_whoever_started_it() {
    let starting = std::thread::spawn(|| {
        let mut order = shell("exec sleep 600");
        order.confinement = Confinement::User;
        spawn(stage(), &order, Handles::default()).unwrap()
    });
    let jailed = starting.join().unwrap();
    assert!(jailed.wait(TIMEOUT).unwrap(), "it outlives the thread that started it");
    assert!(jailed.reap().is_some());
}

/// Uid 0 would get its capabilities back when it executes the program.
fn root_starts_no_process_as_its_own_user() {
    for (uid, session) in [(0, Session::Caller), (UID, Session::New)] {
        let mut order = shell("true");
        order.confinement = Confinement::SameUser(session);
        order.uid = uid;
        let refused = spawn(stage(), &order, Handles::default()).unwrap_err().to_string();
        assert!(refused.contains(&format!("uid 0 cannot start a process as uid {uid}")), "{refused}");
    }
}

/// A copied program outside of these folders is neither executed directly nor by the dynamic loader; without the list
/// it is.
fn only_the_named_folders_hold_programs() {
    let folder = std::env::temp_dir().join(format!("{}-programs", tree_name()));
    fs::create_dir(&folder).unwrap();
    // By another process: a file cannot be executed while a process that another test starts has it open for writing.
    let copied =
        Command::new("cp").args(["-p", "/usr/bin/echo"]).arg(folder.join("canary")).status().unwrap();
    assert!(copied.success());
    let loader = fs::canonicalize("/lib64/ld-linux-x86-64.so.2").unwrap();
    let script = format!(
        "{canary} ran; {loader} {canary} was loaded; cp {canary} /dev/shm/own && /dev/shm/own was written; /usr/bin/echo ok",
        canary = folder.join("canary").display(),
        loader = loader.display(),
    );
    let output = |executable: Option<Vec<PathBuf>>| {
        let (reader, writer) = io::pipe().unwrap();
        let mut order = shell(&format!("exec >&3 2>/dev/null; {script}"));
        order.confinement = Confinement::Secluded(Seclusion { scratch: vec!["/dev/shm".into()], executable });
        let handles = Handles { inherited: vec![writer.into()], ..Handles::default() };
        let secluded = spawn(stage(), &order, handles).unwrap();
        let text = read(reader);
        assert!(secluded.wait(TIMEOUT).unwrap());
        secluded.reap();
        text
    };
    let programs = ["/usr", "/bin", "/lib64", "/no-such-folder"].map(PathBuf::from);
    assert_eq!(output(Some(programs.to_vec())), "ok\n");
    assert_eq!(output(None), "ran\nwas loaded\nwas written\nok\n", "the control");
    fs::remove_dir_all(folder).unwrap();
}

fn stage() -> &'static Path {
    Path::new("/proc/self/exe")
}

fn shell(script: &str) -> ProcessSpec {
    ProcessSpec {
        program: "/usr/bin/sh".into(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        environment: vec![],
        uid: UID,
        gid: UID,
        groups: vec![],
        oom_score_adj: skep_jail::oom_score_adj::VMM,
        confinement: Confinement::Jail(Jail {
            hostname: "jailed".to_owned(),
            devices: vec![],
            limits: ResourceLimits { open_files: 256, file_bytes: FILE_BYTES, processes: 64 },
        }),
    }
}

fn output(script: &str) -> String {
    output_of(&shell(&format!("exec >&3; {script}")))
}

fn output_of(order: &ProcessSpec) -> String {
    let (reader, writer) = io::pipe().unwrap();
    let group = group();
    let jailed = spawn(stage(), order, handles(&group, vec![writer.into()])).unwrap();
    let text = read(reader);
    assert!(jailed.wait(TIMEOUT).unwrap(), "the script does not end");
    group.remove().unwrap();
    jailed.reap();
    text
}

fn read(reader: io::PipeReader) -> String {
    let mut text = String::new();
    File::from(OwnedFd::from(reader)).read_to_string(&mut text).unwrap();
    text
}

fn lines(part: Option<&str>) -> Vec<&str> {
    part.unwrap_or_default().lines().collect()
}

fn handles(group: &Cgroup, inherited: Vec<OwnedFd>) -> Handles {
    Handles { cgroup_procs_files: group.open_procs_files().unwrap(), stderr: None, inherited }
}

fn tree_name() -> String {
    format!("skep-test-{}-jail", std::process::id())
}

fn limits() -> CgroupLimits {
    CgroupLimits { memory_bytes: 64 << 20, pids: 32, cpu_weight: 100, cpu_percent: None }
}

fn group() -> Cgroup {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let tree = CgroupTree::create(&tree_name()).unwrap();
    tree.create_group(&format!("g{}", NEXT.fetch_add(1, Ordering::Relaxed)), &limits()).unwrap()
}
