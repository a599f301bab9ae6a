//! The command line.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    connection::EXIT_CODES,
    verbs::{
        account, attach, audit, backup, bake, bench, boot, cat, cleanup, config, cp, doctor, end, events,
        exec, find, git, grep, helper, keys, logs, ls, ps, restore, run, serve, status, ticket, webhook,
        whoami, write,
    },
};

/// A workspace for AI agents: files, and microVMs booted from a snapshot, with commands in them.
#[derive(Debug, Parser)]
#[command(name = "skep", version, propagate_version = true, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve the API until SIGTERM or Ctrl-C.
    Serve(serve::Serve),
    /// Boot VMs.
    Boot(boot::Boot),
    /// List the VMs.
    Ps(ps::Ps),
    /// Run a command in a VM; its output, input and exit code pass through.
    Exec(exec::Exec),
    /// Boot a VM and run a command in it.
    Run(run::Run),
    /// Follow a running command of a VM.
    Attach(attach::Attach),
    /// Print a VM's console, and the output of the command that it was booted with.
    Logs(logs::Logs),
    /// List a folder of the server's workspace, or of a VM.
    Ls(ls::Ls),
    /// Print files.
    Cat(cat::Cat),
    /// Write standard input to a file.
    Write(write::Write),
    /// Copy files and folders between this machine, the server's workspace and VMs.
    Cp(cp::Cp),
    /// Find files by name.
    Find(find::Find),
    /// Find lines in files.
    Grep(grep::Grep),
    /// Work with repositories of the server's workspace, or of a VM.
    Git(git::Git),
    /// Create tickets, claim them, and say what came of them.
    Ticket(ticket::Ticket),
    /// Follow what happens: to tickets, VMs and keys.
    Events(events::Events),
    /// Have events sent to an endpoint, and see what came of it.
    Webhook(webhook::Webhook),
    /// End VMs.
    #[command(alias = "rm")]
    End(end::End),
    /// End all VMs.
    Cleanup(cleanup::Cleanup),
    /// Show what the machine can hold, and the engine in use.
    Status(status::Status),
    /// Measure a running server: how soon its VMs are ready, and what they cost.
    Bench(bench::Bench),
    /// Show the key in use: its account, scopes and limits.
    Whoami(whoami::Whoami),
    /// Create, list, change and delete accounts.
    Account(account::Account),
    /// Create, list, rotate and revoke keys; no server needs to run.
    Keys(keys::Keys),
    /// Show who did what from where: every write and every refusal.
    Audit(audit::Audit),
    /// Say what this machine can do, what is missing, and how to get it.
    Doctor(doctor::Doctor),
    /// Copy the store to a file; a server may run.
    Backup(backup::Backup),
    /// Put a backup in the place of the store; no server may run.
    Restore(restore::Restore),
    /// Look at the settings that a server would start with.
    Config(config::Config),
    /// Bake the base template, unless it is baked.
    Bake(bake::Bake),
}

/// Verbs by which skep starts itself. They are a command line of their own, so that none is suggested for a mistyped verb.
#[derive(Debug, Parser)]
#[command(name = "skep")]
pub(crate) enum Internal {
    /// The server, without privileges; the keeper starts it.
    ServerProcess,
    /// The process that starts programs for callers.
    Helper(helper::Helper),
    /// The process that jails itself and becomes a VMM.
    Stage,
}

impl Internal {
    /// The verb, where the command line begins with one of these.
    pub(crate) fn find(arguments: &[OsString]) -> Option<Self> {
        let word = arguments.get(1)?.to_str()?;
        Self::command().find_subcommand(word)?;
        Some(Self::parse_from(arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_contradict_nothing() {
        Cli::command().debug_assert();
        Internal::command().debug_assert();
    }
}
