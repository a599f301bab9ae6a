//! Creates repositories: init and clone.

use skep_api::{
    git::{Cloned, GitClone, GitInit, Initialized},
    path::told,
};

use super::{
    Refused,
    cloning::{CloneOptions, CloneSource},
    lock::turn,
    program::Git,
    repository::{Repository, check_revision},
    settings::Settings,
    worktree::new_folder,
};
use crate::{Error, Place, Run, roots::Last};

/// Name of the first branch of a new repository.
pub(super) const FIRST_BRANCH: &str = "main";

impl Run for GitInit {
    async fn run(self, place: &Place) -> Result<Initialized, Error> {
        let (inner, path) = (place.clone(), self.path.clone());
        // A folder that contains files may become a repository; an existing repository is refused.
        let looked = tokio::task::spawn_blocking(move || {
            let roots = inner.roots()?;
            let path = path.as_path();
            let taken = [".git", "HEAD"].iter().any(|name| roots.find(&path.join(name), Last::Keep).is_ok());
            if taken {
                return Err(Error::AlreadyExists { path: path.join(".git").display().to_string() });
            }
            match roots.find(path, Last::Follow) {
                Ok(found) if found.is_directory() => std::fs::read_link(found.own_name())
                    .map(Some)
                    .map_err(|error| Error::of_path(path, &error)),
                Ok(_) => Err(Error::NotAFolder { path: path.display().to_string() }),
                Err(Error::UnknownPath { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let folder = match looked.await.map_err(|_| Error::Broken)?? {
            Some(folder) => folder,
            None => new_folder(place, self.path.as_path()).await?,
        };
        let _turn = turn(&folder).await?;
        let branch = format!("--initial-branch={FIRST_BRANCH}");
        let git = Git::new(place, std::path::Path::new("/"), &Settings::default());
        let said = git
            .args(["init", "--quiet", "--template=", &branch])
            .args(self.bare.then_some("--bare"))
            .args(["--"])
            .args([&folder])
            .run()
            .await?;
        if !said.done() {
            return Err(Refused::by_words(said.words()).into());
        }
        let (path, path_encoding) = told(self.path.as_path().as_os_str());
        Ok(Initialized { path, path_encoding, branch: FIRST_BRANCH.to_owned() })
    }
}

impl Run for GitClone {
    async fn run(self, place: &Place) -> Result<Cloned, Error> {
        if let Some(branch) = &self.branch {
            check_revision("branch", branch)?;
        }
        let source = CloneSource::find(place, &self.url).await?;
        let folder = new_folder(place, self.path.as_path()).await?;
        let _turn = turn(&folder).await?;
        let options = CloneOptions { branch: self.branch.as_deref(), depth: self.depth, bare: false };
        source.clone_into(place, &folder, options, &self.reach).await?;
        let repository = Repository::find(place, Some(&self.path)).await?;
        if source.is_here() {
            // The clone used the temporary URL of a socket.
            let set =
                repository.git().args(["config", "--local", "--replace-all", "remote.origin.url", &self.url]);
            repository.done(set).await?;
        }
        let (branch, head) = tokio::try_join!(repository.branch(), repository.head())?;
        let (path, path_encoding) = told(self.path.as_path().as_os_str());
        Ok(Cloned { path, path_encoding, branch, head })
    }
}
