//! `tests/stages/run` with a runner of tests that this test made.

mod root;

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::harness::{eventually, write_program};

/// After Ctrl-C it takes as long as tests that end their servers.
const WAITS: &str = r#"#!/bin/sh
case "$1" in build) exit 0;; esac
trap 'sleep 1; touch ended; exit 130' INT
touch begun
for _ in $(seq 600); do sleep 0.1; done
"#;

/// A copy of the stages with this runner, in which `skep` writes its arguments to the file `cleaned`.
fn stages_with(runner: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stages");
    for folder in ["tests/stages", "packaging", "target/release"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    for script in ["run", "leftovers.py", "results.py"] {
        fs::copy(stages.join(script), root.path().join("tests/stages").join(script)).unwrap();
    }
    fs::copy(stages.join("../../packaging/as-owner"), root.path().join("packaging/as-owner")).unwrap();
    write_program(&root.path().join("packaging/nextest"), runner);
    let skep = format!("#!/bin/sh\necho \"$*\" >> {}/cleaned\n", root.path().display());
    write_program(&root.path().join("target/release/skep"), &skep);
    root
}

fn run_of(root: &Path) -> Command {
    let mut run = Command::new("env");
    run.args(["--default-signal=INT", "-u", "SKEP_BINARY", "-u", "SKEP_TEST_RECORD"])
        .arg(root.join("tests/stages/run"))
        .arg("unit");
    run
}

#[tokio::test]
async fn an_interrupted_stage_waits_for_the_end_of_its_tests() {
    let root = stages_with(WAITS);
    let root = root.path();
    let mut run = run_of(root).process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the first test", async || root.join("begun").exists()).await;
    kill_process_group(Pid::from_child(&run), Signal::INT).unwrap();
    assert!(!run.wait().unwrap().success());
    assert!(root.join("ended").exists(), "the tests were killed while they ended");
}
