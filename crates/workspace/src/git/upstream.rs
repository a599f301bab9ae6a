//! Selects the remote of an operation and connects to it.

use std::sync::Arc;

use skep_api::git::GitReach;

use super::{
    GitError,
    config::{check_network_config, last_value},
    program::Git,
    remote::{LocalRemote, Remote},
    repository::{Repository, check_revision},
    transport::Transport,
};
use crate::{Error, Place};

/// A configured remote with its connection.
pub(super) struct Upstream {
    pub(super) name: String,
    url: String,
    transport: Arc<Transport>,
    /// The connection to it, if it is on this machine.
    local_remote: Option<LocalRemote>,
}

impl Upstream {
    /// The remote with this name, or that of the branch, or `origin`.
    ///
    /// # Errors
    /// [`GitError::UnknownRemote`], [`GitError::RemoteForbidden`], [`GitError::Hostile`].
    pub(super) async fn find(
        place: &Place,
        repository: &Repository,
        named: Option<&str>,
        branch: Option<&str>,
        reach: &GitReach,
        pushes: bool,
    ) -> Result<Self, Error> {
        let (name, url) = configured_remote(repository, named, branch, pushes)?;
        let remote = Remote::parse(&url)?;
        let local_remote = match &remote {
            Remote::Local(path) => {
                let base = repository.top_folder.as_deref().unwrap_or(&repository.git_dir);
                Some(LocalRemote::find(place, &base.join(path)).await?)
            }
            _ => None,
        };
        let transport = remote.connect(&url, reach, &repository.overrides).await?;
        Ok(Self { name, url, transport: Arc::new(transport), local_remote })
    }

    pub(super) fn transport(&self) -> Arc<Transport> {
        Arc::clone(&self.transport)
    }

    /// A git command in the repository that uses the connection.
    pub(super) fn transport_git(&self, repository: &Repository) -> Git {
        self.transport.git(|settings| Repository { overrides: settings.clone(), ..repository.clone() }.git())
    }

    /// Like [`Self::transport_git`], with this subcommand and with `service` running at the remote.
    ///
    /// # Errors
    /// The connection to a remote on this machine cannot be created.
    pub(super) fn connected_git(
        &self,
        repository: &Repository,
        verb: &str,
        service: &str,
    ) -> Result<Git, Error> {
        let Some(local_remote) = &self.local_remote else {
            return Ok(self.transport_git(repository).args([verb, &format!("--{service}=git-{service}")]));
        };
        let connection = local_remote.connect(service).map_err(|source| Error::NotStarted { source })?;
        let instead = format!("url.{}.insteadof", connection.url());
        let settings = self.transport.settings().clone().with(instead, self.url.as_bytes());
        let git = self.transport.git(|_| Repository { overrides: settings, ..repository.clone() }.git());
        Ok(connection.attach_to(git.args([verb])))
    }

    pub(super) fn remote_error(&self, output: &super::program::GitOutput) -> GitError {
        self.transport.remote_error(output)
    }
}

/// Name and URL of the remote with this name, or that of the branch, or `origin`.
///
/// # Errors
/// [`GitError::UnknownRemote`], [`GitError::Hostile`].
pub(super) fn configured_remote(
    repository: &Repository,
    named: Option<&str>,
    branch: Option<&str>,
    pushes: bool,
) -> Result<(String, String), Error> {
    if let Some(named) = named {
        check_revision("remote", named)?;
    }
    let text = |key: String| {
        last_value(&repository.config, key.as_bytes())
            .map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let of_branch = branch.and_then(|branch| text(format!("branch.{branch}.remote")));
    let name = named.map(str::to_owned).or(of_branch).unwrap_or_else(|| "origin".to_owned());
    check_network_config(&repository.config)?;
    let push_url = text(format!("remote.{name}.pushurl")).filter(|_| pushes);
    let url = push_url.or_else(|| text(format!("remote.{name}.url")));
    let url = url.ok_or_else(|| GitError::UnknownRemote { remote: name.clone() })?;
    let keys = [format!("remote.{name}.pushurl"), format!("remote.{name}.url")];
    for key in keys.iter().filter(|key| pushes || key.ends_with(".url")) {
        if repository.config.iter().filter(|own| own.key == key.as_bytes()).count() > 1 {
            let what = format!("setting `{key}`");
            return Err(GitError::Hostile { what, why: "names more than one URL" }.into());
        }
    }
    Ok((name, url))
}
