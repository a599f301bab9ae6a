//! Fifty copies of a running VM by one call: what has to be unique differs, and what programs seeded before does not, as
//! documented.

use std::{collections::BTreeSet, path::Path};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    clones::{UNIQUE, shared},
    copies::{fork, pid_of},
    harness::{Skep, temp_dir},
    takeover::assert_in_order,
};

const COPIES: usize = 50;
/// What is promised to the copies and their parent, in MiB, is at most four times that.
const MEMORY_MB: &str = "3500";
/// Seeds its generator from the kernel, and draws a number when it is told to. It waits without using the processor: there are
/// many of them.
const SEEDED: &str = "import os, random
random.seed(os.urandom(32))
kept = os.urandom(32).hex()
os.mkfifo('/dev/shm/draw')
open('/dev/shm/kept', 'w').write(kept)
open('/dev/shm/draw').read()
open('/dev/shm/new', 'w').write(f'before {random.getrandbits(128)}\\nkept {kept}\\n')
os.rename('/dev/shm/new', '/dev/shm/drawn')
";
const START: &str = "cat > /root/seeded.py
(setsid python3 /root/seeded.py > /root/seeded.log 2>&1 </dev/null &)
while [ ! -s /dev/shm/kept ]; do sleep 0.1; done; cat /dev/shm/kept";
const DRAW: &str =
    "echo > /dev/shm/draw; while [ ! -e /dev/shm/drawn ]; do sleep 0.1; done; cat /dev/shm/drawn
echo after $(python3 -c 'import random; print(random.getrandbits(128))')";

#[tokio::test(flavor = "multi_thread")]
async fn fifty_copies_share_only_what_programs_had_seeded_before() {
    let options = ["--max-vms", "51", "--memory-mb", MEMORY_MB];
    let skep = Skep::start_on(temp_dir(), &options).await;
    let parent = skep.boot(1).await.remove(0);
    let started = skep.exec_with(pid_of(&parent), &json!({"command": START, "stdin": SEEDED})).await;
    assert_eq!(started["exit_code"], 0, "{started}");
    let kept = started["stdout"].as_str().unwrap();

    let copies = fork(&skep, &parent, &json!({"count": COPIES})).await;
    assert_eq!(copies.len(), COPIES);
    let all: Vec<&Value> = copies.iter().chain([&parent]).collect();
    let answers = join_all(all.iter().map(|vm| skep.output(pid_of(vm), UNIQUE))).await;
    for (vm, answer) in all.iter().zip(&answers) {
        let values =
            answer.lines().filter(|line| line.split(' ').nth(1).is_some_and(|value| value.len() > 6));
        assert_eq!(values.count(), UNIQUE.matches("\necho ").count(), "{answer}");
        assert!(answer.contains(&format!("generation {}", vm["id"].as_str().unwrap())), "{answer}");
    }
    assert_eq!(shared(&answers), [].into());

    // The memory of the program is that of the parent in each copy.
    let drawn = join_all(all.iter().map(|vm| skep.output(pid_of(vm), DRAW))).await;
    let of = |name: &str| -> BTreeSet<&str> {
        drawn.iter().filter_map(|text| text.lines().find_map(|line| line.strip_prefix(name))).collect()
    };
    // A generator of a program that ran before is documented to have the same state; a new one is of its own.
    assert_eq!(of("kept "), [kept].into(), "{drawn:?}");
    assert_eq!((of("before ").len(), of("after ").len()), (1, all.len()), "{drawn:?}");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architecture/copies.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    assert!(docs.contains("random state of programs (OpenSSL, Python's `random`)"));
    assert_in_order(&skep).await;
}
