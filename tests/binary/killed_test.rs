//! A test that is killed, as one is that runs out of time, leaves neither its server nor its VMs.

use std::{
    fs,
    future::pending,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use crate::harness::{Skep, eventually_empty, remains_of};

/// What the hanging test prints before the data directory of its server.
const HANGS_WITH: &str = "hangs with the data directory ";

#[ignore = "it hangs until the test below kills it"]
#[tokio::test]
async fn hangs_with_a_vm() {
    let skep = Skep::start().await;
    skep.boot_one().await;
    println!("{HANGS_WITH}{}", skep.data_dir.path().display());
    pending::<()>().await;
}

#[tokio::test]
async fn its_server_ends_with_it_and_ends_its_vms() {
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_test::hangs_with_a_vm", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(test.stdout.take().unwrap()).lines().map_while(Result::ok);
    let data_dir = lines.find_map(|line| line.split_once(HANGS_WITH).map(|(_, dir)| dir.to_owned())).unwrap();
    let data_dir = Path::new(&data_dir);
    assert!(remains_of(data_dir).iter().any(|left| left.contains("qemu")), "the control: it has a VM");
    test.kill().unwrap();
    test.wait().unwrap();
    eventually_empty("what a killed test left", async || remains_of(data_dir)).await;
    fs::remove_dir_all(data_dir).unwrap();
}
