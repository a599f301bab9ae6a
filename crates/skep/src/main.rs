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
mod failure;
mod helper_process;
mod invocation;
mod located;
mod logging;
mod moment;
mod output;
mod place;
mod privileges;
mod random;
mod reread;
mod service;
mod settings;
mod signals;
mod target;
mod templates;
mod tls;
mod transfer;
mod usage;
mod verbs;

use std::{env, ffi::OsString, process::ExitCode};

use cli::{Cli, Internal, Verb};
use settings::TryError;
use verbs::{
    account, attach, audit, backup, bake, bench, boot, cat, cleanup, config, cp, doctor, end, events, exec,
    find, git, grep, helper, keys, logs, ls, mkdir, mv, ps, rename, restore, rm, run as run_verb, serve,
    server_process, status, ticket, uninstall, watch, webhook, whoami, write,
};

fn main() -> ExitCode {
    if let Some(status) = skep_workspace::git::answer_git() {
        return ExitCode::from(status);
    }
    allocator::map_large_buffers();
    let arguments: Vec<OsString> = env::args_os().collect();
    let outcome = match Internal::find(&arguments) {
        Some(verb) => run_internal(verb),
        None => parse(&arguments).and_then(run),
    };
    outcome.unwrap_or_else(|error| match error.downcast() {
        Ok(TryError::Line(error)) => usage::refuse(error, &arguments),
        Ok(error) => output::failed(&error.into()),
        Err(error) => output::failed(&error),
    })
}

fn parse(arguments: &[OsString]) -> anyhow::Result<Cli> {
    let cli: Cli = settings::try_parse(arguments)?;
    match &cli.verb {
        Verb::Exec(verb) => match verb.with_vm_named(arguments)? {
            Some(named) => parse(&named),
            None => Ok(cli),
        },
        Verb::Run(verb) => {
            verb.check(arguments)?;
            Ok(cli)
        }
        _ => Ok(cli),
    }
}

fn run_internal(verb: Internal) -> anyhow::Result<ExitCode> {
    match verb {
        Internal::ServerProcess => server_process::run(),
        Internal::Helper(verb) => helper::run(verb),
        Internal::Stage => Ok(skep_jail::stage::main()),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.verb {
        Verb::Serve(verb) => serve::run(verb),
        Verb::Boot(verb) => connection::block_on(boot::run(verb)),
        Verb::Ps(verb) => connection::block_on(ps::run(verb)),
        Verb::Exec(verb) => connection::block_on(exec::run(verb)),
        Verb::Run(verb) => connection::block_on(run_verb::run(verb)),
        Verb::Attach(verb) => connection::block_on(attach::run(verb)),
        Verb::Logs(verb) => connection::block_on(logs::run(verb)),
        Verb::Ls(verb) => connection::block_on(ls::run(verb)),
        Verb::Cat(verb) => connection::block_on(cat::run(verb)),
        Verb::Write(verb) => connection::block_on(write::run(verb)),
        Verb::Cp(verb) => connection::block_on(cp::run(verb)),
        Verb::Mkdir(verb) => connection::block_on(mkdir::run(verb)),
        Verb::Mv(verb) => connection::block_on(mv::run(verb)),
        Verb::Rm(verb) => connection::block_on(rm::run(verb)),
        Verb::Watch(verb) => connection::block_on(watch::run(verb)),
        Verb::Find(verb) => connection::block_on(find::run(verb)),
        Verb::Grep(verb) => connection::block_on(grep::run(verb)),
        Verb::Git(verb) => connection::block_on(git::run(verb)),
        Verb::Ticket(verb) => connection::block_on(ticket::run(verb)),
        Verb::Events(verb) => connection::block_on(events::run(verb)),
        Verb::Webhook(verb) => connection::block_on(webhook::run(verb)),
        Verb::Rename(verb) => connection::block_on(rename::run(verb)),
        Verb::End(verb) => connection::block_on(end::run(verb)),
        Verb::Cleanup(verb) => connection::block_on(cleanup::run(verb)),
        Verb::Status(verb) => connection::block_on(status::run(verb)),
        Verb::Bench(verb) => connection::block_on(bench::run(verb)),
        Verb::Whoami(verb) => connection::block_on(whoami::run(verb)),
        Verb::Account(verb) => connection::block_on(account::run(verb)),
        Verb::Keys(verb) => keys::run(verb),
        Verb::Audit(verb) => connection::block_on(audit::run(verb)),
        Verb::Doctor(verb) => doctor::run(verb),
        Verb::Uninstall(verb) => uninstall::run(verb),
        Verb::Bake(verb) => bake::run(verb),
        Verb::Backup(verb) => backup::run(verb),
        Verb::Restore(verb) => restore::run(verb),
        Verb::Config(verb) => config::run(verb),
    }
}
