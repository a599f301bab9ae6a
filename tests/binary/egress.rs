//! Connections of VMs to the outside. The server runs in a network namespace that stands for its machine, beside one that
//! stands for the internet, with public addresses and private ones.

mod attacks;
mod changes;
mod floods;
mod forged;
mod life;
mod limits;
mod peers;
mod states;
pub(crate) mod tools;
mod world;

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{binary::send, eventually, process::kill, temp_dir};

use self::world::World;
use crate::harness::Skep;

/// What the server of the test counts as public, and its name server.
const OPTIONS: [&str; 4] = ["--egress-public", "203.0.113.0/24", "--egress-resolver", "203.0.113.53:53"];
/// Addresses that are not public, or the machine's own, which an operator may allow.
const PRIVATE: &str = "203.0.113.1,127.0.0.1,10.9.0.1,169.254.169.254";

/// The policy of most VMs of these tests. It allows names that lead to forbidden addresses, too.
fn policy() -> Value {
    json!({"allow": ["api.test", "*.wild.test", "own.test", "loop.test", "priv.test", "meta.test", "203.0.113.8"]})
}

async fn boot(skep: &Skep, egress: Value) -> u64 {
    let answer = skep.post("/api/swarm/boot", &json!({"egress": egress})).await.ok(201);
    assert_eq!(answer["vms"][0]["egress"], egress, "{answer}");
    answer["vms"][0]["pid"].as_u64().unwrap()
}

/// What `curl` prints in a VM, or its exit code. It waits for as long as a busy machine may need; see [`is_silent`].
async fn fetch(skep: &Skep, vm: u64, arguments: &str) -> Result<String, i64> {
    let answer = skep.exec(vm, &format!("curl -sS -m 20 {arguments}")).await;
    match answer["exit_code"].as_i64().unwrap() {
        0 => Ok(answer["stdout"].as_str().unwrap().trim().to_owned()),
        code => Err(code),
    }
}

/// Whether `curl` fails within five seconds, with or without a refusal. An idle machine answers in less than that.
async fn is_silent(skep: &Skep, vm: u64, arguments: &str) -> bool {
    fetch(skep, vm, &format!("-m 5 {arguments}")).await.is_err()
}

/// Whether `curl` was refused at once: the name is not resolved (6), or the connection is reset (7, 55, 56) or ends without
/// an answer (52).
fn is_refusal(fetched: &Result<String, i64>) -> bool {
    matches!(fetched, Err(6 | 7 | 52 | 55 | 56))
}

/// Asserts what the VMs with a policy, with `all` and with `none` reach.
async fn assert_policies(skep: &Skep, [listed, all, none]: [u64; 3]) {
    let world = |host: &str| Ok(format!("world {host}"));
    assert_eq!(fetch(skep, listed, "http://api.test/").await, world("api.test"));
    assert_eq!(fetch(skep, listed, "http://a.wild.test/").await, world("a.wild.test"));
    assert_eq!(fetch(skep, listed, "http://203.0.113.8/").await, world("203.0.113.8"));
    // Not allowed for the first VM. The control: the same for the second one, which may reach all that is public.
    for other in ["http://other.test/", "http://203.0.113.7/", "-H 'Host: other.test' http://api.test/"] {
        let refused = fetch(skep, listed, other).await;
        assert!(is_refusal(&refused), "{other}: {refused:?}");
        let answered = fetch(skep, all, other).await;
        assert!(answered.as_ref().is_ok_and(|text| text.starts_with("world ")), "{other}: {answered:?}");
        assert!(is_silent(skep, none, other).await, "{other}");
    }
}

/// Targets that are forbidden, whatever a policy allows.
const FORBIDDEN: [&str; 7] = [
    "http://own.test:8000/",
    "http://loop.test:8000/",
    "http://priv.test/",
    "http://meta.test/",
    "http://203.0.113.1:8000/",
    "http://10.9.0.1/",
    "http://169.254.169.254/",
];

