//! A guest with state that its copies must have: a program with memory and a counter, and files.

use serde_json::{Value, json};

use crate::harness::Skep;

/// Makes files, holds random memory, counts, and computes the checksums of its memory and of the files when it is asked to. What it
/// writes, readers see whole. It does all of this itself, because each program that starts in an emulated guest takes long.
const PROGRAM: &str = r#"
import os, time, zlib
block = os.urandom(1 << 20)
names = [f"/root/small-{number}" for number in range(1, 31)]
for number, name in enumerate(names, 1):
    with open(name, "wb") as file:
        file.write(os.urandom(number * 1000))

def put(name, text):
    with open(f"/dev/shm/{name}.new", "w") as file:
        file.write(f"{text}\n")
    os.rename(f"/dev/shm/{name}.new", f"/dev/shm/{name}")

def sum_of_files():
    total = 0
    for name in names:
        with open(name, "rb") as file:
            total = zlib.crc32(file.read(), total)
    return total

count = 0
while True:
    count += 1
    put("counter", count)
    if os.path.exists("/dev/shm/check"):
        os.unlink("/dev/shm/check")
        put("checked", f"{zlib.crc32(block)} {sum_of_files()}")
    time.sleep(0.02)
"#;
const START: &str = "cat > /root/program.py
(setsid python3 /root/program.py >/root/program.log 2>&1 </dev/null &)
while [ ! -e /dev/shm/counter ]; do sleep 0.05; done
";
/// Prints the checksum of the program's memory, that of the files, the number, and the number a while later. It gives up waiting
/// for a program that stands still.
const STATE: &str = ": > /dev/shm/checked; : > /dev/shm/check; tries=0
until read memory files < /dev/shm/checked; do
    tries=$((tries + 1)); [ $tries -lt 300 ] || { echo the program does not answer; cat /root/program.log; exit 1; }
    sleep 0.02
done
read first < /dev/shm/counter; last=$first; tries=0
while [ $last -lt $((first + WHILE)) ] && [ $tries -lt 300 ]; do
    tries=$((tries + 1)); sleep 0.1; read last < /dev/shm/counter
done
echo $memory $files $first $last";
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

/// Starts the program, which makes the files.
pub(crate) async fn begin(skep: &Skep, vm: &Value) -> State {
    let command = format!("{START}{}", STATE.replace("WHILE", "0"));
    let answer = skep.exec_with(pid_of(vm), &json!({"command": command, "stdin": PROGRAM})).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
    parsed(answer["stdout"].as_str().unwrap()).0
}

/// The state, and the number.
pub(crate) async fn state(skep: &Skep, vm: &Value) -> (State, u64) {
    let (state, first, _) = parsed(&skep.output(pid_of(vm), &STATE.replace("WHILE", "0")).await);
    (state, first)
}

/// Fails unless the VM has this state and its program has counted on from this number, and still counts. Returns the
/// last number.
pub(crate) async fn assert_goes_on(skep: &Skep, vm: &Value, wanted: &State, from: u64) -> u64 {
    let command = STATE.replace("WHILE", &WHILE.to_string());
    let (found, first, last) = parsed(&skep.output(pid_of(vm), &command).await);
    assert_eq!(&found, wanted, "{vm}");
    assert!(first >= from, "{first} after {from}: the program began anew: {vm}");
    assert!(last >= first + WHILE, "{last} after {first}: the program stands still: {vm}");
    last
}

/// The state, the first number and the last one.
fn parsed(text: &str) -> (State, u64, u64) {
    let [memory, files, first, last] = text.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
    let state = State { memory: memory.to_owned(), files: files.to_owned() };
    (state, first.parse().unwrap(), last.parse().unwrap())
}

/// Copies of a VM that run.
pub(crate) async fn fork(skep: &Skep, vm: &Value, request: &Value) -> Vec<Value> {
    let answer = skep.post(&format!("{}/fork", path_of(vm)), request).await.ok(201);
    answer["vms"].as_array().unwrap().clone()
}
