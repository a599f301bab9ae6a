//! The verbs, a file for each and a line in the list below, which is their order in the help.

pub(crate) mod account;
pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod bake;
pub(crate) mod bake_template;
pub(crate) mod bench;
pub(crate) mod boot;
pub(crate) mod cat;
pub(crate) mod cleanup;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod egress;
pub(crate) mod egress_process;
pub(crate) mod end;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod find;
pub(crate) mod fork;
pub(crate) mod git;
pub(crate) mod grep;
pub(crate) mod helper;
pub(crate) mod keys;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mkdir;
pub(crate) mod mv;
pub(crate) mod open;
pub(crate) mod openapi;
pub(crate) mod pause;
pub(crate) mod ps;
pub(crate) mod rename;
pub(crate) mod restore;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server_process;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod system;
pub(crate) mod template;
pub(crate) mod ticket;
pub(crate) mod uninstall;
pub(crate) mod watch;
pub(crate) mod webhook;
pub(crate) mod whoami;
pub(crate) mod write;

use std::process::ExitCode;

use clap::Subcommand;

use crate::connection;

/// Makes `Verb` of a list: each entry names the verb's arguments, in a module with a function `run` that takes them. That
/// of an `online` verb is async: it talks to a server.
macro_rules! verbs {
    (@run online $module:ident $verb:expr) => { connection::block_on($module::run($verb)) };
    (@run local $module:ident $verb:expr) => { $module::run($verb) };
    ($($(#[$help:meta])* $module:ident::$Verb:ident $kind:ident,)*) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Verb {
            $($(#[$help])* $Verb($module::$Verb),)*
        }

        impl Verb {
            pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Self::$Verb(verb) => verbs!(@run $kind $module verb),)*
                }
            }
        }
    };
}

verbs! {
    /// Run the server.
    serve::Serve local,
    /// Boot one or more VMs.
    boot::Boot online,
    /// List the VMs.
    ps::Ps online,
    /// Run a command in a VM; input, output and exit code are those of the command.
    exec::Exec online,
    /// Boot a VM and run a command in it.
    run::Run online,
    /// Follow a running command of a VM.
    attach::Attach online,
    /// Print a VM's console, and the output of the command that it was booted with.
    logs::Logs online,
    /// List a folder of the server's workspace or of a VM.
    ls::Ls online,
    /// Print files.
    cat::Cat online,
    /// Write standard input to a file.
    write::Write online,
    /// Copy files and folders between this machine, the server's workspace and VMs.
    cp::Cp online,
    /// Make folders.
    mkdir::Mkdir online,
    /// Move or rename a file or a folder.
    mv::Mv online,
    /// Remove files and folders.
    rm::Rm online,
    /// Print changes below a folder as they happen.
    watch::Watch online,
    /// Find files by name.
    find::Find online,
    /// Search file contents.
    grep::Grep online,
    /// Work with git repositories in the server's workspace or in a VM.
    git::Git online,
    /// Create, claim and finish tickets.
    ticket::Ticket online,
    /// Print events of tickets, VMs, templates and keys as they occur.
    events::Events online,
    /// Send events to an HTTP endpoint.
    webhook::Webhook online,
    /// List, create and delete templates, from which VMs are booted.
    template::Template online,
    /// Give a VM another name.
    rename::Rename online,
    /// Print or change what a VM may connect to outside.
    egress::Egress online,
    /// Stop the processors of VMs, which keep their memory.
    pause::Pause online,
    /// Continue paused VMs.
    resume::Resume online,
    /// Boot copies of a running VM.
    fork::Fork online,
    /// Store a running VM as a template.
    snapshot::Snapshot online,
    /// End VMs.
    end::End online,
    /// End all VMs of the account.
    cleanup::Cleanup online,
    /// Show the number of VMs, memory, pool and VM engine.
    status::Status online,
    /// Show the server's versions, disk, memory, VMs and damaged templates.
    system::System online,
    /// Print a link that logs a browser in once, with the rights of the key in use.
    open::Open online,
    /// Measure boot times and cost of VMs on a running server.
    bench::Bench online,
    /// Show the key in use: its account, scopes and limits.
    whoami::Whoami online,
    /// Create, list, change and delete accounts.
    account::Account online,
    /// Create, list, rotate and revoke API keys.
    keys::Keys local,
    /// Show the audit log: every write and every refusal.
    audit::Audit online,
    /// Check whether this machine can run a server with VMs.
    doctor::Doctor local,
    /// Copy the store to a file; a server may keep running.
    backup::Backup local,
    /// Replace the store with a backup; no server may run.
    restore::Restore local,
    /// Check the settings of a server.
    config::Config local,
    /// Build the base template.
    bake::Bake local,
    /// Remove skep and its data from this machine.
    uninstall::Uninstall local,
    /// Print a script that completes commands in a shell.
    completions::Completions local,
    /// Print the OpenAPI document.
    openapi::Openapi online,
    /// Write the manual pages.
    man::Man local,
}
