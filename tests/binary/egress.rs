//! Connections of VMs to the outside. The server runs in a network namespace that stands for its machine, beside one that
//! stands for the internet, with public addresses and private ones.

mod changes;
mod closed;
mod names;
mod states;
mod thorough;
pub(crate) mod tools;
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{
    binary::{Answer, send},
    eventually, temp_dir,
};

use self::world::World;
use crate::{
    harness::{Skep, command, output_of, printed},
    metrics::value,
};

/// What the server of the test counts as public, and its name server.
const OPTIONS: [&str; 4] = ["--egress-public", "203.0.113.0/24", "--egress-resolver", "203.0.113.53:53"];
/// Addresses that are not public, or the machine's own, which an operator may allow.
const PRIVATE: &str = "203.0.113.1,127.0.0.1,0.0.0.0,10.9.0.1,169.254.169.254";

/// The policy of most VMs of these tests. It allows names that lead to forbidden addresses, too.
fn policy() -> Value {
    let forbidden = ["own.test", "loop.test", "zero.test", "priv.test", "inner.test", "meta.test"];
    let others = ["api.test", "*.wild.test", "alias.test", "203.0.113.8"];
    let allowed = [&others[..], &forbidden].concat();
    json!({"allow": allowed})
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

/// Like [`fetch`] for several addresses, by one process.
async fn fetch_each(skep: &Skep, vm: u64, urls: &[&str]) -> Vec<Result<String, i64>> {
    let command = format!("curl -sS -m 20 -w '\\n%{{exitcode}}\\n' {}; true", urls.join(" "));
    let output = skep.output(vm, &command).await;
    let (mut fetched, mut text) = (Vec::new(), String::new());
    for line in output.lines().filter(|line| !line.is_empty()) {
        match line.parse() {
            Ok(0) => fetched.push(Ok(std::mem::take(&mut text))),
            Ok(code) => fetched.push(Err(code)),
            Err(_) => text.push_str(line),
        }
    }
    assert_eq!(fetched.len(), urls.len(), "{output}");
    fetched
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

/// Runs a script in a VM, and returns what it printed.
async fn python(skep: &Skep, vm: u64, script: &str, arguments: &str) -> String {
    skep.output(
        vm,
        &format!("cat > /root/script.py <<'END'\n{script}\nEND\npython3 /root/script.py {arguments}"),
    )
    .await
    .trim()
    .to_owned()
}

/// The id of the egress process, by the keeper's record.
fn recorded(data_dir: &Path) -> u32 {
    let record: Value = serde_json::from_slice(&fs::read(record_path(data_dir)).unwrap()).unwrap();
    u32::try_from(record["process"]["pid"].as_u64().unwrap()).unwrap()
}

fn record_path(data_dir: &Path) -> PathBuf {
    data_dir.join("keeper/egress.json")
}

/// Begins a connection that receives a line now and then.
async fn begin_long_connection(skep: &Skep, vm: u64) {
    let command =
        "(curl -sS -N http://203.0.113.8/slow > /root/long; touch /root/long.over) > /dev/null 2>&1 &";
    skep.output(vm, command).await;
    wait_for_growth(skep, vm).await;
}

async fn wait_for_growth(skep: &Skep, vm: u64) {
    let size = async || skep.output(vm, "stat -c %s /root/long || echo 0").await;
    let before = size().await;
    eventually("bytes of the long connection", async || size().await != before).await;
    assert_ne!(skep.exec(vm, "test -e /root/long.over").await["exit_code"], 0, "it ended");
}

/// Waits until the connection that writes to this file has ended.
async fn wait_for_connection_end(skep: &Skep, vm: u64, name: &str) {
    let has_ended = format!("test -e /root/{name}.over");
    eventually("the end of a connection", async || skep.exec(vm, &has_ended).await["exit_code"] == 0).await;
}

async fn change(skep: &Skep, vm: u64, policy: &Value) -> Answer {
    let request = skep.request(Method::PATCH, &format!("/api/swarm/vm/{vm}"));
    send(request.json(&json!({"egress": policy}))).await
}

/// Asserts what the VMs with a policy, with `all` and with `none` reach.
async fn assert_policies(skep: &Skep, [listed, all, none]: [u64; 3]) {
    let world = |host: &str| Ok(format!("world {host}"));
    assert_eq!(fetch(skep, listed, "http://api.test/").await, world("api.test"));
    assert_eq!(fetch(skep, listed, "http://a.wild.test/").await, world("a.wild.test"));
    assert_eq!(fetch(skep, listed, "http://203.0.113.8/").await, world("203.0.113.8"));
    // Not allowed for the first VM. The control: the same for the second one, which may reach all that is public.
    let others = ["http://other.test/", "http://203.0.113.7/", "-H 'Host: other.test' http://api.test/"];
    let reach = async {
        for other in others {
            let refused = fetch(skep, listed, other).await;
            assert!(is_refusal(&refused), "{other}: {refused:?}");
            let answered = fetch(skep, all, other).await;
            assert!(answered.as_ref().is_ok_and(|text| text.starts_with("world ")), "{other}: {answered:?}");
        }
    };
    let silence = join_all(others.map(|other| is_silent(skep, none, other)));
    let ((), are_silent) = tokio::join!(reach, silence);
    assert_eq!(are_silent, [true; 3], "{others:?}");
}

#[test]
fn a_vm_reaches_what_its_policy_allows_and_nothing_else() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vms =
            [boot(&skep, policy()).await, boot(&skep, json!("all")).await, boot(&skep, json!("none")).await];
        let [listed, all, none] = vms;
        // They run at the same time, because some wait for a timeout.
        tokio::join!(
            assert_policies(&skep, vms),
            closed::assert_each_answer_is_judged(&skep, all),
            closed::assert_only_tcp_over_ipv4_leaves(&skep, all)
        );
        // A listed name may be an alias of one that is not, as those of a content delivery network are.
        assert_eq!(fetch(&skep, listed, "http://alias.test/").await.as_deref(), Ok("world alias.test"));
        closed::assert_denied_is_reached(&skep, all).await;
        closed::assert_only_public_is_reached(&skep, [listed, all]).await;
        assert_report(&skep, listed).await;

        // The policies survive the restart, while the operator allows some addresses and forbids others.
        let rules = ["--egress-allow", PRIVATE, "--egress-deny", closed::DENIED];
        let skep = skep.stop_and_leave_vms().start_with(&[&OPTIONS[..], &rules].concat()).await;
        closed::assert_not_public_is_reached(&skep, all).await;
        closed::assert_operator_forbids(&skep, all).await;
        let policies = async {
            let other = "http://other.test/";
            assert_eq!(fetch(&skep, listed, "http://api.test/").await.as_deref(), Ok("world api.test"));
            assert!(is_refusal(&fetch(&skep, listed, other).await));
            assert_eq!(fetch(&skep, all, other).await.as_deref(), Ok("world other.test"));
            assert_ports(&skep, all).await;
            assert_presets(&skep, listed).await;
        };
        tokio::join!(
            policies,
            async { assert!(is_silent(&skep, none, "http://api.test/").await) },
            assert_default_of_account(&skep),
            closed::assert_each_answer_is_reached(&skep, all),
            closed::assert_siblings_are_closed(&skep, all, none)
        );
        assert_metrics_count(&skep, all).await;
    });
}

