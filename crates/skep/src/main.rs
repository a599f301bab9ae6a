//! `skep`: the server, and the command that talks to it.

mod account_roots;
mod admin_key;
mod again;
mod allocator;
mod bake_process;
mod cli;
mod connection;
mod engine;
mod escape;
mod helper_process;
mod logging;
mod output;
mod place;
mod privileges;
mod random;
mod reread;
mod service;
mod settings;
mod signals;
mod templates;
mod tls;
mod transfer;
mod verbs;

use std::{env, ffi::OsString, process::ExitCode};

use cli::{Cli, Verb};
use settings::FileError;
use verbs::{
    account, audit, backup, bake, bench, boot, cat, cleanup, config, cp, doctor, events, exec, find, git,
    grep, helper, keys, ls, ps, restore, rm, serve, server_process, status, ticket, webhook, write,
};

fn main() -> ExitCode {
    if let Some(status) = skep_workspace::git::answer_git() {
        return ExitCode::from(status);
    }
    allocator::map_large_buffers();
    let arguments: Vec<OsString> = env::args_os().collect();
    let outcome = parse(&arguments).map_err(FileError::into).and_then(run);
    outcome.unwrap_or_else(|error| output::failed(&error))
}

fn parse(arguments: &[OsString]) -> Result<Cli, FileError> {
    let cli: Cli = settings::parse(arguments)?;
    match &cli.verb {
        Verb::Exec(verb) => verb.with_vm_named(arguments).map_or(Ok(cli), |named| settings::parse(&named)),
        _ => Ok(cli),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.verb {
        Verb::Serve(verb) => serve::run(verb),
        Verb::Boot(verb) => connection::block_on(boot::run(verb)),
        Verb::Ps(verb) => connection::block_on(ps::run(verb)),
        Verb::Exec(verb) => connection::block_on(exec::run(verb)),
        Verb::Ls(verb) => connection::block_on(ls::run(verb)),
        Verb::Cat(verb) => connection::block_on(cat::run(verb)),
        Verb::Write(verb) => connection::block_on(write::run(verb)),
        Verb::Cp(verb) => connection::block_on(cp::run(verb)),
        Verb::Find(verb) => connection::block_on(find::run(verb)),
        Verb::Grep(verb) => connection::block_on(grep::run(verb)),
        Verb::Git(verb) => connection::block_on(git::run(verb)),
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
        Verb::Helper(verb) => helper::run(verb),
        Verb::Stage => Ok(skep_jail::stage::main()),
    }
}
