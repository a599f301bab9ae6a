//! Bakes that are killed, and templates that are damaged.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{Skep, binary, ended, eventually, left_of_bake};

fn test_images() -> PathBuf {
    let images = std::env::var_os("SKEP_TEST_IMAGES");
    PathBuf::from(images.unwrap_or_else(|| panic!("SKEP_TEST_IMAGES is not set: run `make test`")))
}

/// An image directory of a test's own. Where the test fails, the VM of a killed bake does not stay.
struct Images(TempDir);

impl Images {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("cleared away: {:?}", clean(self.path()));
        }
    }
}

/// The same with copies of some of what the shared one has.
fn images_with(copied: &[&Path]) -> Images {
    let shared = test_images();
    // Not below /tmp, which may be memory.
    let own = tempfile::Builder::new().prefix("skep-test-").tempdir_in(shared.parent().unwrap()).unwrap();
    for path in copied {
        let below = own.path().join(path.parent().unwrap());
        fs::create_dir_all(&below).unwrap();
        let options = ["-a", "--reflink=auto", "--sparse=always"];
        let status = Command::new("cp").args(options).arg(shared.join(path)).arg(&below).status().unwrap();
        assert!(status.success());
    }
    Images(own)
}

fn skep(verb: &[&str], images: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(verb).arg("--image-dir").arg(images).stdin(Stdio::null());
    command
}

fn bake(images: &Path) -> Output {
    skep(&["bake"], images).output().unwrap()
}

/// A bake as far as the step that a word of its progress names.
fn bake_until(step: &str, images: &Path) -> Child {
    let mut child = skep(&["bake"], images).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let found = told.by_ref().map_while(Result::ok).any(|line| line.contains(step));
    assert!(found, "the bake never came to `{step}`");
    child
}

/// The folders of templates that a server could find.
fn templates(images: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(images.join("base")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("manifest.json").exists()).collect()
}

/// Clears away what killed bakes left, as a user would.
fn clean(images: &Path) -> Output {
    // A data directory that does not exist has nothing to be cleared away.
    ended(skep(&["doctor", "--clean"], images).arg("--data-dir").arg(images.join("no-data")))
}

fn said(output: &Output) -> String {
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
            assert!(said(&refused).contains(&images.display().to_string()), "{}", said(&refused));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!left_of_bake(images).is_empty(), "this test sees what is left at `{step}`");
        assert_eq!(templates(images), Vec::<PathBuf>::new(), "{step}");
        if step.starts_with("boot") {
            let cleaned = clean(images);
            assert!(cleaned.status.success(), "{}", said(&cleaned));
            assert_eq!(left_of_bake(images), Vec::<String>::new());
        }
    }
    let baked = bake(images);
    assert!(baked.status.success(), "{}", said(&baked));
    assert_eq!(left_of_bake(images), Vec::<String>::new());
    assert_eq!(templates(images).len(), 1);
    // Whole: it is checked, and not baked again.
    let again = bake(images);
    assert!(again.status.success() && again.stderr.is_empty(), "{}", said(&again));
    assert_eq!(again.stdout, baked.stdout);
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
    let shared = bake(&test_images());
    let template = PathBuf::from(String::from_utf8(shared.stdout).unwrap().trim_end());
    let key = template.file_name().unwrap();
    let images = images_with(&[Path::new(".cache"), &Path::new("base").join(key)]);
    let dir = images.path().join("base").join(key);
    flip_a_bit(&dir.join("ram"));

    let data_dir = tempfile::Builder::new().prefix("skep-test-").tempdir().unwrap();
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

fn flip_a_bit(path: &Path) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let at = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
