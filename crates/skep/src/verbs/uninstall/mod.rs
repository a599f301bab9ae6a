//! `skep uninstall`: lists the parts of skep on this machine, asks, and removes them.

mod inventory;
mod remove;
mod unit;

use std::{
    io::{self, BufRead, IsTerminal},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::geteuid;
use serde_json::json;

use self::inventory::{Inventory, take_inventory};
use crate::{output, settings::Settings, target::UsageError};

const AFTER_HELP: &str = "The command first lists what it removes: VMs that still run, control groups, the network namespace and
sockets of this data directory; the directory itself with store, keys, workspaces and templates; and, if the directory
belongs to the systemd unit or is /var/lib/skep, the systemd unit, the system user `skep` and /usr/local/bin/skep. Other
data directories are kept; while another server is on this machine, so are user, program and a separate image directory.
Folders outside the data directory that were given with --root or to accounts are kept.

Exit codes: 0 removed, or nothing to remove; 1 a server runs, the question was not answered with `yes`, or the removal
failed; 2 the command line is wrong.";

/// Remove skep and its data from this machine, after asking.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Uninstall {
    #[command(flatten)]
    settings: Settings,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// Keep the data directory, the image directory, and the system user that owns them.
    #[arg(long)]
    keep_data: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(verb: Uninstall) -> anyhow::Result<ExitCode> {
    let settings = verb.settings.resolved()?;
    if !geteuid().is_root() {
        bail!("the files of a server with VMs belong to root: run `sudo skep uninstall`");
    }
    let found = take_inventory(&settings, verb.keep_data)?;
    if found.items.is_empty() {
        print_result(verb.json, &found, "nothing to remove")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !verb.yes && !confirm(&found)? {
        bail!("nothing was removed");
    }
    for thing in &found.items {
        thing.remove().with_context(|| format!("{thing} could not be removed"))?;
    }
    remove::remove_empty_folders();
    print_result(verb.json, &found, "removed")?;
    Ok(ExitCode::SUCCESS)
}

fn confirm(found: &Inventory) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(UsageError(
            "there is no terminal to ask on; use --yes to remove without asking".to_owned(),
        )
        .into());
    }
    output::eprint_line("To be removed:");
    found.items.iter().for_each(|thing| output::eprint_line(&format!("  {thing}")));
    if !found.kept.is_empty() {
        output::eprint_line("To be kept:");
        found.kept.iter().for_each(|kept| output::eprint_line(&format!("  {kept}")));
    }
    output::eprint_line("This cannot be undone. Type `yes` to remove all this:");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("the answer cannot be read")?;
    Ok(answer.trim() == "yes")
}

fn print_result(as_json: bool, found: &Inventory, done: &str) -> anyhow::Result<()> {
    let things: Vec<String> = found.items.iter().map(ToString::to_string).collect();
    if as_json {
        return output::value(&json!({"removed": things, "kept": found.kept}));
    }
    if things.is_empty() {
        output::line(done)?;
    }
    for thing in things {
        output::line(&format!("{done}: {thing}"))?;
    }
    for kept in &found.kept {
        output::line(&format!("kept: {kept}"))?;
    }
    Ok(())
}
