//! What a copy has while it is made, for tests that look for what is left of it.

use std::{fs, path::PathBuf};

use crate::{harness::Skep, steps::Step};

/// What the log says after each step of a copy.
pub(super) const STEPS: [Step; 6] = [
    &["is copied while it runs"],
    &["are frozen"],
    &["are stopped for a copy"],
    &["are saved"],
    &["the processors of VM vm_", "run again"],
    &["the programs of VM vm_", "run again"],
];

/// Captures that the keeper holds, by the files of their device states.
pub(super) fn captures(skep: &Skep) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", skep.pid())).unwrap().flatten();
    let is_state = |path: PathBuf| path.to_string_lossy().starts_with("/memfd:skep-state");
    files.filter(|file| fs::read_link(file.path()).is_ok_and(is_state)).count()
}

pub(super) fn template_folders(skep: &Skep) -> usize {
    fs::read_dir(skep.data_dir.path().join("templates")).into_iter().flatten().count()
}
