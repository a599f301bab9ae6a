//! `skep`: the server, and the command that talks to it.

mod admin_key;
mod bake_process;
mod cli;
mod connection;
mod engine;
mod logging;
mod output;
mod privileges;
mod random;
mod service;
mod settings;
mod signals;
mod templates;
mod tls;
mod verbs;

use std::{env, ffi::OsString, process::ExitCode};

use cli::{Cli, Verb};
use settings::FileError;
use verbs::{
    account, audit, backup, bake, bench, boot, cleanup, config, doctor, events, exec, keys, ps, restore, rm,
    serve, server_process, status, ticket, webhook,
};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().collect();
    let outcome = settings::parse::<Cli>(&arguments).map_err(FileError::into).and_then(run);
    outcome.unwrap_or_else(|error| output::failed(&error))
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.verb {
        Verb::Serve(verb) => serve::run(verb),
        Verb::Boot(verb) => connection::block_on(boot::run(verb)),
        Verb::Ps(verb) => connection::block_on(ps::run(verb)),
        Verb::Exec(verb) => connection::block_on(exec::run(verb)),
        Verb::Ticket(verb) => connection::block_on(ticket::run(verb)),
        Verb::Events(verb) => connection::block_on(events::run(verb)),
        Verb::Webhook(verb) => connection::block_on(webhook::run(verb)),
        Verb::Rm(verb) => connection::block_on(rm::run(verb)),
        Verb::Cleanup(verb) => connection::block_on(cleanup::run(verb)),
        Verb::Status(verb) => connection::block_on(status::run(verb)),
        Verb::Bench(verb) => connection::block_on(bench::run(verb)),
        Verb::Account(verb) => connection::block_on(account::run(verb)),
        Verb::Keys(verb) => keys::run(verb),
        Verb::Audit(verb) => connection::block_on(audit::run(verb)),
        Verb::Doctor(verb) => doctor::run(verb),
        Verb::Bake(verb) => bake::run(verb),
        Verb::Backup(verb) => backup::run(verb),
        Verb::Restore(verb) => restore::run(verb),
        Verb::Config(verb) => config::run(verb),
        Verb::ServerProcess => server_process::run(),
        Verb::Stage => Ok(skep_jail::stage::main()),
    }
}
