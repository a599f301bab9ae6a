//! The jail of a VMM under attack.
//!
//! The VMM is assumed to be hostile: it starts a probe in its jail and with its descriptors, which stays there while
//! the VMM runs a guest as usual. The probe is confined by less than the VMM, because QEMU's own sandbox does not apply
//! to it. Every attempt has a control: the same code outside of the jail, which must work.

mod attempts;
mod probe;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    copies::{fork, path_of},
    harness::{Skep, eventually, status_field},
};
use attempts::{ATTEMPTS, Attempt, Control};
use probe::{Canaries, Probe};

/// The descriptors that a VMM starts with, after standard input, output and error.
const INITIAL_DESCRIPTORS: [(&str, u32); 10] = [
    ("monitor", 3),
    ("agent", 4),
    ("console", 5),
    ("tap", 6),
    ("ram", 7),
    ("kernel", 8),
    ("initrd", 9),
    ("root", 10),
    ("layer", 11),
    ("library", 12),
];

/// The descriptors that follow if the guest of the VMM continues a copy of a VM.
const DESCRIPTORS_OF_A_COPY: [(&str, u32); 2] = [("delta", 13), ("pages", 14)];

/// The descriptors of files that VMMs share, which are open for reading only.
const READ_ONLY: [&str; 6] = ["kernel", "initrd", "root", "library", "delta", "pages"];

/// The descriptors of a control, in place of those of a VMM.
const DESCRIPTORS_OF_A_CONTROL: &str = r"
if 'ram' in c['wanted']:
    c['ram'] = os.memfd_create('control', os.MFD_ALLOW_SEALING)
    os.ftruncate(c['ram'], 1 << 20)
if 'tap' in c['wanted']:
    c['tap'] = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(c['tap'], 0x400454ca, struct.pack('16sH22x', b'control', 0x1002))
for name in ['kernel', 'initrd', 'root', 'layer', 'library']:
    if name in c['wanted']:
        c[name] = os.open(c['file'], os.O_RDWR)
";

fn pid_of(vm: &Value) -> u64 {
    vm["pid"].as_u64().unwrap()
}

fn merged(mut values: Value, more: Value) -> Value {
    values.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    values
}

/// Further targets of attempts, besides the canaries.
fn machine(skep: &Skep, sibling: &Value) -> Value {
    let data_dir = fs::canonicalize(skep.data_dir.path()).unwrap();
    let sockets = Path::new("/run/skep").join(skep.namespace().trim_start_matches("skep-"));
    json!({
        "data_dir": data_dir,
        "key": data_dir.join("admin.key"),
        "layers": data_dir.join("keeper/layers"),
        "keeper": skep.pid(),
        "server": skep.server_pid().unwrap(),
        "sibling": sibling["pid"],
        "sibling_socket": sockets.join(sibling["id"].as_str().unwrap()).join("monitor"),
    })
}

/// The state of the template as seen by a jailed process: the hash of its memory, and owner and times of its files.
fn template(probe: u32) -> Vec<String> {
    let open = |name: &str| {
        let number = INITIAL_DESCRIPTORS.iter().find(|(known, _)| *known == name).unwrap().1;
        format!("/proc/{probe}/fd/{number}")
    };
    let memory = Sha256::digest(fs::read(open("ram")).unwrap());
    let memory: String = memory.iter().map(|byte| format!("{byte:02x}")).collect();
    let files = ["kernel", "initrd", "root"].map(|name| {
        let found = fs::metadata(open(name)).unwrap();
        format!("{name} {} {:?} {:?}", found.len(), found.permissions(), found.modified().unwrap())
    });
    [vec![memory, format!("{:?}", fs::metadata(open("ram")).unwrap().permissions())], files.to_vec()].concat()
}

