//! Image directories for single tests.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use super::{binary, output_of, small_vms};

/// The image directory that tests share.
pub fn test_images() -> PathBuf {
    let images = std::env::var_os("SKEP_TEST_IMAGES");
    PathBuf::from(images.unwrap_or_else(|| panic!("SKEP_TEST_IMAGES is not set: run `make test`")))
}

/// An image directory for one test. Its drop also removes the VM of a killed bake, where the test failed.
pub struct Images(TempDir);

impl Images {
    pub fn path(&self) -> &Path {
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

/// Creates an image directory with copies of some entries of the shared one.
pub fn images_with(copied: &[&Path]) -> Images {
    let shared = test_images();
    // Not below /tmp, which may be a tmpfs.
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

/// A command of `skep` with this image directory.
pub fn skep(verb: &[&str], images: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(verb).arg("--image-dir").arg(images).stdin(Stdio::null());
    small_vms(&mut command);
    command
}

/// Bakes a template, where none is up to date.
pub fn bake(images: &Path) -> Output {
    skep(&["bake"], images).output().unwrap()
}

/// Creates an image directory with the current base template. Returns it and the template's folder.
pub fn images_with_template() -> (Images, PathBuf) {
    let shared = bake(&test_images());
    let template = PathBuf::from(String::from_utf8(shared.stdout).unwrap().trim_end());
    let key = template.file_name().unwrap();
    let images = images_with(&[Path::new(".cache"), &Path::new("base").join(key)]);
    let dir = images.path().join("base").join(key);
    (images, dir)
}

/// Names the images of the tests to a command, where there are some. Apt keeps a cache beside them, without which it parses its
/// package lists for longer than the doctor needs for all else.
pub fn with_images(command: &mut Command) -> &mut Command {
    if let Some(images) = std::env::var_os("SKEP_TEST_IMAGES") {
        command.env("SKEP_IMAGE_DIR", images);
    }
    command
}

/// The folders of the templates that a server would find.
pub fn templates(images: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(images.join("base")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("manifest.json").exists()).collect()
}

/// Removes what killed bakes left behind, by the command that users run.
pub fn clean(images: &Path) -> Output {
    // The data directory does not exist, so nothing is removed there.
    output_of(skep(&["doctor", "--clean"], images).arg("--data-dir").arg(images.join("no-data")))
}

/// Changes one bit in the middle of a file.
pub fn flip_a_bit(path: &Path) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let at = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
