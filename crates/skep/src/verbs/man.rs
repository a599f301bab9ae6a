//! `skep man`.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_mangen::Man as Page;

use crate::{cli::Cli, output};

const EXAMPLES: &str = "\
Examples:
  skep man | man -l -                        # reads skep(1)
  skep man --dir /usr/local/share/man/man1   # writes skep(1), skep-boot(1) and a page for each other verb";

/// Print the manual page, or write the pages of all verbs to a folder.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// Folder for the pages of all verbs. It is created if it is missing.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(verb: Man) -> anyhow::Result<ExitCode> {
    let command = Cli::command().disable_help_subcommand(true);
    if let Some(dir) = verb.dir {
        let context = || format!("cannot write manual pages to {}", dir.display());
        fs::create_dir_all(&dir).with_context(context)?;
        clap_mangen::generate_to(command, &dir).with_context(context)?;
    } else {
        let mut page = Vec::new();
        Page::new(command).render(&mut page)?;
        output::bytes(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}
