//! Parses command lines whose verb may take settings, also from a file.

use std::{ffi::OsString, fs, path::PathBuf};

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use super::{
    FILE,
    file::{FileError, values},
};
use crate::invocation;

/// Why a command line cannot be parsed.
#[derive(Debug)]
pub(crate) enum ParseError {
    /// The command line or an environment variable is invalid.
    CommandLine(clap::Error),
    /// The settings file is invalid.
    SettingsFile(FileError),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CommandLine(error) => f.write_str(&first_line(error)),
            Self::SettingsFile(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ParseError {}

/// Parses a command line. If its verb takes settings and a settings file is named, values of the file replace the
/// defaults.
///
/// # Errors
/// [`ParseError`].
pub(crate) fn try_parse<C: CommandFactory + FromArgMatches>(arguments: &[OsString]) -> Result<C, ParseError> {
    let mut command = C::command();
    let matches = command.try_get_matches_from_mut(arguments).map_err(ParseError::CommandLine)?;
    invocation::record(&command, &matches);
    let matches = match named_file(&matches) {
        None => matches,
        Some((verbs, file)) => {
            let fault = |why| ParseError::SettingsFile(FileError { file: file.clone(), why });
            let text = fs::read_to_string(&file).map_err(|error| fault(error.to_string()))?;
            let values = values(&text).map_err(fault)?;
            let command = with_defaults(C::command(), &verbs, &values);
            // The command line was valid without the file, so the error is in the file.
            command.try_get_matches_from(arguments).map_err(|error| fault(first_line(&error)))?
        }
    };
    C::from_arg_matches(&matches).map_err(ParseError::CommandLine)
}

pub(super) fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The settings file that a command line names, and the verbs that lead to its flag.
fn named_file(matches: &ArgMatches) -> Option<(Vec<String>, PathBuf)> {
    let mut verbs = Vec::new();
    let mut at = matches;
    loop {
        if let Ok(Some(file)) = at.try_get_one::<PathBuf>(FILE) {
            return Some((verbs, file.clone()));
        }
        let (name, below) = at.subcommand()?;
        verbs.push(name.to_owned());
        at = below;
    }
}

fn with_defaults(command: Command, verbs: &[String], values: &[(String, Vec<String>)]) -> Command {
    match verbs.split_first() {
        Some((verb, rest)) => {
            let name = verb.clone();
            command.mut_subcommand(name, |below| with_defaults(below, rest, values))
        }
        // Some verbs take only a few of the settings.
        None => values.iter().fold(command, |command, (id, values)| {
            let is_known = command.get_arguments().any(|argument| argument.get_id() == id.as_str());
            let values = values.clone();
            if is_known {
                command.mut_arg(id.clone(), |argument| argument.default_values(values))
            } else {
                command
            }
        }),
    }
}
