//! Errors of the command line itself, including hints for verbs of other tools.

use std::{ffi::OsString, process::ExitCode};

use clap::{
    Command, CommandFactory,
    builder::{OsStr as Name, Resettable},
    error::{ContextKind, ErrorKind},
};

use crate::{cli::Cli, failure::Report, output};

const USAGE_EXIT_CODE: u8 = 2;

/// Verbs of other tools, and the equivalent in skep.
const FOREIGN_VERBS: [(&str, &str); 9] = [
    ("stop", "`skep end VM` ends a VM, `skep cleanup` ends all; a server ends with Ctrl-C or SIGTERM"),
    ("kill", "`skep end VM` ends a VM, `skep cleanup` ends all"),
    ("delete", "`skep end VM` ends a VM, `skep rm PATH` removes a file"),
    ("list", "`skep ps` lists the VMs, `skep ls` the files of a folder"),
    ("shell", "`skep exec VM COMMAND` runs a command in a VM"),
    ("ssh", "`skep exec VM COMMAND` runs a command in a VM"),
    ("start", "`skep serve` starts a server, `skep boot` boots VMs"),
    ("create", "`skep boot` boots VMs"),
    ("version", "`skep --version` prints the version"),
];

/// Prints help, the version, or the usage error, and returns the exit code.
pub(crate) fn report(error: clap::Error, arguments: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    let as_json = arguments.iter().any(|argument| argument == "--json");
    match foreign_verb(&error, arguments) {
        Some((word, advice)) => {
            let message = format!("`{word}` is not a verb of skep: {advice}");
            output::eprint_line(&if as_json {
                Report::usage(message).json()
            } else {
                format!("error: {message}")
            });
        }
        None => {
            let error = without_variables(arguments, error.kind()).unwrap_or(error);
            if as_json {
                let text = error.to_string();
                let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
                output::eprint_line(&Report::usage(message.to_owned()).json());
            } else {
                // Failures to print are ignored: a closed terminal must not change the exit code.
                let _ = error.print();
            }
        }
    }
    ExitCode::from(USAGE_EXIT_CODE)
}

/// The mistyped verb and its hint, if it is a verb of another tool.
fn foreign_verb(error: &clap::Error, arguments: &[OsString]) -> Option<(&'static str, &'static str)> {
    if error.kind() != ErrorKind::InvalidSubcommand || error.get(ContextKind::InvalidSubcommand).is_none() {
        return None;
    }
    let given = arguments.get(1)?;
    FOREIGN_VERBS.into_iter().find(|(word, _)| given == word)
}

/// The same error, parsed without environment variables: clap lists arguments set by variables in its usage line as if
/// they had been typed.
fn without_variables(arguments: &[OsString], kind: ErrorKind) -> Option<clap::Error> {
    let error = without_env(Cli::command()).try_get_matches_from(arguments).err()?;
    (error.kind() == kind).then_some(error)
}

fn without_env(command: Command) -> Command {
    command.mut_args(|argument| argument.env(Resettable::<Name>::Reset)).mut_subcommands(without_env)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &[&str]) -> (clap::Error, Vec<OsString>) {
        let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
        (Cli::command().try_get_matches_from(&arguments).unwrap_err(), arguments)
    }

    #[test]
    fn verbs_of_other_tools_have_hints() {
        for (word, advice) in FOREIGN_VERBS {
            let (error, arguments) = error(&["skep", word]);
            assert_eq!(foreign_verb(&error, &arguments), Some((word, advice)));
            for verb in advice.split("`skep ").skip(1) {
                let verb = verb.split([' ', '`']).next().unwrap();
                let known = Cli::command().find_subcommand(verb).is_some() || verb == "--version";
                assert!(known, "{word}: {verb}");
            }
        }
        let (error, arguments) = error(&["skep", "keys", "stop"]);
        assert_eq!(foreign_verb(&error, &arguments), None);
    }

    #[test]
    fn verbs_that_skep_starts_itself_are_not_suggested() {
        for word in ["stag", "server-proces", "helpe"] {
            let (error, _) = error(&["skep", word]);
            let text = error.to_string();
            assert!(
                !["stage", "server-process", "helper", "egress-process"]
                    .iter()
                    .any(|hidden| text.contains(&format!("'{hidden}'"))),
                "{text}"
            );
        }
    }
}
