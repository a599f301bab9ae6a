//! Removes what a failed clone has made.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{Error, Place, roots::FinalLink};

/// Removes an unfinished clone when it is dropped, unless [`Self::end`] was called.
pub(in crate::git) struct UnfinishedClone {
    /// The place and the folder; `None` once it has ended.
    at: Option<(Place, PathBuf)>,
    existed: bool,
}

impl UnfinishedClone {
    pub(in crate::git) fn begin(place: &Place, folder: &Path) -> Self {
        let existed = fs::symlink_metadata(folder).is_ok();
        Self { at: Some((place.clone(), folder.to_owned())), existed }
    }

    /// Keeps the clone if it succeeded, and removes it otherwise.
    pub(in crate::git) async fn end<T>(mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        let (at, existed) = (self.at.take(), self.existed);
        if outcome.is_ok() {
            return outcome;
        }
        // Errors are ignored: the caller reports the one that led here.
        let _ = tokio::task::spawn_blocking(move || {
            at.map(|(place, folder)| remove_with_retries(&place, &folder, existed))
        })
        .await;
        outcome
    }
}

impl Drop for UnfinishedClone {
    fn drop(&mut self) {
        let (Some((place, folder)), existed) = (self.at.take(), self.existed) else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                drop(runtime.spawn_blocking(move || remove_with_retries(&place, &folder, existed)));
            }
            Err(_) => remove_with_retries(&place, &folder, existed),
        }
    }
}

/// Removes the folder, or only its content if the folder existed before. Retries, because a git that is ending may
/// still create files.
fn remove_with_retries(place: &Place, folder: &Path, existed: bool) {
    for _ in 0..REMOVE_ATTEMPTS {
        match remove(place, folder, existed) {
            Ok(()) | Err(Error::UnknownPath { .. }) => return,
            Err(_) => thread::sleep(REMOVE_INTERVAL),
        }
    }
    tracing::warn!(folder = %folder.display(), "the files of an unfinished clone could not be removed");
}

/// Removes it below the roots of the account: programs of the account may have put a link to elsewhere in its place.
fn remove(place: &Place, folder: &Path, existed: bool) -> Result<(), Error> {
    let failed = |error: io::Error| Error::of_path(folder, &error);
    let roots = place.roots()?;
    if !existed {
        let slot = roots.slot(folder)?;
        let path = Path::new(&slot.folder().proc_path()).join(slot.name());
        return fs::remove_dir_all(path).map_err(failed);
    }
    let found = roots.find(folder, FinalLink::NoFollow)?;
    if found.is_directory() { remove_entries(Path::new(&found.proc_path())).map_err(failed) } else { Ok(()) }
}

/// Together longer than the grace period of a git that is ending.
const REMOVE_ATTEMPTS: u32 = 40;
const REMOVE_INTERVAL: Duration = Duration::from_millis(100);

fn remove_entries(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::symlink};

    use super::*;

    #[tokio::test]
    async fn what_a_link_leads_to_outside_the_roots_stays() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = Place::new(root.path(), root.path(), BTreeMap::new(), "/nowhere");
        let names = |folder: &Path| fs::read_dir(folder).unwrap().count();
        let fail = async |unfinished: UnfinishedClone| {
            let failed = unfinished.end(Err::<(), _>(Error::WorkerFailed)).await;
            assert!(matches!(failed, Err(Error::WorkerFailed)));
        };
        let victim = other.path().join("victim");
        for name in ["existing", "deep/new"] {
            let folder = root.path().join(name);
            let existed = name == "existing";
            fs::create_dir_all(if existed { &folder } else { folder.parent().unwrap() }).unwrap();
            fs::create_dir_all(victim.join("new")).unwrap();
            fs::write(victim.join("new/file"), "").unwrap();
            // The control: without a link, what the clone made goes.
            let unfinished = UnfinishedClone::begin(&place, &folder);
            fs::create_dir_all(folder.join(".git")).unwrap();
            fail(unfinished).await;
            assert_eq!((folder.exists(), folder.join(".git").exists()), (existed, false), "{name}");

            let unfinished = UnfinishedClone::begin(&place, &folder);
            let replaced = if existed { folder.clone() } else { folder.parent().unwrap().to_owned() };
            fs::remove_dir_all(&replaced).unwrap();
            symlink(&victim, &replaced).unwrap();
            fail(unfinished).await;
            assert_eq!((names(&victim), names(&victim.join("new"))), (1, 1), "{name}");
        }
    }
}
