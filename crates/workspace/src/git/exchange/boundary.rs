//! Where the history of a shallow repository begins: commits whose parents are not there. Git keeps them, a hash a line,
//! in a file.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use rustix::fs::{Mode, OFlags, openat};

use crate::{
    Error, Place,
    git::{
        Refused,
        repository::{Repository, is_hash},
    },
    roots::Last,
};

/// Commits that a history may begin at.
pub(super) const MOST: usize = 10_000;
/// As many lines of the longer hashes.
const LONGEST_FILE: u64 = MOST as u64 * 65;

/// Where the history of this repository begins; nothing where all of it is there.
///
/// # Errors
/// [`Refused::Boundary`], and those of files.
pub(super) async fn told(repository: &Repository) -> Result<Vec<String>, Error> {
    let (place, path) = (repository.place.clone(), file(repository));
    let reading = tokio::task::spawn_blocking(move || read(&place, &path));
    let text = reading.await.map_err(|_| Error::Broken)??;
    let boundary: Vec<String> = text.lines().map(str::to_owned).collect();
    check(&boundary)?;
    Ok(boundary)
}

/// Refuses more than a history begins at, and what no commit's hash is.
pub(super) fn check(boundary: &[String]) -> Result<(), Error> {
    if boundary.len() <= MOST && boundary.iter().all(|hash| is_hash(hash)) {
        return Ok(());
    }
    Err(Refused::Boundary { most: MOST }.into())
}

/// Lets the history of a repository begin at these commits, all of which it has. It had all of its own until now.
///
/// # Errors
/// Those of files.
pub(super) async fn note(repository: &Repository, boundary: &[String]) -> Result<(), Error> {
    // An empty file would say that it is shallow too.
    if boundary.is_empty() {
        return Ok(());
    }
    let (place, path, text) = (repository.place.clone(), file(repository), boundary.join("\n") + "\n");
    let writing = tokio::task::spawn_blocking(move || {
        let slot = place.roots()?.slot(&path)?;
        // Programs of the account may reach the folder: no link of theirs is followed.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(slot.folder(), slot.name(), flags, Mode::RUSR | Mode::WUSR);
        let written = opened.map_err(io::Error::from).and_then(|opened| {
            let mut opened = std::fs::File::from(opened);
            opened.write_all(text.as_bytes())
        });
        written.map_err(|error| Error::of_path(&path, &error))
    });
    writing.await.map_err(|_| Error::Broken)?
}

/// Those of the commits that a repository has.
///
/// # Errors
/// Git refuses.
pub(super) async fn there(repository: &Repository, commits: &[String]) -> Result<Vec<String>, Error> {
    if commits.is_empty() {
        return Ok(Vec::new());
    }
    let git = repository.reading().args(["cat-file", "--batch-check=%(objectname) %(objecttype)"]);
    let said = repository.done(git.stdin(commits.join("\n") + "\n")).await?;
    let commits = said.line();
    Ok(commits.lines().filter_map(|line| line.strip_suffix(" commit")).map(str::to_owned).collect())
}

fn file(repository: &Repository) -> PathBuf {
    repository.common_dir.join("shallow")
}

fn read(place: &Place, path: &std::path::Path) -> Result<String, Error> {
    let found = match place.roots()?.find(path, Last::Follow) {
        Err(Error::UnknownPath { .. }) => return Ok(String::new()),
        found => found?,
    };
    // One byte more, so that what is too long is not taken for the whole.
    let text = found.content(LONGEST_FILE + 1).map_err(|error| Error::of_path(path, &error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
