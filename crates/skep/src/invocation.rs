//! The command line of this process, for error messages that refer to it.

use std::sync::OnceLock;

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// The flags and arguments of the verb that runs.
#[derive(Debug, Default)]
pub(crate) struct Invocation {
    pub(crate) json: bool,
    /// The id of each argument of the verb, and its form on the command line: `--force`, or `FILE`.
    pub(crate) arguments: Vec<(String, String)>,
    flags: Vec<String>,
}

impl Invocation {
    /// The recorded invocation; an empty one before [`record`].
    pub(crate) fn current() -> &'static Self {
        static NONE: Invocation = Invocation { json: false, arguments: Vec::new(), flags: Vec::new() };
        INVOCATION.get().unwrap_or(&NONE)
    }

    pub(crate) fn of(command: &Command, matches: &ArgMatches) -> Self {
        let (mut command, mut matches) = (command, matches);
        while let Some((name, below)) = matches.subcommand() {
            let Some(verb) = command.find_subcommand(name) else { break };
            (command, matches) = (verb, below);
        }
        let ids = || command.get_arguments().map(|argument| argument.get_id().to_string());
        let is_flag = |id: &String| {
            matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        Self {
            json: matches.try_get_one("json").ok().flatten().copied().unwrap_or(false),
            arguments: ids().zip(command.get_arguments().map(display_name)).collect(),
            flags: ids().filter(is_flag).collect(),
        }
    }

    /// Whether the argument was given on the command line, and not by a variable or a default.
    pub(crate) fn has_flag(&self, id: &str) -> bool {
        self.flags.iter().any(|flag| flag == id)
    }
}

/// Records the invocation once for the whole process.
pub(crate) fn record(command: &Command, matches: &ArgMatches) {
    // A second call, for a rewritten command line, has no effect.
    let _ = INVOCATION.set(Invocation::of(command, matches));
}

fn display_name(argument: &Arg) -> String {
    match argument.get_long() {
        Some(long) => format!("--{long}"),
        None => {
            let names = argument.get_value_names().unwrap_or_default();
            names.first().map_or_else(|| argument.get_id().to_string().to_uppercase(), ToString::to_string)
        }
    }
}
