//! Temporary repositories, in which the server fetches and pushes.

use std::{fmt::Write, io, path::PathBuf};

use skep_api::{AbsolutePath, git::GitReach, path::PathEncoding};

use super::boundary;
use crate::{
    Error, Place,
    git::{
        GitError,
        clone_source::{CloneOptions, CloneSource},
        config::ConfigOverrides,
        locate::TEMPORARY_PREFIX,
        program::Git,
        repository::Repository,
    },
};

/// A bare repository in the first root of an account, where its gits may write. Removed on drop.
pub(super) struct TemporaryRepository {
    pub(super) repository: Repository,
    _folder: RemovedOnDrop,
}

struct RemovedOnDrop(PathBuf);

impl TemporaryRepository {
    /// Creates an empty one.
    ///
    /// # Errors
    /// A failure of git; a workspace without roots.
    pub(super) async fn create(place: &Place) -> Result<Self, Error> {
        let folder = RemovedOnDrop::new_path(place).await?;
        let git = Git::new(place, std::path::Path::new("/"), &ConfigOverrides::default());
        let output =
            git.args(["init", "--quiet", "--bare", "--template=", "--"]).args([&folder.0]).run().await?;
        if !output.is_success() {
            return Err(GitError::from_message(output.message()).into());
        }
        Self::in_folder(place, folder).await
    }

    /// Creates one as a clone.
    ///
    /// # Errors
    /// Those of [`CloneSource::clone_into`]; a workspace without roots.
    pub(super) async fn create_clone(
        place: &Place,
        source: &CloneSource,
        options: CloneOptions<'_>,
        reach: &GitReach,
    ) -> Result<Self, Error> {
        let folder = RemovedOnDrop::new_path(place).await?;
        source.clone_into(place, &folder.0, CloneOptions { bare: true, ..options }, reach).await?;
        Self::in_folder(place, folder).await
    }

    async fn in_folder(place: &Place, folder: RemovedOnDrop) -> Result<Self, Error> {
        let text = skep_api::path::percent_encoded(folder.0.as_os_str());
        let path =
            AbsolutePath::parse("path", &text, PathEncoding::Percent).map_err(|_| Error::WorkerFailed)?;
        Ok(Self { repository: Repository::find(place, Some(&path)).await?, _folder: folder })
    }

    /// The commits of this list that the repository has.
    ///
    /// # Errors
    /// A failure of git.
    pub(super) async fn existing_commits(&self, commits: &[String]) -> Result<Vec<String>, Error> {
        boundary::existing_commits(&self.repository, commits).await
    }

    /// Makes the repository shallow at those of these commits that it has.
    ///
    /// # Errors
    /// A failure of git; those of files.
    pub(super) async fn set_boundary(&self, boundary: &[String]) -> Result<(), Error> {
        if boundary.is_empty() {
            return Ok(());
        }
        boundary::store(&self.repository, &self.existing_commits(boundary).await?).await
    }
}

impl RemovedOnDrop {
    /// A path with a new name in the first root of a workspace.
    async fn new_path(place: &Place) -> Result<Self, Error> {
        let (inner, name) = (place.clone(), random_name()?);
        let folder = tokio::task::spawn_blocking(move || {
            let root = inner.roots()?.paths().next().map(|root| root.join(name));
            root.ok_or(Error::WorkerFailed)
        });
        Ok(Self(folder.await.map_err(|_| Error::WorkerFailed)??))
    }
}

/// An unguessable name with the prefix of temporary repositories, which listings of files leave out by default.
fn random_name() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    read.map_err(|error| Error::NotStarted { source: io::Error::from(error) })?;
    let mut name = TEMPORARY_PREFIX.to_owned();
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let folder = std::mem::take(&mut self.0);
        let remove = move || {
            // Ignores errors: the folder may never have been created.
            let _ = std::fs::remove_dir_all(folder);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
