//! `skep completions`.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{cli::Cli, output};

const EXAMPLES: &str = "\
Examples:
  skep completions bash > /etc/bash_completion.d/skep
  skep completions zsh > /usr/local/share/zsh/site-functions/_skep
  skep completions fish > ~/.config/fish/completions/skep.fish";

/// Print a script that completes commands in a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell that reads the script.
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(verb: Completions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(verb.shell, &mut Cli::command(), "skep", &mut script);
    output::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
