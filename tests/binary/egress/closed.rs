//! What stays closed, whatever a policy allows.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use skep_harness::eventually;

use super::{fetch, fetch_each, is_refusal, is_silent, python};
use crate::harness::Skep;

/// Addresses, and names that lead to them, that are closed unless the operator allows the addresses. A name is judged by the
/// address of the answer, also where it is an alias.
const NOT_PUBLIC: [&str; 9] = [
    "http://own.test:8000/",
    "http://loop.test:8000/",
    "http://zero.test:8000/",
    "http://priv.test/",
    "http://inner.test/",
    "http://meta.test/",
    "http://203.0.113.1:8000/",
    "http://10.9.0.1/",
    "http://169.254.169.254/",
];

/// Asserts that VMs do not reach what is not public.
pub(super) async fn assert_only_public_is_reached(skep: &Skep, vms: [u64; 2]) {
    for fetched in join_all(vms.map(|vm| fetch_each(skep, vm, &NOT_PUBLIC))).await {
        for (target, refused) in NOT_PUBLIC.iter().zip(fetched) {
            assert!(is_refusal(&refused), "{target}: {refused:?}");
        }
    }
}

/// The control, where the operator allows the addresses.
pub(super) async fn assert_not_public_is_reached(skep: &Skep, vm: u64) {
    for (target, reached) in NOT_PUBLIC.iter().zip(fetch_each(skep, vm, &NOT_PUBLIC).await) {
        assert!(reached.is_ok(), "{target}: {reached:?}");
    }
}

/// Prints the address by which it is reached. The name server has another answer for its name each time: a public address, the
/// machine's own, and a private one.
const REBINDING: &str = "http://rebind.test:8000/address";

/// How often the name server is asked for the name: each of the three answers comes twice.
const LOOK_UPS: u32 = 6;

/// Asserts that each answer of a name server is judged, not the name once. Connects until the name server was asked often
/// enough, because an answer may be kept for a while.
pub(super) async fn assert_each_answer_is_judged(skep: &Skep, vm: u64) {
    let counted = "http://api.test/look-ups?name=rebind.test";
    let look_ups = async || fetch(skep, vm, counted).await.unwrap().parse::<u32>().unwrap();
    let enough = look_ups().await + LOOK_UPS;
    let mut reached = BTreeSet::new();
    eventually("all answers of the name server", async || {
        reached.extend(fetch(skep, vm, REBINDING).await);
        look_ups().await >= enough
    })
    .await;
    assert_eq!(reached, BTreeSet::from(["203.0.113.7".to_owned()]));
}

/// The control, where the operator allows the addresses: the name leads to all of them.
pub(super) async fn assert_each_answer_is_reached(skep: &Skep, vm: u64) {
    let mut reached: BTreeSet<String> = BTreeSet::new();
    eventually("connections to each of the three answers", async || {
        reached.extend(fetch(skep, vm, REBINDING).await);
        reached.len() == 3
    })
    .await;
}

/// What the operator forbids in the second half of the test.
pub(super) const DENIED: &str = "a.wild.test,203.0.113.8";

/// Arguments of `curl` for these targets, and for the host behind another name and another address, which are allowed.
const TO_DENIED: [&str; 4] = [
    "http://a.wild.test/",
    "http://203.0.113.8/",
    "-H 'Host: a.wild.test' http://api.test/",
    "-H 'Host: a.wild.test' http://203.0.113.7/",
];

async fn fetch_denied(skep: &Skep, vm: u64) -> Vec<Result<String, i64>> {
    join_all(TO_DENIED.map(|arguments| fetch(skep, vm, arguments))).await
}

/// Asserts that a VM does not reach what the operator forbids, and why.
pub(super) async fn assert_operator_forbids(skep: &Skep, vm: u64) {
    for (arguments, refused) in TO_DENIED.iter().zip(fetch_denied(skep, vm).await) {
        assert!(is_refusal(&refused), "{arguments}: {refused:?}");
    }
    let tries = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200)["tries"].to_string();
    for reason in ["the operator forbids it", "name \\\"a.wild.test\\\", which the operator forbids"] {
        assert!(tries.contains(reason), "{reason}: {tries}");
    }
}

/// The control, where the operator forbids nothing.
pub(super) async fn assert_denied_is_reached(skep: &Skep, vm: u64) {
    for (arguments, reached) in TO_DENIED.iter().zip(fetch_denied(skep, vm).await) {
        assert!(reached.is_ok(), "{arguments}: {reached:?}");
    }
}

/// Asks a name server other than that of the VM, over UDP and over TCP, and prints which of them answered.
pub(super) const OTHER_RESOLVER: &str = r#"
import socket, struct, sys
query = b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\1"
def ask(kind, message):
    asked = socket.socket(socket.AF_INET, kind)
    asked.settimeout(5 if kind == socket.SOCK_DGRAM else 20)
    try:
        asked.connect((sys.argv[1], 53))
        asked.sendall(message)
        return bool(asked.recv(500))
    except OSError:
        return False
print(ask(socket.SOCK_DGRAM, query), ask(socket.SOCK_STREAM, struct.pack(">H", len(query)) + query))
"#;

/// Asserts that neither UDP nor IPv6 leaves a VM that may reach all that is public.
pub(super) async fn assert_only_tcp_over_ipv4_leaves(skep: &Skep, all: u64) {
    assert_eq!(python(skep, all, OTHER_RESOLVER, "203.0.113.53").await, "False True");
    // The control: the name server of the VM itself answers over UDP.
    let forwarder = skep.output(all, "grep nameserver /etc/resolv.conf | cut -d ' ' -f 2").await;
    assert_eq!(python(skep, all, OTHER_RESOLVER, &forwarder).await, "True True");
    // It fails at once: where packets left the VM and nobody answered, curl would wait.
    for target in ["-g -m 10 'http://[2001:db8::7]/'", "-g -m 10 'http://[::ffff:10.9.0.1]/'"] {
        let refused = fetch(skep, all, target).await;
        assert!(is_refusal(&refused), "{target}: {refused:?}");
    }
}

/// Asserts that a VM reaches neither a server in another VM nor the proxy's own port.
pub(super) async fn assert_siblings_are_closed(skep: &Skep, vm: u64, sibling: u64) {
    let serve = "cd /etc && (python3 -m http.server 8000 > /dev/null 2>&1 &); hostname -I | cut -d ' ' -f 1";
    let target = format!("http://{}:8000/hostname", skep.output(sibling, serve).await.trim());
    // The control: the server is there.
    eventually("the server in the sibling", async || fetch(skep, sibling, &target).await.is_ok()).await;
    let bridge = skep.output(vm, "grep nameserver /etc/resolv.conf | cut -d ' ' -f 2").await;
    let proxy = format!("-m 5 http://{bridge}:7701/");
    let (is_closed, reached) = tokio::join!(is_silent(skep, vm, &target), fetch(skep, vm, &proxy));
    assert!(is_closed, "{target}");
    // It times out, rather than being refused by the proxy: the packet filter drops it.
    assert_eq!(reached, Err(28));
}
