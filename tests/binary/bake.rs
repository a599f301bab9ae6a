//! Bakes that are told to stop, and templates that are damaged.

mod thorough;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    Skep, eventually,
    images::{bake, flip_a_bit, images_with, images_with_template, skep, templates},
    left_of_bake, temp_dir,
};

/// A bake as far as the step that a word of its progress names.
fn bake_until(step: &str, images: &Path) -> Child {
    let mut child = skep(&["bake"], images).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut progress = BufReader::new(child.stderr.take().unwrap()).lines();
    let found = progress.by_ref().map_while(Result::ok).any(|line| line.contains(step));
    assert!(found, "the bake never came to `{step}`");
    child
}

#[tokio::test]
async fn a_bake_that_is_told_to_stop_leaves_nothing() {
    let images = images_with(&[Path::new(".cache")]);
    let images = images.path();
    for (step, signal) in [("root file system", Signal::TERM), ("boot of the guest", Signal::INT)] {
        let child = bake_until(step, images);
        eventually("a process of the bake", async || !left_of_bake(images).is_empty()).await;
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
        let code = child.wait_with_output().unwrap().status.code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{step}");
        assert_eq!(left_of_bake(images), Vec::<String>::new(), "{step}");
        assert_eq!(templates(images), Vec::<PathBuf>::new(), "{step}");
        assert_eq!(fs::read_dir(images.join("base")).unwrap().count(), 0, "{step}");
    }
}

#[tokio::test]
async fn a_damaged_template_is_named_and_baked_again_before_it_is_served() {
    let (images, dir) = images_with_template();
    flip_a_bit(&dir.join("ram"));
    let looked =
        skep(&["doctor"], images.path()).arg("--data-dir").arg(images.path().join("no-data")).output();
    let findings = String::from_utf8(looked.unwrap().stdout).unwrap();
    assert!(findings.contains("is damaged: ram: SHA-256"), "{findings}");

    let data_dir = temp_dir();
    let skep = Skep::start_on(data_dir, &["--image-dir", images.path().to_str().unwrap()]).await;
    let log = skep.log();
    let line = log.lines().find(|line| line.contains("is damaged")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&dir.display().to_string()) && line.contains("ram: SHA-256"), "{line}");
    let pid = skep.boot_one().await;
    assert_eq!(skep.output(pid, "echo whole").await, "whole");
    drop(skep.stop());
    assert_eq!(left_of_bake(images.path()), Vec::<String>::new());
    assert_eq!(templates(images.path()), [dir]);
    assert!(bake(images.path()).stderr.is_empty(), "it is whole now");
}
