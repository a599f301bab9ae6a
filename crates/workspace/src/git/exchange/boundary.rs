//! The boundary of a shallow repository: commits whose parents are missing. Git stores them in the file `shallow`, one
//! hash per line.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use rustix::fs::{Mode, OFlags, openat};

use crate::{
    Error, Place,
    git::{
        GitError,
        repository::{Repository, is_hash},
    },
    roots::FinalLink,
};

/// Limit of commits in a boundary.
pub(super) const MAX_COMMITS: usize = 10_000;
/// The size of this many lines with SHA-256 hashes, in bytes.
const MAX_FILE_BYTES: u64 = MAX_COMMITS as u64 * 65;

/// The boundary of this repository; empty for a complete history.
///
/// # Errors
/// [`GitError::InvalidShallowFile`], and those of files.
pub(super) async fn load(repository: &Repository) -> Result<Vec<String>, Error> {
    let (place, path) = (repository.place.clone(), shallow_file(repository));
    let reading = tokio::task::spawn_blocking(move || read(&place, &path));
    let text = reading.await.map_err(|_| Error::WorkerFailed)??;
    let boundary: Vec<String> = text.lines().map(str::to_owned).collect();
    check(&boundary)?;
    Ok(boundary)
}

/// Refuses boundaries that are too long or contain other text than hashes.
pub(super) fn check(boundary: &[String]) -> Result<(), Error> {
    if boundary.len() <= MAX_COMMITS && boundary.iter().all(|hash| is_hash(hash)) {
        return Ok(());
    }
    Err(GitError::InvalidShallowFile { most: MAX_COMMITS }.into())
}

/// Makes a complete repository shallow at these commits, all of which it has.
///
/// # Errors
/// Those of files.
pub(super) async fn store(repository: &Repository, boundary: &[String]) -> Result<(), Error> {
    // Even an empty file would mark the repository as shallow.
    if boundary.is_empty() {
        return Ok(());
    }
    let (place, path, text) =
        (repository.place.clone(), shallow_file(repository), boundary.join("\n") + "\n");
    let writing = tokio::task::spawn_blocking(move || {
        let slot = place.roots()?.slot(&path)?;
        // Programs of the account may have access to the folder, so links are not followed.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(slot.folder(), slot.name(), flags, Mode::RUSR | Mode::WUSR);
        let written = opened.map_err(io::Error::from).and_then(|opened| {
            let mut opened = std::fs::File::from(opened);
            opened.write_all(text.as_bytes())
        });
        written.map_err(|error| Error::of_path(&path, &error))
    });
    writing.await.map_err(|_| Error::WorkerFailed)?
}

/// The commits of this list that the repository has.
///
/// # Errors
/// A failure of git.
pub(super) async fn existing_commits(
    repository: &Repository,
    commits: &[String],
) -> Result<Vec<String>, Error> {
    if commits.is_empty() {
        return Ok(Vec::new());
    }
    let git = repository.read_only_git().args(["cat-file", "--batch-check=%(objectname) %(objecttype)"]);
    let output = repository.run_checked(git.stdin(commits.join("\n") + "\n")).await?;
    let commits = output.stdout_text();
    Ok(commits.lines().filter_map(|line| line.strip_suffix(" commit")).map(str::to_owned).collect())
}

fn shallow_file(repository: &Repository) -> PathBuf {
    repository.common_dir.join("shallow")
}

fn read(place: &Place, path: &std::path::Path) -> Result<String, Error> {
    let found = match place.roots()?.find(path, FinalLink::Follow) {
        Err(Error::UnknownPath { .. }) => return Ok(String::new()),
        found => found?,
    };
    // One byte more than the limit, so that a longer file is detected.
    let text = found.content(MAX_FILE_BYTES + 1).map_err(|error| Error::of_path(path, &error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