/// Runs the control of an attempt. Returns why the attempt proves nothing, where its control fails.
fn control(attempt: &Attempt, folder: &tempfile::TempDir, machine: &Value) -> Option<String> {
    // It gets its own canaries, because it may destroy them.
    let canaries = Canaries::new();
    let facts = canaries.describe();
    let wanted: Vec<&str> = INITIAL_DESCRIPTORS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| attempt.code.contains(&format!("c['{name}']")))
        .collect();
    let more = json!({"wanted": wanted, "folders": [facts["writable"]]});
    let code = format!("{DESCRIPTORS_OF_A_CONTROL}\n{}", attempt.code);
    let mut probe = Probe::outside(folder, attempt.control == Control::Namespaces);
    let outcome = probe.attempt(&code, &merged(merged(machine.clone(), facts), more));
    let lacking = ["ENOSYS", "EAFNOSUPPORT", "ENODEV", "EOPNOTSUPP"];
    let absent = attempt.control == Control::IfBuiltIn
        && lacking.iter().any(|errno| outcome == format!("refused: {errno}"));
    if absent {
        eprintln!("this kernel cannot `{}`: {outcome}", attempt.name);
    }
    (!absent && !outcome.starts_with("worked"))
        .then(|| format!("no control for `{}`: {outcome}", attempt.name))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attempt_leaves_the_jail_of_a_vmm() {
    let (skep, folder) = probe::start().await;
    let vms = skep.boot(2).await;
    let (mut probe, probe_pid) = Probe::in_jail_of(pid_of(&vms[0]));
    let mut canaries = Canaries::new();
    let machine = machine(&skep, &vms[1]);
    let numbers: BTreeMap<&str, u32> = INITIAL_DESCRIPTORS.into_iter().collect();
    let facts = merged(merged(machine.clone(), canaries.describe()), json!(numbers));
    let before = template(probe_pid);

    let mut faults = Vec::new();
    for attempt in ATTEMPTS {
        let outcome = probe.attempt(attempt.code, &facts);
        if !outcome.starts_with("refused: ") {
            faults.push(format!("a VMM can {}: {outcome}", attempt.name));
        }
        let touched = canaries.touched();
        if !touched.is_empty() {
            faults.push(format!("`{}` touched {touched:?}", attempt.name));
        }
        faults.extend(control(attempt, &folder, &machine));
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(ATTEMPTS.len() > 20);
    assert_eq!(template(probe_pid), before, "the template has changed");
    for vm in &vms {
        assert_eq!(skep.output(pid_of(vm), "echo alive").await, "alive");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vmm_is_born_with_its_own_descriptors_and_no_others() {
    let (skep, _folder) = probe::start().await;
    let vm = skep.boot(1).await.remove(0);
    is_born_with(&vm, &INITIAL_DESCRIPTORS);
    let of_a_copy = [&INITIAL_DESCRIPTORS[..], &DESCRIPTORS_OF_A_COPY].concat();
    let forked = fork(&skep, &vm, &json!({})).await.remove(0);
    is_born_with(&forked, &of_a_copy);
    skep.post(&format!("{}/snapshot", path_of(&vm)), &json!({"name": "stored"})).await.ok(201);
    let booted = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201)["vms"][0].clone();
    is_born_with(&booted, &of_a_copy);
}

/// Fails unless the VMM of this VM started with these descriptors and standard input, output and error.
fn is_born_with(vm: &Value, expected: &[(&str, u32)]) {
    let (mut probe, pid) = Probe::in_jail_of(pid_of(vm));
    let outcome = probe.attempt("import json; found = json.dumps(born_with)", &json!({}));
    let text = outcome.strip_prefix("worked: '").and_then(|rest| rest.strip_suffix('\''));
    let text = text.unwrap_or_else(|| panic!("{outcome}"));
    let mut open: BTreeMap<u32, String> = serde_json::from_str(text).unwrap();
    // The folder that the probe itself listed.
    open.retain(|_, target| !target.starts_with("/proc/"));
    let numbers: Vec<u32> = (0..3).chain(expected.iter().map(|(_, number)| *number)).collect();
    assert_eq!(open.keys().copied().collect::<Vec<_>>(), numbers, "{open:?}");
    let kinds =
        ["/dev/null", "/dev/null", "pipe:", "socket:", "socket:", "socket:", "/dev/net/tun", "/memfd:"];
    for (number, kind) in (0..).zip(kinds) {
        assert!(open[&number].starts_with(kind), "{number}: {open:?}");
    }
    for (name, number) in expected {
        // It writes nothing, and is refused unless the descriptor is open for writing.
        let written = probe.attempt(&format!("os.pwrite({number}, b'', 0)"), &json!({}));
        if READ_ONLY.contains(name) {
            assert_eq!(written, "refused: EBADF", "{name}: {open:?}");
        }
        // The control.
        assert!(*name != "layer" || written == "worked: None", "{written}");
    }
    for (name, number) in &DESCRIPTORS_OF_A_COPY {
        let is_memory = open.get(number).is_none_or(|target| target.starts_with("/memfd:"));
        assert!(is_memory, "{name}: {open:?}");
    }
    // The control: an additional descriptor is detected.
    let more = probe.attempt("os.dup(3); found = len(os.listdir('/proc/self/fd'))", &json!({}));
    let fewer = probe.attempt("found = len(os.listdir('/proc/self/fd'))", &json!({}));
    assert_ne!(more, fewer);
    preloads_memory_functions_alone(pid);
    // The probe has the filters of the jail, and QEMU's own sandbox adds one.
    let filters = |pid: u32| status_field(pid, "Seccomp_filters").parse::<u32>().unwrap();
    assert_eq!(filters(pid_of(vm).try_into().unwrap()), filters(pid) + 1);
}

/// Fails unless the library that VMMs preload replaces these functions only. `pid` is a process that has its descriptor.
fn preloads_memory_functions_alone(pid: u32) {
    let (_, descriptor) = INITIAL_DESCRIPTORS.iter().find(|(name, _)| *name == "library").unwrap();
    let library = format!("/proc/{pid}/fd/{descriptor}");
    let mut command = Command::new("nm");
    let output = command.args(["--dynamic", "--defined-only", "--format=just-symbols", &library]).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "mmap\nmmap64\n", "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_everybody_stays_in_the_jail() {
    let (skep, folder) = probe::start().await;
    let vms = skep.boot(2).await;
    let mut canaries = Canaries::new();
    // The end of the victim shows that the signal was sent to all reachable processes.
    let code = "
victim = os.fork() or time.sleep(60)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
os.kill(-1, signal.SIGUSR1)
found = os.waitpid(victim, 0)[1]";
    let (mut probe, _) = Probe::in_jail_of(pid_of(&vms[0]));
    assert_eq!(probe.attempt(code, &json!({})), "worked: 10");
    assert_eq!(Probe::outside(&folder, true).attempt(code, &json!({})), "worked: 10");
    assert_eq!(canaries.touched(), Vec::<&str>::new());
    for vm in &vms {
        assert_eq!(skep.output(pid_of(vm), "echo alive").await, "alive");
    }
}

/// Processes whose control group has this name in its path.
fn processes_of(group: &str) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let member = |path: &Path| fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(group));
    all.filter(|entry| member(&entry.path())).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_bomb_stays_within_its_limit_and_ends_with_its_group() {
    let (skep, folder) = probe::start().await;
    let vms = skep.boot(2).await;
    let bomb = "
found = 0
while found < 200:
    try:
        child = os.fork()
    except BlockingIOError:
        break
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    found += 1";
    let (mut probe, _) = Probe::in_jail_of(pid_of(&vms[0]));
    let outcome = probe.attempt(bomb, &json!({}));
    let forked: usize = outcome.strip_prefix("worked: ").and_then(|rest| rest.parse().ok()).expect(&outcome);
    let group = vms[0]["id"].as_str().unwrap();
    let living = processes_of(group);
    assert!(forked > 10 && living > 10 && living <= 64, "{forked} were forked, {living} live");
    assert_eq!(Probe::outside(&folder, true).attempt(bomb, &json!({})), "worked: 200");

    assert_eq!(skep.output(pid_of(&vms[1]), "echo alive").await, "alive");
    skep.delete(&format!("/api/swarm/vm/{}", vms[0]["pid"])).await.ok(200);
    eventually("the end of the whole group", async || processes_of(group) == 0).await;
    let another = skep.boot_one().await;
    assert_eq!(skep.output(another, "echo alive").await, "alive");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_dies_in_its_group() {
    let (skep, folder) = probe::start().await;
    let vms = skep.boot(3).await;
    let private = "found = len(bytearray(b'x') * (900 << 20))";
    let shared = "
file = os.memfd_create('bomb')
found = sum(os.write(file, bytes(1 << 20)) for _ in range(900))";
    for (code, vm) in [private, shared].into_iter().zip(&vms) {
        let (mut probe, _) = Probe::in_jail_of(pid_of(vm));
        let outcome = probe.attempt(code, &json!({}));
        // The kernel may kill the VMM as well.
        assert!(outcome == "died: 9" || outcome == "gone", "{code}: {outcome}");
        assert_eq!(Probe::outside(&folder, true).attempt(code, &json!({})), "worked: 943718400");
        assert_eq!(skep.output(pid_of(&vms[2]), "echo alive").await, "alive");
    }
    assert_eq!(skep.health().await["status"], "ok");
}
