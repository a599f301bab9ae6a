//! Copies of running VMs: what they have of their parent, what is their own, and that they never speak as their parent.

mod faults;
pub(crate) mod inheritance;
mod memory;
mod network;
pub(crate) mod thorough;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::{
    clones::{UNIQUE, shared},
    copies::{assert_goes_on, begin, path_of, pid_of, state},
    harness::{Skep, answer, command, output_of},
    takeover::{Streamed, assert_in_order},
};

/// How far a clock of a loaded machine may be off, in seconds. Programs of a copy stand still for less than that.
const CLOCK_S: f64 = 1.0;
/// Prints the name of the VM, and begins to do so before a fork.
const IN_FLIGHT: &str = "echo begun; while [ ! -e /dev/shm/go ]; do sleep 0.1; done; uname -n; exit 7";
/// The counter stands still while a hook runs.
const HOOK: &str = r"#!/bin/sh
first=$(cat /dev/shm/counter); sleep 0.5
random=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' ')
echo $(cat /run/skep/generation) $first $(cat /dev/shm/counter) $random > /root/hooked
";

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn host_name(vm: &Value) -> String {
    vm["id"].as_str().unwrap().replace('_', "-")
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_go_on_where_their_parent_was_as_machines_of_their_own() {
    let skep = Skep::start().await;
    let order = json!({"env": {"WORD": "kept"}, "metadata": {"team": "blue"}});
    let parent = skep.post("/api/swarm/boot", &order).await.ok(201)["vms"][0].clone();
    let wanted = begin(&skep, &parent).await;
    install_hooks(&skep, &parent).await;
    let mut in_flight = Streamed::begin(&skep, pid_of(&parent), IN_FLIGHT).await;
    in_flight.wait_for_output("begun\n".len()).await;
    let (_, from) = state(&skep, &parent).await;

    let copies = forked_by_the_command(&skep, &parent, 2);
    assert_eq!(copies.len(), 2);
    let mut random_numbers = BTreeSet::new();
    for copy in &copies {
        assert_eq!((&copy["parent"], &copy["metadata"]), (&parent["id"], &json!({"team": "blue"})), "{copy}");
        assert_goes_on(&skep, copy, &wanted, from).await;
        random_numbers.insert(hooks_have_run(&skep, copy).await);
    }
    assert_eq!(random_numbers.len(), copies.len(), "hooks of two copies read the same random numbers");
    assert_goes_on(&skep, &parent, &wanted, from).await;
    are_machines_of_their_own(&skep, &parent, &copies).await;
    are_independent(&skep, &parent, &copies).await;
    answer_the_command_in_flight(&skep, &parent, &copies[0], in_flight).await;
    assert_in_order(&skep).await;
    skep.delete(&path_of(&parent)).await.ok(200);
    assert_goes_on(&skep, &copies[1], &wanted, from).await;
}

/// One hook that says what it saw, after one that fails.
async fn install_hooks(skep: &Skep, vm: &Value) {
    let command = "mkdir -p /etc/skep/fork.d; cd /etc/skep/fork.d; cat > 20-good
        printf '#!/bin/sh\nexit 3\n' > 10-fails; printf 'no program' > 15-is-none; chmod +x *; sync";
    let answer = skep.exec_with(pid_of(vm), &json!({"command": command, "stdin": HOOK})).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
    // The control: where programs run, the hook sees another number the second time.
    let seen = skep.output(pid_of(vm), "/etc/skep/fork.d/20-good; cat /root/hooked; rm /root/hooked").await;
    let [_, first, second, _] = seen.split(' ').collect::<Vec<_>>().try_into().unwrap();
    assert_ne!(first, second, "the program stands still");
}

/// Fails unless the hook saw the copy's identity, and saw that no program ran. Returns the random numbers that it read.
async fn hooks_have_run(skep: &Skep, copy: &Value) -> String {
    let seen = skep.output(pid_of(copy), "echo $WORD; cat /root/hooked").await;
    let (word, seen) = seen.split_once('\n').unwrap();
    assert_eq!(word, "kept", "the environment");
    let [id, first, second, random] = seen.split(' ').collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((id, first), (copy["id"].as_str().unwrap(), second), "programs ran beside the hook");
    random.to_owned()
}

async fn are_machines_of_their_own(skep: &Skep, parent: &Value, copies: &[Value]) {
    let mut answers = Vec::new();
    for vm in copies.iter().chain([parent]) {
        let answer = skep.output(pid_of(vm), UNIQUE).await;
        for line in [
            format!("hostname {}", host_name(vm)),
            format!("generation {}", vm["id"].as_str().unwrap()),
            format!("ip {}", vm["ip"].as_str().unwrap()),
        ] {
            assert!(answer.lines().any(|found| found.split('/').next() == Some(&line)), "{line}: {answer}");
        }
        answers.push(answer);
        let before = now();
        let inside: f64 = skep.output(pid_of(vm), "date +%s.%N").await.parse().unwrap();
        let after = now();
        assert!((before - CLOCK_S..after + CLOCK_S).contains(&inside), "{before} {inside} {after}");
    }
    assert_eq!(shared(&answers), BTreeMap::new());
}

async fn are_independent(skep: &Skep, parent: &Value, copies: &[Value]) {
    skep.output(pid_of(parent), "[ ! -e /root/hooked ]").await;
    for vm in copies.iter().chain([parent]) {
        skep.output(pid_of(vm), "uname -n | tee /root/own > /dev/shm/own; sync").await;
    }
    for vm in copies.iter().chain([parent]) {
        let own = skep.output(pid_of(vm), "cat /root/own /dev/shm/own").await;
        assert_eq!(own, [host_name(vm), host_name(vm)].join("\n"));
    }
}

async fn answer_the_command_in_flight(skep: &Skep, parent: &Value, copy: &Value, in_flight: Streamed) {
    let path = format!("{}/exec/{}", path_of(copy), in_flight.id);
    let in_copy = Streamed::of(skep.request(reqwest::Method::GET, &path).send().await.unwrap());
    for (vm, mut streamed) in [(parent, in_flight), (copy, in_copy)] {
        skep.output(pid_of(vm), ": > /dev/shm/go").await;
        let (kind, exit) = streamed.rest().await.unwrap();
        assert_eq!((kind.as_str(), &exit["exit_code"]), ("exit", &json!(7)), "{exit}");
        assert_eq!(streamed.stdout, format!("begun\n{}\n", host_name(vm)));
    }
}

fn forked_by_the_command(skep: &Skep, parent: &Value, count: u32) -> Vec<Value> {
    let count = count.to_string();
    let words = ["fork", parent["id"].as_str().unwrap(), "-n", &count, "--json"];
    answer(&output_of(&mut command(skep, &words)))["vms"].as_array().unwrap().clone()
}
