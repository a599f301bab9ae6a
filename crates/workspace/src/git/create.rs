//! Creates repositories: init and clone.

use std::path::Path;

use skep_api::{
    AbsolutePath,
    git::{Cloned, GitClone, GitInit, GitReach, Initialized},
    path::encode_path,
};

use super::{
    GitError,
    clone_source::{CloneOptions, CloneSource},
    config::ConfigOverrides,
    exchange::{UnfinishedClone, clone_here},
    large_files,
    lock::write_lock,
    program::Git,
    repository::{Repository, check_revision},
    worktree::resolve_new_folder,
};
use crate::{Error, Place, Run, roots::FinalLink};

/// Name of the first branch of a new repository.
pub(super) const FIRST_BRANCH: &str = "main";

impl Run for GitInit {
    async fn run(self, place: &Place) -> Result<Initialized, Error> {
        let (inner, path) = (place.clone(), self.path.clone());
        // A folder that contains files may become a repository; an existing repository is refused.
        let looked = tokio::task::spawn_blocking(move || {
            let roots = inner.roots()?;
            let path = path.as_path();
            let taken =
                [".git", "HEAD"].iter().any(|name| roots.find(&path.join(name), FinalLink::NoFollow).is_ok());
            if taken {
                return Err(Error::AlreadyExists { path: path.join(".git").display().to_string() });
            }
            match roots.find(path, FinalLink::Follow) {
                Ok(found) if found.is_directory() => std::fs::read_link(found.proc_path())
                    .map(Some)
                    .map_err(|error| Error::of_path(path, &error)),
                Ok(_) => Err(Error::NotAFolder { path: path.display().to_string() }),
                Err(Error::UnknownPath { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let folder = match looked.await.map_err(|_| Error::WorkerFailed)?? {
            Some(folder) => folder,
            None => resolve_new_folder(place, self.path.as_path()).await?,
        };
        let _turn = write_lock(&folder).await?;
        let branch = format!("--initial-branch={FIRST_BRANCH}");
        let git = Git::new(place, Path::new("/"), &ConfigOverrides::default());
        let output = git
            .args(["init", "--quiet", "--template=", &branch])
            .args(self.bare.then_some("--bare"))
            .args(["--"])
            .args([&folder])
            .run()
            .await?;
        if !output.is_success() {
            return Err(GitError::from_message(output.message()).into());
        }
        let (path, path_encoding) = encode_path(self.path.as_path().as_os_str());
        Ok(Initialized { path, path_encoding, branch: FIRST_BRANCH.to_owned() })
    }
}

impl Run for GitClone {
    async fn run(self, place: &Place) -> Result<Cloned, Error> {
        if let Some(branch) = &self.branch {
            check_revision("branch", branch)?;
        }
        let source = CloneSource::find(place, &self.url).await?;
        let folder = resolve_new_folder(place, self.path.as_path()).await?;
        let _turn = write_lock(&folder).await?;
        let unfinished = UnfinishedClone::begin(place, &folder);
        let cloned = if source.is_local() {
            clone_local(&self, &source, place, &folder).await
        } else {
            clone_here(&self, &source, place, &folder).await
        };
        unfinished.end(cloned).await
    }
}

/// Clones a repository of the same workspace.
async fn clone_local(
    clone: &GitClone,
    source: &CloneSource,
    place: &Place,
    folder: &Path,
) -> Result<Cloned, Error> {
    let reach = &place.context().reach;
    let no_checkout = ConfigOverrides::with_filters(&place.git_grants().filters).has_large_files();
    let (branch, depth) = (clone.branch.as_deref(), clone.depth);
    let options = CloneOptions { branch, depth, bare: false, no_checkout, objects: None };
    source.clone_into(place, folder, options, reach).await?;
    let repository = Repository::find(place, Some(&clone.path)).await?;
    // The clone used the temporary URL of a socket.
    let set = repository.git().args(["config", "--local", "--replace-all", "remote.origin.url", &clone.url]);
    repository.run_checked(set).await?;
    if no_checkout {
        check_out_with_large_files(place, &clone.path, reach).await?;
    }
    let (branch, head) = tokio::try_join!(repository.branch(), repository.head())?;
    let (path, path_encoding) = encode_path(clone.path.as_path().as_os_str());
    Ok(Cloned { path, path_encoding, branch, head })
}

/// Checks out the current commit of a clone, if it has one, after fetching its large files from the remote, which is
/// configured only now.
async fn check_out_with_large_files(
    place: &Place,
    path: &AbsolutePath,
    reach: &GitReach,
) -> Result<(), Error> {
    let repository = Repository::find(place, Some(path)).await?;
    let Some(head) = repository.head().await? else { return Ok(()) };
    let git = repository.git().args(["reset", "--quiet", "--hard", "--no-recurse-submodules"]);
    large_files::check_out(&repository, &head, reach, repository.run_checked(git)).await?;
    Ok(())
}
