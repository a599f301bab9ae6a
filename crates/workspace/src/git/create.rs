//! Creates repositories: init and clone.

use skep_api::{
    git::{Cloned, GitClone, GitInit, Initialized},
    path::encode_path,
};

use super::{
    GitError,
    clone_source::{CloneOptions, CloneSource},
    config::ConfigOverrides,
    exchange::{UnfinishedClone, clone_here},
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
        let git = Git::new(place, std::path::Path::new("/"), &ConfigOverrides::default());
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
        if !source.is_local() {
            let unfinished = UnfinishedClone::begin(place, &folder);
            return unfinished.end(clone_here(&self, &source, place, &folder).await).await;
        }
        let options =
            CloneOptions { branch: self.branch.as_deref(), depth: self.depth, bare: false, objects: None };
        source.clone_into(place, &folder, options, &place.context().reach).await?;
        let repository = Repository::find(place, Some(&self.path)).await?;
        // The clone used the temporary URL of a socket.
        let set =
            repository.git().args(["config", "--local", "--replace-all", "remote.origin.url", &self.url]);
        repository.run_checked(set).await?;
        let (branch, head) = tokio::try_join!(repository.branch(), repository.head())?;
        let (path, path_encoding) = encode_path(self.path.as_path().as_os_str());
        Ok(Cloned { path, path_encoding, branch, head })
    }
}
