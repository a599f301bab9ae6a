//! Selects the remote of an operation and connects to it.

use skep_api::git::GitReach;

use super::{
    GitError,
    config::{ConfigOverrides, check_network_config, last_value},
    large_files::ServerUrls,
    network_dir::NetworkDir,
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
    transport: Transport,
    is_ssh: bool,
    way: Way,
}

/// How git gets to a remote.
enum Way {
    /// The remote is on this machine, and git in its own git directory connects to it.
    Local(Box<LocalRemote>),
    Network(NetworkDir),
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
        let transport = remote.connect(&url, reach, &repository.overrides).await?;
        let way = match &remote {
            Remote::Local(path) => {
                let base = repository.top_folder.as_deref().unwrap_or(&repository.git_dir);
                Way::Local(Box::new(LocalRemote::find(place, &base.join(path)).await?))
            }
            _ => Way::Network(NetworkDir::create(repository, &name, &url).await?),
        };
        Ok(Self { name, url, transport, is_ssh: matches!(remote, Remote::Ssh { .. }), way })
    }

    /// The repository as the git that connects to the remote sees it.
    pub(super) fn repository(&self, repository: &Repository) -> Repository {
        match &self.way {
            Way::Local(_) => repository.clone(),
            Way::Network(folder) => folder.repository(repository),
        }
    }

    /// A git-lfs that uses the connection for the large files of this commit.
    ///
    /// # Errors
    /// A failure of the file system.
    pub(super) async fn large_files_git(&self, repository: &Repository, commit: &str) -> Result<Git, Error> {
        let Way::Network(folder) = &self.way else {
            // It has no token that a setting of the repository could send elsewhere.
            return Ok(self.transport_git(repository).args(["lfs"]));
        };
        folder.prepare_for_large_files(repository, commit).await?;
        let git = |settings: &ConfigOverrides| {
            Repository { overrides: settings.clone(), ..folder.repository(repository) }.git()
        };
        let git = match ServerUrls::find(repository, commit, &self.name, &self.url).await? {
            // A token is for the host of the remote.
            None => self.transport.git_without_credential(git),
            // The options of ssh fix the host and the port, so a URL in the settings cannot change them.
            Some(_) if self.is_ssh => self.transport.git(git),
            // Overrides take precedence over `.lfsconfig`, which a program of the account can change after this check.
            Some(urls) => self.transport.git(|settings| {
                git(&settings.clone().with("lfs.url", urls.fetch).with("lfs.pushurl", urls.push))
            }),
        };
        Ok(git.args(["lfs"]))
    }

    /// A git command in this repository that uses the connection.
    fn transport_git(&self, repository: &Repository) -> Git {
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
        let local_remote = match &self.way {
            Way::Local(local_remote) => local_remote,
            Way::Network(folder) => {
                let git = self.transport_git(&folder.repository(repository));
                return Ok(git.args([verb, &format!("--{service}=git-{service}")]));
            }
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
