//! Siblings of one snapshot are different machines.

use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;

use crate::harness::Skep;

/// What no two VMs have in common.
const OWN: [&str; 8] = [
    "hostname",
    "cat /etc/machine-id",
    "cat /proc/sys/kernel/random/boot_id",
    "cat /proc/sys/kernel/random/uuid",
    "head -c 32 /dev/urandom | sha256sum",
    "cat /sys/class/net/eth0/address",
    "ip -4 -o addr show eth0 | awk '{print $4}'",
    "cat /run/skep/generation",
];

#[tokio::test(flavor = "multi_thread")]
async fn siblings_share_no_name_no_randomness_and_the_right_clock() {
    let skep = Skep::start().await;
    let vms = skep.boot(3).await;
    let script = OWN.map(|what| format!("{what}; echo ==")).join("\n");
    let answers = join_all(vms.iter().map(|vm| skep.output(vm["pid"].as_u64().unwrap(), &script))).await;
    let values: Vec<Vec<&str>> =
        answers.iter().map(|answer| answer.split("==").map(str::trim).take(OWN.len()).collect()).collect();
    for (at, what) in OWN.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for values in &values {
            assert!(!values[at].is_empty(), "{what} printed nothing: {values:?}");
            assert!(seen.insert(values[at]), "two siblings have {:?} as `{what}`", values[at]);
        }
    }
    for (vm, values) in vms.iter().zip(&values) {
        let pid = vm["pid"].as_u64().unwrap();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let inside: f64 = skep.output(pid, "date +%s.%N").await.parse().unwrap();
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((before - 0.5..after + 0.5).contains(&inside), "{before} {inside} {after}");
        let address = values[6];
        assert!(address.contains(vm["ip"].as_str().unwrap()), "{address}");
    }
}
