//! `skep`: the server, and the command that talks to it.

mod account_roots;
mod allocator;
mod bake_process;
mod cli;
mod connection;
mod escape;
mod failure;
mod helper_process;
mod inherited;
mod invocation;
mod live_vms;
mod logging;
mod output;
mod place;
mod privileges;
mod random;
mod reload;
mod remote_path;
mod service;
mod settings;
mod signals;
mod target;
mod templates;
mod time_argument;
mod tls;
mod transfer;
mod usage_errors;
mod verbs;

use std::{env, ffi::OsString, process::ExitCode};

use cli::{Cli, Internal};
use settings::ParseError;
use verbs::{Verb, bake_template, egress_process, helper, server_process};

fn main() -> ExitCode {
    if let Some(status) = skep_workspace::git::serve_git_callback() {
        return ExitCode::from(status);
    }
    allocator::map_large_buffers();
    let arguments: Vec<OsString> = env::args_os().collect();
    let outcome = match Internal::find(&arguments) {
        Some(verb) => run_internal(verb),
        None => parse(&arguments).and_then(|cli| cli.verb.run()),
    };
    outcome.unwrap_or_else(|error| match error.downcast() {
        Ok(ParseError::CommandLine(error)) => usage_errors::report(error, &arguments),
        Ok(error) => output::report_error(&error.into()),
        Err(error) => output::report_error(&error),
    })
}

fn parse(arguments: &[OsString]) -> anyhow::Result<Cli> {
    let cli: Cli = settings::try_parse(arguments)?;
    match &cli.verb {
        Verb::Exec(verb) => match verb.with_vm_option(arguments)? {
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
        Internal::BakeTemplate(verb) => bake_template::run(*verb),
        Internal::EgressProcess(verb) => egress_process::run(verb),
        Internal::Stage => Ok(skep_jail::stage::main()),
    }
}
