//! Temporary repositories, in which the server fetches and pushes.

use std::{os::unix::fs::symlink, path::Path};

use skep_api::git::GitReach;

use super::boundary;
use crate::{
    Error, Place,
    git::{
        GitError,
        clone_source::{CloneOptions, CloneSource},
        config::ConfigOverrides,
        program::Git,
        repository::Repository,
        temporary_folder::TemporaryFolder,
    },
};

/// The name of its git directory.
const GIT_DIR: &str = "git";

/// A bare repository. Its objects are in the first root of an account, which has space for them. All else of it is where
/// programs of the account cannot change it, so that its config stays as the server wrote it.
pub(in crate::git) struct TemporaryRepository {
    pub(in crate::git) repository: Repository,
    _git_dir: TemporaryFolder,
    /// `None` if the objects are those of another repository.
    _objects: Option<TemporaryFolder>,
}

impl TemporaryRepository {
    /// Creates an empty one.
    ///
    /// # Errors
    /// A failure of git; a workspace without roots.
    pub(super) async fn create(place: &Place) -> Result<Self, Error> {
        let folder = TemporaryFolder::create_private(place).await?;
        let objects = TemporaryFolder::create_in_root(place).await?;
        let git = Git::new(&place.with_private_access(), Path::new("/"), &ConfigOverrides::default());
        let git = git.env("GIT_OBJECT_DIRECTORY", objects.path());
        let git = git.args(["init", "--quiet", "--bare", "--template=", "--"]);
        let output = git.args([folder.path().join(GIT_DIR)]).run().await?;
        if !output.is_success() {
            return Err(GitError::from_message(output.message()).into());
        }
        let repository = Self::link(place, &folder, objects.path()).await?;
        Ok(Self { repository, _git_dir: folder, _objects: Some(objects) })
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
        let objects = TemporaryFolder::create_in_root(place).await?;
        let clone = Self::create_clone_with(place, source, options, reach, objects.path()).await?;
        Ok(Self { _objects: Some(objects), ..clone })
    }

    /// Creates one as a clone whose objects are written to this folder, of another repository.
    ///
    /// # Errors
    /// Those of [`CloneSource::clone_into`].
    pub(in crate::git) async fn create_clone_with(
        place: &Place,
        source: &CloneSource,
        options: CloneOptions<'_>,
        reach: &GitReach,
        objects: &Path,
    ) -> Result<Self, Error> {
        let folder = TemporaryFolder::create_private(place).await?;
        let options = CloneOptions { objects: Some(objects), ..options };
        source.clone_into(&place.with_private_access(), &folder.path().join(GIT_DIR), options, reach).await?;
        let repository = Self::link(place, &folder, objects).await?;
        Ok(Self { repository, _git_dir: folder, _objects: None })
    }

    /// The repository of a git directory, with these objects.
    async fn link(place: &Place, folder: &TemporaryFolder, objects: &Path) -> Result<Repository, Error> {
        let git_dir = folder.path().join(GIT_DIR);
        let (to, link) = (objects.to_owned(), git_dir.join("objects"));
        let linking = tokio::task::spawn_blocking(move || {
            symlink(to, &link).map_err(|error| Error::of_path(&link, &error))
        });
        linking.await.map_err(|_| Error::WorkerFailed)??;
        // So that its own files are found.
        let roots: Vec<_> =
            [folder.path()].into_iter().chain(place.root_paths()).map(Path::to_owned).collect();
        Ok(Repository::made_by_server(&place.with_private_access().with_roots(roots), git_dir))
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
