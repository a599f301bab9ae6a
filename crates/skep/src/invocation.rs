//! The command line of this process, as far as error messages refer to it.

use std::sync::OnceLock;

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// The verb that runs, and where the values of its connection came from.
#[derive(Debug, Default)]
pub(crate) struct Invocation {
    /// Whether `--json` was given.
    pub(crate) json: bool,
    /// The id of each argument of the verb, and how a user writes it: `--force`, or `FILE`.
    pub(crate) arguments: Vec<(String, String)>,
    flags: Vec<String>,
}

impl Invocation {
    /// The invocation that [`record`] recorded; an empty one before that.
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
            arguments: ids().zip(command.get_arguments().map(written)).collect(),
            flags: ids().filter(is_flag).collect(),
        }
    }

    /// Whether the argument with this id was given on the command line, not by a variable or a default.
    pub(crate) fn has_flag(&self, id: &str) -> bool {
        self.flags.iter().any(|flag| flag == id)
    }
}

/// Records the invocation for the rest of the process.
pub(crate) fn record(command: &Command, matches: &ArgMatches) {
    // A second call, for a command line that was rewritten, changes nothing.
    let _ = INVOCATION.set(Invocation::of(command, matches));
}

fn written(argument: &Arg) -> String {
    match argument.get_long() {
        Some(long) => format!("--{long}"),
        None => {
            let names = argument.get_value_names().unwrap_or_default();
            names.first().map_or_else(|| argument.get_id().to_string().to_uppercase(), ToString::to_string)
        }
    }
}
