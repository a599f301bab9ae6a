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

        assert_eq!(programs_besides_the_agent(&skep, pid).await, Vec::<String>::new());
        let answer = skep.output(pid, UNIQUE).await;
        let complete =
            answer.lines().filter(|line| line.split_once(' ').is_some_and(|(_, value)| value.len() > 6));
        assert_eq!(complete.count(), UNIQUE.matches("\necho ").count(), "{answer}");
        let address = answer.lines().find_map(|line| line.strip_prefix("ip ")).unwrap();
        assert_eq!(address.split('/').next(), vm["ip"].as_str(), "{answer}");
        answers.push(answer);
    }
    assert_eq!(shared(&answers), BTreeMap::new());

    let pid = skep.boot(1).await[0]["pid"].as_u64().unwrap();
    skep.output(pid, "setsid sleep 600 > /dev/null 2>&1 &").await;
    assert_eq!(programs_besides_the_agent(&skep, pid).await, ["/usr/bin/sleep"], "the control");
}

/// The programs of a VM, but for the guest agent and those that list them. One that a template contained would be the same in all
/// siblings.
async fn programs_besides_the_agent(skep: &Skep, pid: u64) -> Vec<String> {
    let list = "readlink /proc/1/exe; for exe in /proc/[0-9]*/exe; do readlink $exe; done | sort -u";
    let listed = skep.output(pid, list).await;
    let mut programs = listed.lines().map(str::to_owned);
    let agent = programs.next().unwrap();
    let known = [agent.as_str(), "/usr/bin/dash", "/usr/bin/readlink", "/usr/bin/sort"];
    programs.filter(|program| !known.contains(&program.as_str())).collect()
}
