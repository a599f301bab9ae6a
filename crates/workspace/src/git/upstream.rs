//! Selects the remote of an operation and connects to it.

use std::sync::Arc;

use skep_api::git::GitReach;

use super::{
    Refused,
    program::Git,
    remote::{Neighbour, Remote},
    repository::{Repository, check_revision},
    settings::{check_network, value},
    way::Way,
};
use crate::{Error, Place};

/// A configured remote with its connection.
pub(super) struct Upstream {
    pub(super) name: String,
    url: String,
    way: Arc<Way>,
    /// The connection to it, if it is on this machine.
    neighbour: Option<Neighbour>,
}

impl Upstream {
    /// The remote with this name, or that of the branch, or `origin`.
    ///
    /// # Errors
    /// [`Refused::UnknownRemote`], [`Refused::RemoteForbidden`], [`Refused::Hostile`].
    pub(super) async fn find(
        place: &Place,
        repository: &Repository,
        named: Option<&str>,
        branch: Option<&str>,
        reach: &GitReach,
        pushes: bool,
    ) -> Result<Self, Error> {
        let (name, url) = configured(repository, named, branch, pushes)?;
        let remote = Remote::parse(&url)?;
        let neighbour = match &remote {
            Remote::Local(path) => {
                let base = repository.top.as_deref().unwrap_or(&repository.git_dir);
                Some(Neighbour::find(place, &base.join(path)).await?)
            }
            _ => None,
        };
        let way = remote.open(&url, reach, &repository.settings).await?;
        Ok(Self { name, url, way: Arc::new(way), neighbour })
    }

    pub(super) fn way(&self) -> Arc<Way> {
        Arc::clone(&self.way)
    }

    /// A git command in the repository that uses the connection.
    pub(super) fn plain_git(&self, repository: &Repository) -> Git {
        self.way.git(|settings| Repository { settings: settings.clone(), ..repository.clone() }.git())
    }

    /// Like [`Self::plain_git`], with this subcommand and with `service` running at the remote.
    ///
    /// # Errors
    /// The connection to a remote on this machine cannot be created.
    pub(super) fn git(&self, repository: &Repository, verb: &str, service: &str) -> Result<Git, Error> {
        let Some(neighbour) = &self.neighbour else {
            return Ok(self.plain_git(repository).args([verb, &format!("--{service}=git-{service}")]));
        };
        let line = neighbour.connect(service).map_err(|source| Error::NotStarted { source })?;
        let instead = format!("url.{}.insteadof", line.url());
        let settings = self.way.settings().clone().with(instead, self.url.as_bytes());
        let git = self.way.git(|_| Repository { settings, ..repository.clone() }.git());
        Ok(line.join(git.args([verb])))
    }

    pub(super) fn failed(&self, said: &super::program::Said) -> Refused {
        self.way.failed(said)
    }
}

/// Name and URL of the remote with this name, or that of the branch, or `origin`.
///
/// # Errors
/// [`Refused::UnknownRemote`], [`Refused::Hostile`].
pub(super) fn configured(
    repository: &Repository,
    named: Option<&str>,
    branch: Option<&str>,
    pushes: bool,
) -> Result<(String, String), Error> {
    if let Some(named) = named {
        check_revision("remote", named)?;
    }
    let text = |key: String| {
        value(&repository.own, key.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let of_branch = branch.and_then(|branch| text(format!("branch.{branch}.remote")));
    let name = named.map(str::to_owned).or(of_branch).unwrap_or_else(|| "origin".to_owned());
    check_network(&repository.own)?;
    let push_url = text(format!("remote.{name}.pushurl")).filter(|_| pushes);
    let url = push_url.or_else(|| text(format!("remote.{name}.url")));
    let url = url.ok_or_else(|| Refused::UnknownRemote { remote: name.clone() })?;
    let keys = [format!("remote.{name}.pushurl"), format!("remote.{name}.url")];
    for key in keys.iter().filter(|key| pushes || key.ends_with(".url")) {
        if repository.own.iter().filter(|own| own.key == key.as_bytes()).count() > 1 {
            let what = format!("setting `{key}`");
            return Err(Refused::Hostile { what, why: "names more than one URL" }.into());
        }
    }
    Ok((name, url))
}
