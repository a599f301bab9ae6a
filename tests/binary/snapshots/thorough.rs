//! Snapshots whose files are damaged or exchanged for those of others, copies of copies, and copies of a VM that writes without end.

mod machines;
mod other_machines;
mod races;

use std::{fs, time::Instant};

use serde_json::{Value, json};

use super::{
    Damage, boot, cut, damaged, each_is_damaged_on_record, files_of, in_a_copy, run, snapshot, snapshots,
};
use crate::{
    copies::{assert_goes_on, begin, fork, path_of, pid_of, state},
    harness::{Skep, eventually, images::flip_a_bit},
    takeover::assert_in_order,
};

/// The files that the test of each promise leaves out.
const DAMAGES: [(&str, &str, Damage); 4] = [
    ("of-delta", "delta", flip_a_bit),
    ("of-pages", "pages", cut),
    ("of-kernel", "kernel", |path| in_a_copy(path, flip_a_bit)),
    ("of-initrd", "initrd", |path| in_a_copy(path, cut)),
];

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_each_file_is_found_before_use() {
    let skep = Skep::start().await;
    let original = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &original).await;
    snapshot(&skep, &original, "intact").await;
    let stored = snapshots(&skep, &original, &DAMAGES).await;
    let skep = damaged(skep, &stored, &DAMAGES).await;
    let vm = boot(&skep, "intact", 1).await.remove(0);
    assert_goes_on(&skep, &vm, &wanted, 1).await;
    assert_eq!(skep.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_copies_are_the_same() {
    let skep = Skep::start().await;
    let original = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &original).await;
    snapshot(&skep, &original, "installed").await;
    let copy = boot(&skep, "installed", 1).await.remove(0);
    let (_, from) = state(&skep, &copy).await;
    snapshot(&skep, &copy, "child").await;
    let forked = fork(&skep, &copy, &json!({})).await.remove(0);
    snapshot(&skep, &forked, "of-fork").await;
    for template in ["child", "of-fork"] {
        let vm = boot(&skep, template, 1).await.remove(0);
        assert_goes_on(&skep, &vm, &wanted, from).await;
        skep.delete(&path_of(&vm)).await.ok(200);
    }
    assert_in_order(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_on_another_base_are_found_before_use() {
    let skep = Skep::start().await;
    let original = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &original).await;
    let intact = snapshot(&skep, &original, "intact").await;
    let with_delta = snapshot(&skep, &original, "with-delta").await;
    let with_origin = snapshot(&skep, &original, "with-origin").await;
    let with_ram = snapshot(&skep, &original, "with-ram").await;
    run(&skep, &["template", "create", "other", "--disk", "3G"]);
    let other = skep.get("/api/templates/other").await.ok(200);
    let data_dir = skep.stop();
    let file_of = |template: &Value, file: &str| files_of(data_dir.path(), template).join(file);
    // The changed pages of another snapshot.
    fs::remove_file(file_of(&with_delta, "delta")).unwrap();
    fs::hard_link(file_of(&intact, "delta"), file_of(&with_delta, "delta")).unwrap();
    // The memory of another template, of the same size, below the changed pages.
    fs::remove_file(file_of(&with_ram, "ram")).unwrap();
    fs::hard_link(file_of(&other, "ram"), file_of(&with_ram, "ram")).unwrap();
    // The key of another template.
    let manifest = file_of(&with_origin, "manifest.json");
    let mut changed: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    assert!(changed["origin"].is_string(), "{changed}");
    changed["origin"] = json!("0123456789abcdef");
    fs::write(&manifest, changed.to_string()).unwrap();

    let skep = Skep::start_on(data_dir, &[]).await;
    let damaged = [("delta", "with-delta"), ("manifest.json", "with-origin"), ("ram: SHA-256", "with-ram")];
    each_is_damaged_on_record(&skep, &damaged).await;
    // The control: the other links of the same files are good.
    let of_other = boot(&skep, "other", 1).await.remove(0);
    skep.output(pid_of(&of_other), "true").await;
    skep.delete(&path_of(&of_other)).await.ok(200);
    let vm = boot(&skep, "intact", 1).await.remove(0);
    assert_goes_on(&skep, &vm, &wanted, 1).await;
    assert_eq!(skep.count().await, 1);
}

/// Writes files, each of them to the disk, and lists those that are written with their hashes, as fast as the VM can.
const WRITE: &str = "head -c 1000000 /dev/urandom > /dev/shm/block
(setsid sh -c 'n=0; while :; do n=$((n + 1)); file=/root/written-$((n % 60))
    { echo $n; cat /dev/shm/block; } > $file.new && sync $file.new && mv $file.new $file && sync /root
    echo $n > /dev/shm/written; done' >/dev/null 2>&1 </dev/null &)
while [ ! -e /dev/shm/written ] || [ \"$(cat /dev/shm/written)\" -lt 30 ]; do sleep 0.05; done";
/// Overwrites 16 MiB of memory again and again, at most about 160 MB/s so that the other program runs too, and counts the bytes.
const OVERWRITE: &str = r#"
import os, time
block = os.urandom(1 << 20)
memory = os.open("/dev/shm/memory", os.O_CREAT | os.O_RDWR)
written = 0
while True:
    block = block[1:] + block[:1]
    for at in range(16):
        os.pwrite(memory, block, at << 20)
    written += 16 << 20
    with open("/dev/shm/bytes.new", "w") as file:
        file.write(str(written))
    os.rename("/dev/shm/bytes.new", "/dev/shm/bytes")
    time.sleep(0.1)
"#;
const START_OVERWRITE: &str = "cat > /dev/shm/overwrite.py
(setsid python3 /dev/shm/overwrite.py >/dev/null 2>&1 </dev/null &)
while [ ! -e /dev/shm/bytes ]; do sleep 0.05; done";
/// Prints what is wrong with files, as they are on disk.
const CHECK: &str = "sync; echo 3 > /proc/sys/vm/drop_caches
for file in /root/written-*; do case $file in *.new) continue;; esac
    tail -n +2 $file | cmp -s - /dev/shm/block || echo $file; done
ls /root | grep -c -v new";

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_vm_that_writes_without_end_have_whole_files() {
    let skep = Skep::start().await;
    let original = skep.boot(1).await.remove(0);
    let started =
        skep.exec_with(pid_of(&original), &json!({"command": START_OVERWRITE, "stdin": OVERWRITE})).await;
    assert_eq!(started["exit_code"], 0, "{started}");
    skep.output(pid_of(&original), WRITE).await;
    for round in 0..2 {
        let name = format!("written-{round}");
        while_it_writes(&skep, &original, &name, snapshot(&skep, &original, &name)).await;
        let order = json!({});
        let forked = while_it_writes(&skep, &original, "a fork", fork(&skep, &original, &order)).await;
        for vm in boot(&skep, &name, 1).await.iter().chain(&forked) {
            let found = skep.output(pid_of(vm), CHECK).await;
            assert!(found.parse::<u32>().is_ok_and(|files| files >= 29), "{found}");
            skep.delete(&path_of(vm)).await.ok(200);
        }
    }
    let written =
        async || skep.output(pid_of(&original), "cat /dev/shm/written").await.parse::<u64>().unwrap();
    let before = written().await;
    eventually("more files of the original", async || written().await > before + 2).await;
    // The control: the check finds a file that is not whole.
    skep.output(pid_of(&original), "echo more >> /root/written-100").await;
    assert!(skep.output(pid_of(&original), CHECK).await.contains("written-100"));
    assert_in_order(&skep).await;
}

/// Copies a VM. Fails if its programs write nothing between the start and the end of the call. They may stand still during the
/// capture itself.
async fn while_it_writes<T>(skep: &Skep, vm: &Value, what: &str, copy: impl Future<Output = T>) -> T {
    let written = async || skep.output(pid_of(vm), "cat /dev/shm/bytes").await.parse::<u64>().unwrap();
    let (before, begun) = (written().await, Instant::now());
    let copied = copy.await;
    let bytes = written().await - before;
    let took = begun.elapsed();
    let rate = bytes as f64 / took.as_secs_f64() / 1e6;
    eprintln!("{what}: the VM wrote {bytes} bytes in {took:?}, {rate:.1} MB/s");
    assert!(bytes > 0, "{what}: the VM wrote nothing");
    copied
}
