//! Siblings of one snapshot are different machines.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    clones::{UNIQUE, shared},
    harness::Skep,
};

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_share_no_name_no_randomness_and_the_right_clock() {
    let skep = Skep::start().await;
    let status = skep.get("/api/swarm/status").await.ok(200);
    // Emulation would have to translate code again at each new address.
    let randomizes_addresses = status["engine"]["isolation"] != "emulated";
    let mut answers = Vec::new();
    for vm in skep.boot(3).await {
        let pid = vm["pid"].as_u64().unwrap();
        let setting = skep.output(pid, "cat /proc/sys/kernel/randomize_va_space").await;
        assert_eq!(setting != "0", randomizes_addresses, "{setting}: {status}");
        let before = now();
        let inside: f64 = skep.output(pid, "date +%s.%N").await.parse().unwrap();
        let after = now();
        assert!((before - 0.5..after + 0.5).contains(&inside), "{before} {inside} {after}");

        let answer = skep.output(pid, UNIQUE).await;
        let complete =
            answer.lines().filter(|line| line.split_once(' ').is_some_and(|(_, value)| value.len() > 6));
        assert_eq!(complete.count(), UNIQUE.matches("\necho ").count(), "{answer}");
        let address = answer.lines().find_map(|line| line.strip_prefix("ip ")).unwrap();
        assert_eq!(address.split('/').next(), vm["ip"].as_str(), "{answer}");
        answers.push(answer);
    }
    assert_eq!(shared(&answers), BTreeMap::new());
}
