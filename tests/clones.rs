//! Many VMs of one snapshot, from one call: nothing that has to be unique is shared.
//!
//! Production code has no switch that leaves the reseed out, and none is wanted. What shows that the comparison can fail
//! is what these very VMs do share: where the addresses of programs are not random (under emulation), and the files of the
//! template. That the guest's randomness comes from the identity is the agent's report, without which no VM is handed out.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use serde_json::Value;

use crate::harness::Skep;

/// Asked for in one call; fewer where the machine holds fewer.
const CLONES: u64 = 50;
/// Of these the first message of TLS is looked at: two runs of `openssl` are a second each in emulation.
const SPEAK_TLS: usize = 8;
/// The most that a clock may be wrong, beside the time that the question takes and the time that the identity took.
const CLOCK_S: f64 = 0.1;

/// Has to differ, one line each.
const UNIQUE: &str = r"
echo urandom $(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo uuid $(cat /proc/sys/kernel/random/uuid)
echo boot_id $(cat /proc/sys/kernel/random/boot_id)
echo machine_id $(cat /etc/machine-id)
echo mac $(cat /sys/class/net/eth0/address)
echo ip $(ip -4 -o addr show eth0 | awk '{print $4}')
echo hostname $(hostname)
echo generation $(cat /run/skep/generation)
echo mktemp $(mktemp -u)
";

/// Is the same by its nature.
const SHARED: &str = "echo release $(sha256sum < /etc/os-release)";

/// The random bytes of a first message of TLS, as the client itself shows it: `openssl` in the guest is both ends.
const CLIENT_RANDOM: &str = r#"
openssl s_server -nocert -accept 127.0.0.1:4433 >/dev/null 2>&1 &
server=$!
for _ in $(seq 100); do
    hello=$(openssl s_client -connect 127.0.0.1:4433 -msg </dev/null 2>/dev/null | grep -A 3 ClientHello | tail -n 3)
    [ -n "$hello" ] && break
    sleep 0.2
done
kill $server
echo client_random $(echo $hello | tr -d ' ' | cut -c 13-76)
"#;

/// By name, the values that more than one VM gave.
fn shared(answers: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut seen: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for line in answers.iter().flat_map(|answer| answer.lines()) {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        *seen.entry(name.to_owned()).or_default().entry(value.to_owned()).or_default() += 1;
    }
    let twice = |values: BTreeMap<String, usize>| -> Vec<String> {
        values.into_iter().filter(|(_, count)| *count > 1).map(|(value, _)| value).collect()
    };
    seen.into_iter()
        .map(|(name, values)| (name, twice(values)))
        .filter(|(_, values)| !values.is_empty())
        .collect()
}

#[test]
fn what_two_clones_share_is_found() {
    let answers = ["uuid 1\nip 7".to_owned(), "uuid 2\nip 8".to_owned(), "uuid 1\nip 9".to_owned()];
    assert_eq!(shared(&answers), BTreeMap::from([("uuid".to_owned(), vec!["1".to_owned()])]));
    assert!(shared(&answers[..2]).is_empty());
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clones_of_one_call_share_nothing_that_must_be_unique() {
    let skep = Skep::start().await;
    let status = skep.get("/api/swarm/status").await.ok(200);
    let count = CLONES.min(status["capacity"]["max_vms"].as_u64().unwrap());
    assert!(count >= 10, "a machine for {count} VMs shows nothing: {status}");
    let vms = skep.boot(u32::try_from(count).unwrap()).await;
    let pids: Vec<u64> = vms.iter().map(|vm: &Value| vm["pid"].as_u64().unwrap()).collect();

    let answers = join_all(pids.iter().map(|pid| skep.output(*pid, UNIQUE))).await;
    for answer in &answers {
        let complete =
            answer.lines().filter(|line| line.split_once(' ').is_some_and(|(_, said)| said.len() > 6));
        assert_eq!(
            complete.count(),
            UNIQUE.lines().filter(|line| line.starts_with("echo")).count(),
            "{answer}"
        );
    }
    assert_eq!(shared(&answers), BTreeMap::new());

    // The control: the same comparison finds what the same VMs have in common.
    let same = join_all(pids.iter().map(|pid| skep.output(*pid, SHARED))).await;
    assert_eq!(shared(&same).keys().collect::<Vec<_>>(), ["release"]);

    // One after the other: what is measured is the clock, not the queue.
    let mut worst: f64 = 0.0;
    for vm in &vms {
        let before = now();
        let inside: f64 = skep.output(vm["pid"].as_u64().unwrap(), "date +%s.%N").await.parse().unwrap();
        let after = now();
        // The clock travels with the identity, so it is late by less than that took.
        let travelled = vm["boot"]["identity_ms"].as_f64().unwrap() / 1000.0;
        let wrong = (before - inside).max(inside - after);
        worst = worst.max(wrong);
        assert!(wrong < CLOCK_S + travelled, "{before} {inside} {after}: {vm}");
    }
    eprintln!("{count} clones; the worst clock is wrong by at least {:.0} ms", worst * 1000.0);

    let hellos = join_all(pids.iter().take(SPEAK_TLS).map(|pid| skep.output(*pid, CLIENT_RANDOM))).await;
    assert!(hellos.iter().all(|hello| hello.len() == "client_random ".len() + 64), "{hellos:?}");
    assert_eq!(shared(&hellos), BTreeMap::new());
}
