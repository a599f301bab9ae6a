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

use cli::{Cli, Internal};
use settings::TryError;
use verbs::{Verb, helper, server_process};

fn main() -> ExitCode {
    if let Some(status) = skep_workspace::git::answer_git() {
        return ExitCode::from(status);
    }
    allocator::map_large_buffers();
    let arguments: Vec<OsString> = env::args_os().collect();
    let outcome = match Internal::find(&arguments) {
        Some(verb) => run_internal(verb),
        None => parse(&arguments).and_then(|cli| cli.verb.run()),
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
