//! Where a verb works: in the server's workspace, or in a VM; and how its paths are read.

use anyhow::Context;
use clap::Args;
use skep_api::path::{AbsolutePath, PathEncoding};
use skep_client::{Client, Files};

/// Where commands in a VM start.
const HOME_IN_A_VM: &str = "/root";

/// Which place.
#[derive(Debug, Args)]
pub(crate) struct PlaceOption {
    /// The VM, by process id or id [default: the server's workspace].
    #[arg(long, value_name = "VM")]
    vm: Option<String>,
}

/// A place, and the folder where its relative paths begin.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) files: Files,
    home: String,
}

impl PlaceOption {
    pub(crate) fn vm(&self) -> Option<&str> {
        self.vm.as_deref()
    }

    pub(crate) async fn open(&self, client: &Client) -> anyhow::Result<Place> {
        Place::open(client, self.vm()).await
    }
}

impl Place {
    pub(crate) async fn open(client: &Client, vm: Option<&str>) -> anyhow::Result<Self> {
        let home = match vm {
            Some(_) => HOME_IN_A_VM.to_owned(),
            None => {
                let roots = client.whoami().await?.value.roots;
                roots.into_iter().next().context("this key's account has no workspace; give --vm")?
            }
        };
        Ok(Self { files: client.files(vm), home })
    }

    /// A path as it was given: absolute, or below the workspace, or, in a VM, below /root.
    pub(crate) fn path(&self, given: &str) -> anyhow::Result<AbsolutePath> {
        let absolute = match given {
            "" | "." => self.home.clone(),
            given if given.starts_with('/') => given.to_owned(),
            given => format!("{}/{}", self.home.trim_end_matches('/'), given.trim_start_matches("./")),
        };
        Ok(AbsolutePath::parse("PATH", &absolute, PathEncoding::Plain)?)
    }
}