/// Asserts that the report of the VM lists its policy and connections, and that `skep egress` prints the same.
async fn assert_report(skep: &Skep, vm: u64) {
    let report = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200);
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
    let (sent, received) = (&report["sent_bytes"], &report["received_bytes"]);
    assert!(sent.as_u64() > Some(0) && received.as_u64() > Some(0), "{report}");

    let text = printed(&output_of(&mut command(skep, &["egress", &vm.to_string()])));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("policy {}", policy()), "{text}");
    let refused = &report["refused"];
    let counts = format!(" open, {sent} bytes sent, {received} bytes received, {refused} refused");
    assert!(lines[1].ends_with(&counts), "{counts}: {text}");
    for tried in [
        " allowed api.test (203.0.113.7) port 80",
        " refused other.test: the policy does not allow the name",
        " refused 203.0.113.7 port 80: the policy does not allow it",
    ] {
        assert!(lines[2..].iter().any(|line| line.ends_with(tried)), "{tried}: {text}");
    }
}

/// Sets what VMs of the account may reach whose boot gives no policy.
async fn set_default_of_account(skep: &Skep, policy: &Value) {
    let account = skep.get("/api/whoami").await.ok(200)["account"]["id"].as_str().unwrap().to_owned();
    let change = skep.request(Method::PATCH, &format!("/api/accounts/{account}"));
    let changed = send(change.json(&json!({"egress": policy}))).await.ok(200);
    assert_eq!(changed["egress"], *policy);
}