#[test]
fn a_vm_reaches_what_its_policy_allows_and_nothing_else() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let [listed, all, none] =
            [boot(&skep, policy()).await, boot(&skep, json!("all")).await, boot(&skep, json!("none")).await];
        let vms = [listed, all, none];
        assert_policies(&skep, vms).await;
        for target in FORBIDDEN {
            for vm in [listed, all] {
                let refused = fetch(&skep, vm, target).await;
                assert!(is_refusal(&refused), "{target}: {refused:?}");
            }
        }
        let report = skep.get(&format!("/api/swarm/vm/{listed}/egress")).await.ok(200);
        assert_eq!(report["policy"], policy(), "{report}");
        let reasons = report["tries"].to_string();
        for reason in [
            "the policy does not allow the name",
            "the policy does not allow it",
            "the first bytes name \\\"other.test\\\"",
            "the address is not public",
            "the address belongs to the server's machine",
        ] {
            assert!(reasons.contains(reason), "{reason}: {report:#}");
        }
        assert!(
            report["sent_bytes"].as_u64() > Some(0) && report["received_bytes"].as_u64() > Some(0),
            "{report}"
        );

        // The control: where the operator allows these addresses, VMs reach them. The policies survive the restart.
        let stopped = skep.stop_and_leave_vms();
        let skep = stopped.start_with(&[&OPTIONS[..], &["--egress-allow", PRIVATE]].concat()).await;
        for target in FORBIDDEN {
            let reached = fetch(&skep, all, target).await;
            assert!(reached.is_ok(), "{target}: {reached:?}");
        }
        assert_policies(&skep, vms).await;
        assert_default_of_account(&skep).await;
        assert_ports(&skep).await;
        assert_presets(&skep).await;
        assert_refusals_are_counted(&skep).await;
    });
}

#[test]
fn the_operator_and_the_network_of_the_vms_close_what_all_opens() {
    World::run(async || {
        let deny = ["--egress-deny", "other.test,203.0.113.8"];
        let skep = Skep::start_on(temp_dir(), &[&OPTIONS[..], &deny].concat()).await;
        let [vm, sibling] = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        let narrowed = boot(&skep, json!("all")).await;
        for denied in [
            "http://other.test/",
            "http://203.0.113.8/",
            // Behind a name and an address that are allowed.
            "-H 'Host: other.test' http://api.test/",
            "-H 'Host: other.test' http://203.0.113.7/",
        ] {
            let refused = fetch(&skep, vm, denied).await;
            assert!(is_refusal(&refused), "{denied}: {refused:?}");
        }
        let reasons = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200)["tries"].to_string();
        assert!(reasons.contains("the operator forbids it"), "{reasons}");
        assert!(reasons.contains("\\\"other.test\\\", which the operator forbids"), "{reasons}");
        let world = |host: &str| Ok(format!("world {host}"));
        assert_eq!(fetch(&skep, vm, "http://api.test/").await, world("api.test"));
        assert_eq!(fetch(&skep, vm, "http://203.0.113.7/").await, world("203.0.113.7"));

        assert_siblings_are_closed(&skep, vm, sibling).await;

        let path = format!("/api/swarm/vm/{vm}");
        let change = json!({"egress": {"allow": ["api.test"]}});
        send(skep.request(Method::PATCH, &path).json(&change)).await.ok(200);
        skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
        skep.post(&format!("{path}/resume"), &json!({})).await.ok(200);
        assert_eq!(fetch(&skep, vm, "http://api.test/").await, world("api.test"));
        assert!(is_refusal(&fetch(&skep, vm, "http://203.0.113.7/").await));

        let skep = skep.stop_and_leave_vms().start_with(&[&OPTIONS[..], &["--egress", "off"]].concat()).await;
        assert!(is_silent(&skep, vm, "http://api.test/").await);
        let refused = skep.post("/api/swarm/boot", &json!({"egress": "all"})).await;
        refused.refused(503, "swarm_unavailable");
        // A policy that is taken away meanwhile is not applied later.
        let path = format!("/api/swarm/vm/{narrowed}");
        send(skep.request(Method::PATCH, &path).json(&json!({"egress": "none"}))).await.ok(200);
        // The controls: without these settings the same is reached.
        let skep = skep.stop_and_leave_vms().start_with(&OPTIONS).await;
        assert!(is_silent(&skep, narrowed, "http://api.test/").await);
        assert_eq!(fetch(&skep, vm, "http://api.test/").await, world("api.test"));
        assert_eq!(fetch(&skep, sibling, "http://203.0.113.8/").await, world("203.0.113.8"));
        assert_eq!(fetch(&skep, sibling, "http://other.test/").await, world("other.test"));
    });
}

