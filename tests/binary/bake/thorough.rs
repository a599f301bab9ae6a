//! Bakes that are killed.

use std::{
    path::{Path, PathBuf},
    process::Output,
};

use super::bake_until;
use crate::harness::{
    eventually,
    images::{bake, clean, images_with, templates},
    left_of_bake,
};

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_killed_bake_leaves_no_template_and_the_next_clears_its_remains_away() {
    let images = images_with(&[Path::new(".cache")]);
    let images = images.path();
    for step in ["root file system", "boot of the guest", "checksums"] {
        let mut child = bake_until(step, images);
        if step.starts_with("boot") {
            eventually("the VMM", async || left_of_bake(images).iter().any(|one| one.contains("qemu"))).await;
            let refused = clean(images);
            assert_eq!(refused.status.code(), Some(1));
            assert!(
                stderr_text(&refused).contains(&images.display().to_string()),
                "{}",
                stderr_text(&refused)
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!left_of_bake(images).is_empty(), "this test sees what is left at `{step}`");
        assert_eq!(templates(images), Vec::<PathBuf>::new(), "{step}");
        if step.starts_with("boot") {
            let cleaned = clean(images);
            assert!(cleaned.status.success(), "{}", stderr_text(&cleaned));
            assert_eq!(left_of_bake(images), Vec::<String>::new());
        }
    }
    let baked = bake(images);
    assert!(baked.status.success(), "{}", stderr_text(&baked));
    assert_eq!(left_of_bake(images), Vec::<String>::new());
    assert_eq!(templates(images).len(), 1);
    // Whole: it is checked, and not baked again.
    let again = bake(images);
    assert!(again.status.success() && again.stderr.is_empty(), "{}", stderr_text(&again));
    assert_eq!(again.stdout, baked.stdout);
}
