//! Siblings of one snapshot are different machines.

use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::harness::Skep;

#[tokio::test(flavor = "multi_thread")]
async fn siblings_share_no_name_no_randomness_and_the_right_clock() {
    let skep = Skep::start().await;
    let vms = skep.boot(4).await;
    for what in [
        "hostname",
        "cat /etc/machine-id",
        "cat /proc/sys/kernel/random/boot_id",
        "cat /proc/sys/kernel/random/uuid",
        "head -c 32 /dev/urandom | sha256sum",
        "cat /sys/class/net/eth0/address",
        "ip -4 -o addr show eth0 | awk '{print $4}'",
        "cat /run/skep/generation",
    ] {
        let mut seen = BTreeSet::new();
        for vm in &vms {
            let value = skep.output(vm["pid"].as_u64().unwrap(), what).await;
            assert!(!value.is_empty(), "{what} printed nothing");
            assert!(seen.insert(value.clone()), "two siblings have {value:?} as `{what}`");
        }
    }
    for vm in &vms {
        let pid = vm["pid"].as_u64().unwrap();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let inside: f64 = skep.output(pid, "date +%s.%N").await.parse().unwrap();
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((before - 0.5..after + 0.5).contains(&inside), "{before} {inside} {after}");
        let address = skep.output(pid, "ip -4 -o addr show eth0").await;
        assert!(address.contains(vm["ip"].as_str().unwrap()), "{address}");
    }
}
