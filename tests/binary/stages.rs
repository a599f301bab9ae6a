//! `tests/stages/run` with a runner of tests that this test made.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::{eventually, write_program};

/// After Ctrl-C it takes as long as tests that end their servers.
const RUNNER: &str = r#"#!/bin/sh
case "$*" in *--no-run*) exit 0;; esac
trap 'sleep 1; touch ended; exit 130' INT
touch begun
for _ in $(seq 600); do sleep 0.1; done
"#;

#[tokio::test]
async fn an_interrupted_stage_waits_for_the_end_of_its_tests() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stages");
    fs::create_dir_all(root.join("tests/stages")).unwrap();
    fs::create_dir(root.join("packaging")).unwrap();
    for script in ["run", "leftovers.py", "results.py"] {
        fs::copy(stages.join(script), root.join("tests/stages").join(script)).unwrap();
    }
    write_program(&root.join("packaging/nextest"), RUNNER);
    let mut run = Command::new("env")
        .arg("--default-signal=INT")
        .arg(root.join("tests/stages/run"))
        .arg("unit")
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the first test", async || root.join("begun").exists()).await;
    kill_process_group(Pid::from_child(&run), Signal::INT).unwrap();
    assert!(!run.wait().unwrap().success());
    assert!(root.join("ended").exists(), "the tests were killed while they ended");
}