/// Asserts that a VM reaches neither a server in another VM nor the proxy's own port.
async fn assert_siblings_are_closed(skep: &Skep, vm: u64, sibling: u64) {
    let serve = "cd /etc && (python3 -m http.server 8000 > /dev/null 2>&1 &); hostname -I | cut -d ' ' -f 1";
    let target = format!("http://{}:8000/hostname", skep.output(sibling, serve).await.trim());
    eventually("the server in the sibling", async || fetch(skep, sibling, &target).await.is_ok()).await;
    assert!(is_silent(skep, vm, &target).await, "{target}");
    let bridge = skep.output(vm, "grep nameserver /etc/resolv.conf | cut -d ' ' -f 2").await;
    let reached = fetch(skep, vm, &format!("-m 5 http://{}:7701/", bridge.trim())).await;
    // It times out, rather than being refused by the proxy: the packet filter drops it.
    assert_eq!(reached, Err(28));
}

#[test]
fn names_are_looked_up_by_the_name_servers_that_the_machine_has_now() {
    let folder = temp_dir();
    let file = folder.path().join("resolv.conf");
    // Nobody answers there.
    fs::write(&file, "nameserver 203.0.113.8\n").unwrap();
    World::run_with_resolv_conf(file.clone(), async move || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS[..2]).await;
        let vm = boot(&skep, policy()).await;
        assert!(is_refusal(&fetch(&skep, vm, "http://api.test/").await));
        fs::write(&file, "nameserver 203.0.113.53\n").unwrap();
        let world = Ok("world api.test".to_owned());
        eventually("the new name server", async || fetch(&skep, vm, "http://api.test/").await == world).await;
        // The next process asks it too.
        kill(life::recorded(skep.data_dir.path()));
        eventually("the next process", async || fetch(&skep, vm, "http://api.test/").await == world).await;
    });
}

/// Asserts that a boot without a policy takes that of the account, and that one with a policy does not.
async fn assert_default_of_account(skep: &Skep) {
    let account = skep.get("/api/whoami").await.ok(200)["account"]["id"].as_str().unwrap().to_owned();
    let change = skep.request(Method::PATCH, &format!("/api/accounts/{account}"));
    let changed = send(change.json(&json!({"egress": policy()}))).await.ok(200);
    assert_eq!(changed["egress"], policy());
    let booted = skep.post("/api/swarm/boot", &json!({})).await.ok(201);
    assert_eq!(booted["vms"][0]["egress"], policy(), "{booted}");
    let vm = booted["vms"][0]["pid"].as_u64().unwrap();
    assert_eq!(fetch(skep, vm, "http://api.test/").await.as_deref(), Ok("world api.test"));
    assert!(is_refusal(&fetch(skep, vm, "http://other.test/").await));
    let closed = boot(skep, json!("none")).await;
    assert!(is_silent(skep, closed, "http://api.test/").await);
}

/// Asserts that a policy with ports opens no other port of the same hosts.
async fn assert_ports(skep: &Skep) {
    let hosts = ["api.test", "203.0.113.7"];
    let [limited, control] =
        [boot(skep, json!({"allow": hosts, "ports": [80]})).await, boot(skep, json!({"allow": hosts})).await];
    for host in hosts {
        assert_eq!(fetch(skep, limited, &format!("http://{host}/")).await, Ok(format!("world {host}")));
        let other = format!("http://{host}:8000/");
        let refused = fetch(skep, limited, &other).await;
        assert!(is_refusal(&refused), "{other}: {refused:?}");
        assert_eq!(fetch(skep, control, &other).await, Ok(format!("world {host}:8000")));
    }
}

/// Asserts that a preset opens its hosts and nothing else, and that a VM without it does not reach them.
async fn assert_presets(skep: &Skep) {
    let vm = boot(skep, json!({"presets": ["gitlab"]})).await;
    assert_eq!(fetch(skep, vm, "http://gitlab.com/").await.as_deref(), Ok("world gitlab.com"));
    for other in ["http://api.test/", "http://203.0.113.7/", "-H 'Host: api.test' http://gitlab.com/"] {
        let refused = fetch(skep, vm, other).await;
        assert!(is_refusal(&refused), "{other}: {refused:?}");
    }
    let without = boot(skep, json!({"allow": ["api.test"]})).await;
    assert!(is_refusal(&fetch(skep, without, "http://gitlab.com/").await));
    let path = format!("/api/swarm/vm/{without}");
    let change = json!({"egress": {"allow": ["api.test"], "presets": ["gitlab"]}});
    send(skep.request(Method::PATCH, &path).json(&change)).await.ok(200);
    assert_eq!(fetch(skep, without, "http://gitlab.com/").await.as_deref(), Ok("world gitlab.com"));
    let report = skep.get(&format!("{path}/egress")).await.ok(200);
    assert_eq!(report["policy"], change["egress"], "{report}");
}

