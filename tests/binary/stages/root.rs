//! What only root can leave behind.

use std::{fs, path::Path};

use super::{run_of, stages_with};

/// Leaves what tests leave that are killed: the image directory of a bake, a namespace and a control group, with processes.
const LEAVES: &str = r#"#!/bin/sh -e
case "$1" in build) exit 0;; esac
mkdir -p "$TMPDIR/skep-test-bake/deep/images"
touch "$TMPDIR/skep-test-bake/deep/images/.lock"
ip netns add skep-test-$$-world
ip netns exec skep-test-$$-world sleep 600 > /dev/null 2>&1 &
for group in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    if [ -e $group/cgroup.procs ]; then break; fi
done
mkdir -p $group/skep-test-$$-machine/below
sleep 600 > /dev/null 2>&1 &
echo $! > $group/skep-test-$$-machine/below/cgroup.procs
printf '%s\n' /run/netns/skep-test-$$-world $group/skep-test-$$-machine > left
"#;

#[test]
fn what_killed_tests_leave_is_named_and_removed() {
    let root = stages_with(LEAVES);
    let root = root.path();
    let ran = run_of(root).output().unwrap();
    let table = String::from_utf8_lossy(&ran.stdout);
    assert!(!ran.status.success(), "{table}");
    let left = fs::read_to_string(root.join("left")).unwrap();
    for path in left.lines() {
        let named = table.split_once(&format!("left behind: {path}\n    processes: "));
        assert!(
            named.is_some_and(|(_, pids)| pids.starts_with(|first: char| first.is_ascii_digit())),
            "{table}"
        );
        assert!(!Path::new(path).exists(), "{path} is still there: {table}");
    }
    let cleaned = fs::read_to_string(root.join("cleaned")).unwrap();
    assert!(cleaned.lines().any(|arguments| arguments.ends_with("skep-test-bake/deep/images")), "{cleaned}");
}
