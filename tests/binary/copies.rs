//! A guest with state that its copies must have: a program with memory and a counter, and files.

use serde_json::{Value, json};

use crate::harness::{Skep, eventually};

/// Holds random memory, counts, and hashes its memory when it is asked to. What it writes, readers see whole.
const PROGRAM: &str = r#"
import hashlib, os, time
block = os.urandom(8 << 20)

def put(name, text):
    with open(f"/dev/shm/{name}.new", "w") as file:
        file.write(text)
    os.rename(f"/dev/shm/{name}.new", f"/dev/shm/{name}")

count = 0
while True:
    count += 1
    put("counter", str(count))
    if os.path.exists("/dev/shm/check"):
        os.unlink("/dev/shm/check")
        put("checked", hashlib.sha256(block).hexdigest())
    time.sleep(0.02)
"#;
const START: &str = "cat > /root/program.py
(setsid python3 /root/program.py >/root/program.log 2>&1 </dev/null &)
for n in $(seq 30); do head -c $((n * 1000)) /dev/urandom > /root/small-$n; done
while [ ! -e /dev/shm/counter ]; do sleep 0.05; done";
/// Prints the hash of the program's memory, that of the files, and the number.
const STATE: &str = "rm -f /dev/shm/checked; touch /dev/shm/check
while [ ! -e /dev/shm/checked ]; do sleep 0.02; done
echo $(cat /dev/shm/checked) $(cat /root/small-* | sha256sum | cut -d ' ' -f 1) $(cat /dev/shm/counter)";
/// A program that still runs has counted so far when a machine under load has run it for a while.
const WHILE: u64 = 10;

/// What copies have of their original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    memory: String,
    files: String,
}

pub(crate) fn pid_of(vm: &Value) -> u64 {
    vm["pid"].as_u64().unwrap()
}

pub(crate) fn path_of(vm: &Value) -> String {
    format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap())
}

/// Starts the program, and makes the files.
pub(crate) async fn begin(skep: &Skep, vm: &Value) -> State {
    let answer = skep.exec_with(pid_of(vm), &json!({"command": START, "stdin": PROGRAM})).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
    state(skep, vm).await.0
}

/// The state, and the number.
pub(crate) async fn state(skep: &Skep, vm: &Value) -> (State, u64) {
    let text = skep.output(pid_of(vm), STATE).await;
    let [memory, files, count] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
    (State { memory: memory.to_owned(), files: files.to_owned() }, count.parse().unwrap())
}

/// Fails unless the VM has this state and its program has counted on from this number, and still counts. Returns the
/// last number.
pub(crate) async fn assert_goes_on(skep: &Skep, vm: &Value, wanted: &State, from: u64) -> u64 {
    let (found, first) = state(skep, vm).await;
    assert_eq!(&found, wanted, "{vm}");
    assert!(first >= from, "{first} after {from}: the program began anew: {vm}");
    let mut last = first;
    eventually(&format!("the numbers after {first} of {vm}"), async || {
        last = skep.output(pid_of(vm), "cat /dev/shm/counter").await.parse().unwrap();
        last >= first + WHILE
    })
    .await;
    last
}

/// Copies of a VM that run.
pub(crate) async fn fork(skep: &Skep, vm: &Value, request: &Value) -> Vec<Value> {
    let answer = skep.post(&format!("{}/fork", path_of(vm)), request).await.ok(201);
    answer["vms"].as_array().unwrap().clone()
}
