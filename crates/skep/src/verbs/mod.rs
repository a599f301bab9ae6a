//! The verbs, a file for each and a line in the list below, which is their order in the help.

pub(crate) mod account;
pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod bake;
pub(crate) mod bake_template;
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

/// Makes `Verb` of a list: each entry names the verb's arguments, whose documentation is the verb's help, in a module with a
/// function `run` that takes them. That of an `asynchronous` verb is async, mostly because it talks to a server.
macro_rules! verbs {
    (@run asynchronous $module:ident $verb:expr) => { connection::block_on($module::run($verb)) };
    (@run blocking $module:ident $verb:expr) => { $module::run($verb) };
    ($($module:ident::$Verb:ident $kind:ident,)*) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Verb {
            $($Verb($module::$Verb),)*
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
    serve::Serve blocking,
    boot::Boot asynchronous,
    ps::Ps asynchronous,
    exec::Exec asynchronous,
    run::Run asynchronous,
    attach::Attach asynchronous,
    logs::Logs asynchronous,
    ls::Ls asynchronous,
    cat::Cat asynchronous,
    write::Write asynchronous,
    cp::Cp asynchronous,
    mkdir::Mkdir asynchronous,
    mv::Mv asynchronous,
    rm::Rm asynchronous,
    watch::Watch asynchronous,
    find::Find asynchronous,
    grep::Grep asynchronous,
    git::Git asynchronous,
    ticket::Ticket asynchronous,
    events::Events asynchronous,
    webhook::Webhook asynchronous,
    template::Template asynchronous,
    rename::Rename asynchronous,
    egress::Egress asynchronous,
    pause::Pause asynchronous,
    resume::Resume asynchronous,
    fork::Fork asynchronous,
    snapshot::Snapshot asynchronous,
    end::End asynchronous,
    cleanup::Cleanup asynchronous,
    status::Status asynchronous,
    system::System asynchronous,
    open::Open asynchronous,
    whoami::Whoami asynchronous,
    account::Account asynchronous,
    keys::Keys blocking,
    audit::Audit asynchronous,
    doctor::Doctor blocking,
    backup::Backup blocking,
    restore::Restore blocking,
    config::Config blocking,
    bake::Bake blocking,
    uninstall::Uninstall blocking,
    completions::Completions blocking,
    openapi::Openapi asynchronous,
    man::Man blocking,
}