/// Asserts that the metrics count what was refused by its reason, and nothing by what a guest sent.
async fn assert_refusals_are_counted(skep: &Skep) {
    let metrics = skep.get("/metrics").await.ok(200);
    let metrics = metrics.as_str().unwrap();
    let count = |reason: &str| -> f64 {
        let line = format!("skep_egress_refused_total{{reason=\"{reason}\"}} ");
        metrics
            .lines()
            .find_map(|found| found.strip_prefix(&line))
            .unwrap_or_else(|| panic!("{metrics}"))
            .parse()
            .unwrap()
    };
    assert!(count("policy") >= 1.0 && count("other_host") >= 1.0, "{metrics}");
    assert!(!metrics.contains("other.test"), "{metrics}");
}

#[test]
fn a_change_of_policy_ends_what_it_forbids() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vm = boot(&skep, policy()).await;
        for (file, url) in [("ends", "http://api.test/slow"), ("stays", "http://203.0.113.8/slow")] {
            let command =
                format!("(curl -sS -N {url} > /root/{file}; touch /root/{file}.over) > /dev/null 2>&1 &");
            skep.output(vm, &command).await;
        }
        let size = async |file: &str| skep.output(vm, &format!("stat -c %s /root/{file} || echo 0")).await;
        eventually("both", async || size("ends").await != "0" && size("stays").await != "0").await;
        let change = json!({"egress": {"allow": ["203.0.113.8", "b.test"]}});
        let path = format!("/api/swarm/vm/{vm}");
        let changed = send(skep.request(Method::PATCH, &path).json(&change)).await.ok(200);
        assert_eq!(changed["egress"], change["egress"]);
        eventually("the end of one", async || {
            skep.exec(vm, "test -e /root/ends.over").await["exit_code"] == 0
        })
        .await;
        let before = size("stays").await;
        eventually("the other", async || size("stays").await != before).await;
        assert!(fetch(&skep, vm, "http://api.test/").await.is_err());
        assert_eq!(fetch(&skep, vm, "http://b.test/").await.as_deref(), Ok("world b.test"));

        let wrong = json!({"egress": {"allow": ["10.0.0.1/8"]}});
        let refused = send(skep.request(Method::PATCH, &path).json(&wrong)).await;
        assert!(refused.refused(400, "invalid_value").contains("give 10.0.0.0/8"));
    });
}

#[test]
fn policies_outlive_the_processes_that_apply_them() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vms =
            [boot(&skep, policy()).await, boot(&skep, json!("all")).await, boot(&skep, json!("none")).await];
        let process = egress_process(&skep).unwrap();
        assert_confined(process);
        let address =
            async || skep.output(vms[0], "getent ahostsv4 api.test | head -n 1 | cut -d ' ' -f 1").await;
        let before = address().await;
        kill(process);
        assert_policies(&skep, vms).await;
        assert_ne!(egress_process(&skep), Some(process));
        assert_eq!(address().await, before, "an address means the same name");

        let server = skep.server_pid().unwrap();
        kill(server);
        skep.wait_for_server_after(server).await;
        assert_policies(&skep, vms).await;

        let crashed = skep.crash();
        let skep = crashed.start_with(&OPTIONS).await;
        assert_policies(&skep, vms).await;
    });
}

/// The egress process: a child of the keeper, which inherits it from the stage.
fn egress_process(skep: &Skep) -> Option<u32> {
    let keeper = skep.pid();
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    let is_egress = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|line| line.contains("egress-process"))
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_egress)
}

/// Asserts that a process has no privilege, a filter of system calls, a user and a control group of its own.
fn assert_confined(pid: u32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("CapEff:"), "0000000000000000", "{status}");
    assert_eq!(field("CapBnd:"), "0000000000000000", "{status}");
    assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".to_owned(), "1".to_owned()), "{status}");
    let uid: u32 = field("Uid:").split_whitespace().next().unwrap().parse().unwrap();
    assert!(uid > 1 << 16, "{uid}");
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(groups.contains("/egress"), "{groups}");
    // Version 1 has a hierarchy for memory alone.
    let paths = groups.lines().filter_map(|line| line.rsplit_once(':'));
    let limits: Vec<String> = paths
        .flat_map(|(_, path)| {
            ["/sys/fs/cgroup{}/memory.max", "/sys/fs/cgroup/memory{}/memory.limit_in_bytes"]
                .map(|file| file.replace("{}", path))
        })
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .collect();
    assert!(limits.iter().any(|limit| limit.trim() == (256_u64 << 20).to_string()), "{limits:?}");
}
