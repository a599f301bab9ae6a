//! Temporary repositories, in which the server fetches and pushes.

use std::{fmt::Write, io, path::PathBuf};

use skep_api::{AbsolutePath, git::GitReach, path::PathEncoding};

use super::boundary;
use crate::{
    Error, Place,
    git::{
        Refused,
        cloning::{CloneOptions, CloneSource},
        lies::BRIEF,
        program::Git,
        repository::Repository,
        settings::Settings,
    },
};

/// A bare repository in the first root of an account, where its gits may write. Removed on drop.
pub(super) struct Brief {
    pub(super) repository: Repository,
    _folder: Folder,
}

struct Folder(PathBuf);

impl Brief {
    /// Creates an empty one.
    ///
    /// # Errors
    /// A failure of git; a workspace without roots.
    pub(super) async fn make(place: &Place) -> Result<Self, Error> {
        let folder = Folder::choose(place).await?;
        let git = Git::new(place, std::path::Path::new("/"), &Settings::default());
        let said =
            git.args(["init", "--quiet", "--bare", "--template=", "--"]).args([&folder.0]).run().await?;
        if !said.done() {
            return Err(Refused::by_words(said.words()).into());
        }
        Self::in_folder(place, folder).await
    }

    /// Creates one as a clone.
    ///
    /// # Errors
    /// Those of [`CloneSource::clone_into`]; a workspace without roots.
    pub(super) async fn cloned(
        place: &Place,
        source: &CloneSource,
        options: CloneOptions<'_>,
        reach: &GitReach,
    ) -> Result<Self, Error> {
        let folder = Folder::choose(place).await?;
        source.clone_into(place, &folder.0, CloneOptions { bare: true, ..options }, reach).await?;
        Self::in_folder(place, folder).await
    }

    async fn in_folder(place: &Place, folder: Folder) -> Result<Self, Error> {
        let text = skep_api::path::encoded(folder.0.as_os_str());
        let path = AbsolutePath::parse("path", &text, PathEncoding::Percent).map_err(|_| Error::Broken)?;
        Ok(Self { repository: Repository::find(place, Some(&path)).await?, _folder: folder })
    }

    /// The commits of this list that the repository has.
    ///
    /// # Errors
    /// A failure of git.
    pub(super) async fn there(&self, commits: &[String]) -> Result<Vec<String>, Error> {
        boundary::there(&self.repository, commits).await
    }

    /// Makes the repository shallow at those of these commits that it has.
    ///
    /// # Errors
    /// A failure of git; those of files.
    pub(super) async fn begin_at(&self, boundary: &[String]) -> Result<(), Error> {
        if boundary.is_empty() {
            return Ok(());
        }
        boundary::note(&self.repository, &self.there(boundary).await?).await
    }
}

impl Folder {
    /// A path with a new name in the first root of a workspace.
    async fn choose(place: &Place) -> Result<Self, Error> {
        let (inner, name) = (place.clone(), name()?);
        let folder = tokio::task::spawn_blocking(move || {
            let root = inner.roots()?.paths().next().map(|root| root.join(name));
            root.ok_or(Error::Broken)
        });
        Ok(Self(folder.await.map_err(|_| Error::Broken)??))
    }
}

/// An unguessable name with the prefix of temporary repositories, which listings of files leave out by default.
fn name() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    read.map_err(|error| Error::NotStarted { source: io::Error::from(error) })?;
    let mut name = BRIEF.to_owned();
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

impl Drop for Folder {
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
