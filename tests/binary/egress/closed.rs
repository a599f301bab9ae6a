//! Destinations that a VM cannot reach under any policy.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use skep_harness::eventually;

use super::{fetch, fetch_each, is_refusal, is_silent, python};
use crate::harness::Skep;

/// Targets at addresses that are not public. They are refused unless the operator allows the address. For a name, the
/// addresses that it resolves to decide, also if it is an alias.
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

/// Asserts that VMs cannot reach addresses that are not public.
pub(super) async fn assert_only_public_is_reached(skep: &Skep, vms: [u64; 2]) {
    for fetched in join_all(vms.map(|vm| fetch_each(skep, vm, &NOT_PUBLIC))).await {
        for (target, refused) in NOT_PUBLIC.iter().zip(fetched) {
            assert!(is_refusal(&refused), "{target}: {refused:?}");
        }
    }
}

/// The control: a VM reaches these addresses if the operator allows them.
pub(super) async fn assert_not_public_is_reached(skep: &Skep, vm: u64) {
    for (target, reached) in NOT_PUBLIC.iter().zip(fetch_each(skep, vm, &NOT_PUBLIC).await) {
        assert!(reached.is_ok(), "{target}: {reached:?}");
    }
}

/// The server at this URL answers with the address at which it was reached. The name server returns in turn a public address,
/// an address of the machine, and a private address.
const REBINDING: &str = "http://rebind.test:8000/address";

/// The number of look-ups in which each of the three addresses is returned twice.
const LOOK_UPS: u32 = 6;

/// Asserts that the address of each look-up is checked, and not only that of the first. It connects until there were enough
/// look-ups, because an answer may be cached for a while.
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

/// The control: if the operator allows the addresses, the VM reaches all three.
pub(super) async fn assert_each_answer_is_reached(skep: &Skep, vm: u64) {
    let mut reached: BTreeSet<String> = BTreeSet::new();
    eventually("connections to each of the three answers", async || {
        reached.extend(fetch(skep, vm, REBINDING).await);
        reached.len() == 3
    })
    .await;
}

/// The value of `--egress-deny` in the second half of the test.
pub(super) const DENIED: &str = "a.wild.test,203.0.113.8";

/// Arguments of `curl` for the forbidden targets, and for the forbidden host name at an allowed name and an allowed address.
const TO_DENIED: [&str; 4] = [
    "http://a.wild.test/",
    "http://203.0.113.8/",
    "-H 'Host: a.wild.test' http://api.test/",
    "-H 'Host: a.wild.test' http://203.0.113.7/",
];

async fn fetch_denied(skep: &Skep, vm: u64) -> Vec<Result<String, i64>> {
    join_all(TO_DENIED.map(|arguments| fetch(skep, vm, arguments))).await
}

/// Asserts that a VM cannot reach what the operator forbids, and that its report has the reasons.
pub(super) async fn assert_operator_forbids(skep: &Skep, vm: u64) {
    for (arguments, refused) in TO_DENIED.iter().zip(fetch_denied(skep, vm).await) {
        assert!(is_refusal(&refused), "{arguments}: {refused:?}");
    }
    let tries = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200)["tries"].to_string();
    for reason in ["the operator forbids it", "name \\\"a.wild.test\\\", which the operator forbids"] {
        assert!(tries.contains(reason), "{reason}: {tries}");
    }
}

/// The control: without `--egress-deny` the VM reaches all targets.
pub(super) async fn assert_denied_is_reached(skep: &Skep, vm: u64) {
    for (arguments, reached) in TO_DENIED.iter().zip(fetch_denied(skep, vm).await) {
        assert!(reached.is_ok(), "{arguments}: {reached:?}");
    }
}

/// Sends a query to a name server over UDP and over TCP, and prints for each whether there was an answer.
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

/// Asserts that a VM with the policy `all` can send neither UDP nor IPv6 to the network.
pub(super) async fn assert_only_tcp_over_ipv4_leaves(skep: &Skep, all: u64) {
    assert_eq!(python(skep, all, OTHER_RESOLVER, "203.0.113.53").await, "False True");
    // The control: the name server in the VM's resolv.conf answers over UDP.
    let forwarder = skep.output(all, "grep nameserver /etc/resolv.conf | cut -d ' ' -f 2").await;
    assert_eq!(python(skep, all, OTHER_RESOLVER, &forwarder).await, "True True");
    // The guest has no IPv6, so the connection fails immediately. If packets left the VM, curl would wait for its timeout.
    for target in ["-g -m 10 'http://[2001:db8::7]/'", "-g -m 10 'http://[::ffff:10.9.0.1]/'"] {
        let refused = fetch(skep, all, target).await;
        assert!(is_refusal(&refused), "{target}: {refused:?}");
    }
}

/// Asserts that a VM can reach neither a server in another VM nor the port of the proxy.
pub(super) async fn assert_siblings_are_closed(skep: &Skep, vm: u64, sibling: u64) {
    let serve = "cd /etc && (python3 -m http.server 8000 > /dev/null 2>&1 &); hostname -I | cut -d ' ' -f 1";
    let target = format!("http://{}:8000/hostname", skep.output(sibling, serve).await.trim());
    // The control: the server answers in its own VM.
    eventually("the server in the sibling", async || fetch(skep, sibling, &target).await.is_ok()).await;
    let bridge = skep.output(vm, "grep nameserver /etc/resolv.conf | cut -d ' ' -f 2").await;
    let proxy = format!("-m 5 http://{bridge}:7701/");
    let (is_closed, reached) = tokio::join!(is_silent(skep, vm, &target), fetch(skep, vm, &proxy));
    assert!(is_closed, "{target}");
    // The packet filter drops these packets, so curl times out; the proxy would refuse the connection.
    assert_eq!(reached, Err(28));
}
