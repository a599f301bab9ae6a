//! The source of a clone: a remote, or a repository in the same workspace.

use std::path::Path;

use skep_api::git::GitReach;

use super::{
    GitError,
    config::ConfigOverrides,
    program::Git,
    remote::{LocalRemote, Remote},
};
use crate::{Error, Place};

pub(super) struct CloneSource {
    url: String,
    remote: Remote,
    /// The connection to it, if it is in this workspace.
    local_remote: Option<LocalRemote>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CloneOptions<'a> {
    pub(super) branch: Option<&'a str>,
    pub(super) depth: Option<u32>,
    /// Without a work tree, and with the branches of the source as its own.
    pub(super) bare: bool,
    /// With an empty work tree.
    pub(super) no_checkout: bool,
    /// The folder for the objects; that of the clone if `None`.
    pub(super) objects: Option<&'a Path>,
}

impl<'a> CloneOptions<'a> {
    pub(super) fn bare(branch: Option<&'a str>, depth: Option<u32>) -> Self {
        Self { branch, depth, bare: true, no_checkout: false, objects: None }
    }
}

impl CloneSource {
    /// Parses the URL. A repository in this workspace is located and checked.
    ///
    /// # Errors
    /// [`GitError::RemoteForbidden`], `invalid_value`, and those of paths and repositories.
    pub(super) async fn find(place: &Place, url: &str) -> Result<Self, Error> {
        let remote = Remote::parse(url)?;
        let local_remote = match &remote {
            Remote::Local(path) if path.is_absolute() => Some(LocalRemote::find(place, path).await?),
            Remote::Local(_) => {
                let reason = format!("is `{url}`, which is neither a URL nor an absolute path");
                return Err(Error::InvalidValue { field: "url", reason });
            }
            _ => None,
        };
        Ok(Self { url: url.to_owned(), remote, local_remote })
    }

    pub(super) fn is_local(&self) -> bool {
        self.local_remote.is_some()
    }

    /// Clones the source.
    ///
    /// # Errors
    /// [`GitError::UnknownRevision`], [`GitError::RemoteForbidden`], [`GitError::RemoteFailed`].
    pub(super) async fn clone_into(
        &self,
        place: &Place,
        folder: &Path,
        options: CloneOptions<'_>,
        reach: &GitReach,
    ) -> Result<(), Error> {
        let settings = ConfigOverrides::with_filters(&place.git_grants().filters);
        let transport = self.remote.connect(&self.url, reach, &settings).await?;
        let git = transport.git(|settings| Git::new(place, Path::new("/"), settings));
        let git = match options.objects {
            Some(folder) => git.env("GIT_OBJECT_DIRECTORY", folder),
            None => git,
        };
        let git = git.args(["clone", "--quiet", "--template=", "--no-local", "--no-recurse-submodules"]);
        let git = git.args(options.bare.then_some("--bare"));
        let git = git.args(options.no_checkout.then_some("--no-checkout"));
        let git = git.args(options.branch.map(|branch| format!("--branch={branch}")));
        let git = git.args(options.depth.map(|depth| format!("--depth={depth}")));
        let git = match &self.local_remote {
            Some(local_remote) => {
                let connection =
                    local_remote.connect("upload-pack").map_err(|source| Error::NotStarted { source })?;
                let git = git.args(["--", &connection.url()]).args([folder]);
                connection.attach_to(git)
            }
            None => git.args(["--", &self.url]).args([folder]),
        };
        let output = git.run().await?;
        if output.is_success() {
            return Ok(());
        }
        if output.stderr.contains("Remote branch") && output.stderr.contains("not found") {
            let revision = options.branch.unwrap_or_default().to_owned();
            return Err(GitError::UnknownRevision { revision }.into());
        }
        Err(transport.remote_error(&output).into())
    }
}
