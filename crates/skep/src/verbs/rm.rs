//! `skep rm`: removes files, or ends a VM that is named instead of a file.

use std::process::ExitCode;

use clap::Args;
use skep_api::{ErrorCode, files::RemoveFile};
use skep_client::{Client, Error};

use super::end;
use crate::{
    connection::Connection,
    output,
    place::{PlaceOption, PlaceWithHome},
    remote_path::{RemotePath, may_be_vm},
    target::UsageError,
    transfer,
};

const AFTER_HELP: &str = "Relative paths start at the server's workspace, with --vm at /root of that VM; VM:PATH and server:PATH work too.

  skep rm notes.md             a file of the server's workspace
  skep rm -r web:build         a folder in the VM `web`
  skep rm web                  ends the VM `web`, as `skep end web` does

A word that could be the name, id, process id or address of a VM, such as `web`, is never treated as a file: ./web is the
file. With -r and --vm every argument is a path. A word that is a VM and also a file is refused.";

/// Remove files and folders in the server's workspace or in a VM.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Rm {
    /// Files, links and empty folders; with -r also folders with all their content.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Remove folders with all their content.
    #[arg(short, long)]
    recursive: bool,
    /// Ignore paths that do not exist.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

/// The meaning of an argument.
enum RemovalTarget {
    File(RemotePath),
    Vm(String),
}

pub(crate) async fn run(verb: Rm) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    // All arguments are resolved before anything is removed.
    let mut targets = Vec::with_capacity(verb.paths.len());
    for given in &verb.paths {
        targets.push(verb.resolve(&client, given).await?);
    }
    let mut code = ExitCode::SUCCESS;
    for one in &targets {
        let done = match one {
            RemovalTarget::File(located) => remove(&client, &verb, located).await,
            RemovalTarget::Vm(vm) => end::end(&client, vm, verb.connection.json).await,
        };
        if let Err(error) = done {
            code = output::report_error(&error);
        }
    }
    Ok(code)
}

impl Rm {
    async fn resolve(&self, client: &Client, given: &str) -> anyhow::Result<RemovalTarget> {
        if self.recursive || !may_be_vm(&self.place, given) {
            return Ok(RemovalTarget::File(RemotePath::parse(&self.place, given)?));
        }
        let alternatives =
            format!("skep end {given} ends the VM, skep rm {}./{given} removes the file", self.flags());
        if self.force {
            return Err(UsageError(format!("`{given}` may be a VM or a file: {alternatives}")).into());
        }
        let is_vm = match client.vm(given).await {
            Err(error) if error.has_code(ErrorCode::UnknownVm) => false,
            // Other errors appear when the VM is ended.
            _ => true,
        };
        match (is_vm, is_file(client, given).await) {
            (true, true) => Err(UsageError(format!("`{given}` is a VM and also a file: {alternatives}")).into()),
            (false, true) => Err(UsageError(format!(
                "no VM `{given}` in this account, but a file of that name: skep rm ./{given} removes the file, skep ps lists the VMs"
            ))
            .into()),
            (_, false) => Ok(RemovalTarget::Vm(given.to_owned())),
        }
    }

    fn flags(&self) -> &'static str {
        if self.force { "-f " } else { "" }
    }
}

/// Whether the server's workspace has such a file. If the key may not read it, it may not remove it either.
async fn is_file(client: &Client, given: &str) -> bool {
    let look = async {
        let place = PlaceWithHome::open(client, None).await?;
        transfer::is_folder(&place.remote, place.path(given)?.as_path()).await
    };
    look.await.is_ok_and(|found: Option<bool>| found.is_some())
}

async fn remove(client: &Client, verb: &Rm, located: &RemotePath) -> anyhow::Result<()> {
    let (place, path) = located.open(client).await?;
    let remove = RemoveFile { path, recursive: verb.recursive };
    match place.remote.run(&remove).await {
        Ok(removed) if verb.connection.json => Ok(output::json(&removed.text)?),
        Ok(_) => Ok(()),
        Err(error) if verb.force && error.has_code(ErrorCode::UnknownPath) => Ok(()),
        Err(error) => Err(explained(error, &remove.path.as_path().display().to_string())),
    }
}

fn explained(error: Error, path: &str) -> anyhow::Error {
    if error.has_code(ErrorCode::NotEmpty) {
        return anyhow::anyhow!("{path} is not an empty folder; -r removes it with all its content");
    }
    error.into()
}
