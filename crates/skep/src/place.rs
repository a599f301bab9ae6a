//! The place in which a verb works, the server's workspace or a VM, and how relative paths are resolved there.

use anyhow::Context;
use clap::Args;
use skep_api::{
    exec::VM_HOME,
    keys::IdentifyCaller,
    path::{AbsolutePath, PathEncoding},
};
use skep_client::Client;

use crate::target::vm_reference;

#[derive(Debug, Args)]
pub(crate) struct PlaceOption {
    /// VM, by process id, id, name, host name or address [default: the server's workspace].
    #[arg(long, value_name = "VM", value_parser = vm_reference)]
    vm: Option<String>,
}

/// A place, with the folder against which relative paths are resolved.
#[derive(Debug, Clone)]
pub(crate) struct PlaceWithHome {
    pub(crate) remote: skep_client::RemotePlace,
    home: String,
}

impl PlaceOption {
    pub(crate) fn vm(&self) -> Option<&str> {
        self.vm.as_deref()
    }

    pub(crate) async fn open(&self, client: &Client) -> anyhow::Result<PlaceWithHome> {
        PlaceWithHome::open(client, self.vm()).await
    }
}

impl PlaceWithHome {
    pub(crate) async fn open(client: &Client, vm: Option<&str>) -> anyhow::Result<Self> {
        let home = match vm {
            Some(_) => VM_HOME.to_owned(),
            None => {
                let roots = client.run(&IdentifyCaller {}).await?.value.roots;
                roots.into_iter().next().context("this key's account has no workspace; give --vm")?
            }
        };
        Ok(Self { remote: client.at(vm), home })
    }

    /// Resolves a path: relative paths are below the first root of the workspace, or below /root in a VM.
    pub(crate) fn path(&self, given: &str) -> anyhow::Result<AbsolutePath> {
        let absolute = match given {
            "" | "." => self.home.clone(),
            given if given.starts_with('/') => given.to_owned(),
            given => format!("{}/{}", self.home.trim_end_matches('/'), given.trim_start_matches("./")),
        };
        Ok(AbsolutePath::parse("PATH", &absolute, PathEncoding::Plain)?)
    }
}