/// Asserts that a boot without a policy takes that of the account, and that one with a policy does not.
async fn assert_default_of_account(skep: &Skep) {
    set_default_of_account(skep, &policy()).await;
    let booted = skep.post("/api/swarm/boot", &json!({})).await.ok(201);
    assert_eq!(booted["vms"][0]["egress"], policy(), "{booted}");
    let vm = booted["vms"][0]["pid"].as_u64().unwrap();
    assert_eq!(fetch(skep, vm, "http://api.test/").await.as_deref(), Ok("world api.test"));
    assert!(is_refusal(&fetch(skep, vm, "http://other.test/").await));
    let closed = boot(skep, json!("none")).await;
    assert!(is_silent(skep, closed, "http://api.test/").await);
}

/// Asserts that a policy with ports opens no other port of the same hosts. The control is a VM that may reach all that is public.
async fn assert_ports(skep: &Skep, control: u64) {
    let hosts = ["api.test", "203.0.113.7"];
    let limited = boot(skep, json!({"allow": hosts, "ports": [80]})).await;
    for host in hosts {
        assert_eq!(fetch(skep, limited, &format!("http://{host}/")).await, Ok(format!("world {host}")));
        let other = format!("http://{host}:8000/");
        let refused = fetch(skep, limited, &other).await;
        assert!(is_refusal(&refused), "{other}: {refused:?}");
        assert_eq!(fetch(skep, control, &other).await, Ok(format!("world {host}:8000")));
    }
}

/// Asserts that a preset opens its hosts and nothing else, and that a VM without it does not reach them.
async fn assert_presets(skep: &Skep, without: u64) {
    let vm = boot(skep, json!({"presets": ["gitlab"]})).await;
    assert_eq!(fetch(skep, vm, "http://gitlab.com/").await.as_deref(), Ok("world gitlab.com"));
    for other in ["http://api.test/", "http://203.0.113.7/", "-H 'Host: api.test' http://gitlab.com/"] {
        let refused = fetch(skep, vm, other).await;
        assert!(is_refusal(&refused), "{other}: {refused:?}");
    }
    assert!(is_refusal(&fetch(skep, without, "http://gitlab.com/").await));
    let path = format!("/api/swarm/vm/{without}");
    let change = json!({"egress": {"allow": ["api.test"], "presets": ["gitlab"]}});
    send(skep.request(Method::PATCH, &path).json(&change)).await.ok(200);
    assert_eq!(fetch(skep, without, "http://gitlab.com/").await.as_deref(), Ok("world gitlab.com"));
    let report = skep.get(&format!("{path}/egress")).await.ok(200);
    assert_eq!(report["policy"], change["egress"], "{report}");
}

/// Asserts that the metrics count refused connections by reason and all bytes, and have no label that a guest chose.
async fn assert_metrics_count(skep: &Skep, vm: u64) {
    let metrics = async || skep.get("/metrics").await.ok(200).as_str().unwrap().to_owned();
    let before = metrics().await;
    for reason in ["policy", "other_host", "operator"] {
        let series = format!("skep_egress_refused_total{{reason=\"{reason}\"}}");
        assert!(value(&before, &series) >= 1.0, "{reason}: {before}");
    }
    assert!(!before.contains("other.test"), "{before}");

    assert_eq!(fetch(skep, vm, "http://api.test/").await.as_deref(), Ok("world api.test"));
    eventually("the bytes of another request", async || {
        let after = metrics().await;
        let totals = ["skep_egress_sent_bytes_total", "skep_egress_received_bytes_total"];
        totals.iter().all(|series| value(&after, series) > value(&before, series))
    })
    .await;
}
