//! The flags of this process's command line, and whether its output is JSON.

use std::sync::OnceLock;

use clap::{ArgMatches, Command, parser::ValueSource};

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// The flags of the verb that runs.
#[derive(Debug, Default)]
pub(crate) struct Invocation {
    pub(crate) json: bool,
    /// The ids of the arguments that were given on the command line.
    flags: Vec<String>,
}

impl Invocation {
    /// The recorded invocation; an empty one before [`record`].
    pub(crate) fn current() -> &'static Self {
        static NONE: Invocation = Invocation { json: false, flags: Vec::new() };
        INVOCATION.get().unwrap_or(&NONE)
    }

    fn of(command: &Command, matches: &ArgMatches) -> Self {
        let (mut command, mut matches) = (command, matches);
        while let Some((name, below)) = matches.subcommand() {
            let Some(verb) = command.find_subcommand(name) else { break };
            (command, matches) = (verb, below);
        }
        let ids = command.get_arguments().map(|argument| argument.get_id().to_string());
        let is_flag = |id: &String| {
            matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        Self {
            json: matches.try_get_one("json").ok().flatten().copied().unwrap_or(false),
            flags: ids.filter(is_flag).collect(),
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
