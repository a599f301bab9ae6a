//! The source of a clone: a remote, or a repository in the same workspace.

use std::path::Path;

use skep_api::git::GitReach;

use super::{
    Refused,
    program::Git,
    remote::{Neighbour, Remote},
    settings::Settings,
};
use crate::{Error, Place};

pub(super) struct CloneSource {
    url: String,
    remote: Remote,
    /// The connection to it, if it is in this workspace.
    neighbour: Option<Neighbour>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CloneOptions<'a> {
    pub(super) branch: Option<&'a str>,
    pub(super) depth: Option<u32>,
    /// Without a work tree, and with the branches of the source as its own.
    pub(super) bare: bool,
}

impl CloneSource {
    /// Parses the URL. A repository in this workspace is located and checked.
    ///
    /// # Errors
    /// [`Refused::RemoteForbidden`], `invalid_value`, and those of paths and repositories.
    pub(super) async fn find(place: &Place, url: &str) -> Result<Self, Error> {
        let remote = Remote::parse(url)?;
        let neighbour = match &remote {
            Remote::Local(path) if path.is_absolute() => Some(Neighbour::find(place, path).await?),
            Remote::Local(_) => {
                let reason = format!("is `{url}`, which is neither a URL nor an absolute path");
                return Err(Error::InvalidValue { field: "url", reason });
            }
            _ => None,
        };
        Ok(Self { url: url.to_owned(), remote, neighbour })
    }

    pub(super) fn is_here(&self) -> bool {
        self.neighbour.is_some()
    }

    /// Clones the source.
    ///
    /// # Errors
    /// [`Refused::UnknownRevision`], [`Refused::RemoteForbidden`], [`Refused::RemoteFailed`].
    pub(super) async fn clone_into(
        &self,
        place: &Place,
        folder: &Path,
        options: CloneOptions<'_>,
        reach: &GitReach,
    ) -> Result<(), Error> {
        let settings = Settings::with_filters(&place.git().filters);
        let way = self.remote.open(&self.url, reach, &settings).await?;
        let git = way.git(|settings| Git::new(place, Path::new("/"), settings));
        let git = git.args(["clone", "--quiet", "--template=", "--no-local", "--no-recurse-submodules"]);
        let git = git.args(options.bare.then_some("--bare"));
        let git = git.args(options.branch.map(|branch| format!("--branch={branch}")));
        let git = git.args(options.depth.map(|depth| format!("--depth={depth}")));
        let git = match &self.neighbour {
            Some(neighbour) => {
                let line = neighbour.connect("upload-pack").map_err(|source| Error::NotStarted { source })?;
                let git = git.args(["--", &line.url()]).args([folder]);
                line.join(git)
            }
            None => git.args(["--", &self.url]).args([folder]),
        };
        let said = git.run().await?;
        if said.done() {
            return Ok(());
        }
        if said.complaints.contains("Remote branch") && said.complaints.contains("not found") {
            let revision = options.branch.unwrap_or_default().to_owned();
            return Err(Refused::UnknownRevision { revision }.into());
        }
        Err(way.failed(&said).into())
    }
}
