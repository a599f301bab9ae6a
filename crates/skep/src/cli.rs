//! The command line.

use std::ffi::OsString;

use clap::{Command, CommandFactory, Parser};

use crate::verbs::{Verb, bake_template, egress_process, helper};

/// The exit codes of a client of the API, unless the help of its verb has others.
const EXIT_CODES: &str = "Exit codes: 0 success; 1 the request was refused or failed, or no server answered; 2 the command line is wrong.";
/// The exit codes of a verb that sends no requests, unless its help has others.
const LOCAL_EXIT_CODES: &str = "Exit codes: 0 success; 1 it failed; 2 the command line is wrong.";
/// The text with which the exit codes begin in a help text.
const EXIT_CODES_LABEL: &str = "Exit codes: ";

/// A workspace server for AI agents: files, git and commands, on the server and in microVMs.
#[derive(Debug, Parser)]
#[command(
    name = "skep",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = EXIT_CODES,
    mut_subcommands = with_exit_codes
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Adds the exit codes to the help of a verb and of all verbs below it. A help text that has its own keeps them.
fn with_exit_codes(verb: Command) -> Command {
    let codes = if sends_requests(&verb) { EXIT_CODES } else { LOCAL_EXIT_CODES };
    let help = match verb.get_after_help().map(ToString::to_string) {
        Some(help) if help.contains(EXIT_CODES_LABEL) => help,
        Some(help) => format!("{help}\n\n{codes}"),
        None => codes.to_owned(),
    };
    verb.after_help(help).mut_subcommands(with_exit_codes)
}

/// Whether a verb, or one below it, is a client of the API.
fn sends_requests(verb: &Command) -> bool {
    verb.get_arguments().any(|argument| argument.get_id() == "url")
        || verb.get_subcommands().any(sends_requests)
}

/// Internal verbs, by which skep starts its own processes. They have a parser of their own, so that clap suggests none
/// of them for a mistyped verb.
#[derive(Debug, Parser)]
#[command(name = "skep")]
pub(crate) enum Internal {
    /// The unprivileged server process, started by the keeper.
    ServerProcess,
    /// The process that starts programs for callers.
    Helper(helper::Helper),
    /// The process that builds a template from another one.
    BakeTemplate(Box<bake_template::BakeTemplate>),
    /// The process that connects VMs to hosts outside.
    EgressProcess(egress_process::EgressProcess),
    /// The process that jails itself and then executes the VMM.
    Stage,
}

impl Internal {
    /// The internal verb, if the command line begins with one.
    pub(crate) fn find(arguments: &[OsString]) -> Option<Self> {
        let word = arguments.get(1)?.to_str()?;
        Self::command().find_subcommand(word)?;
        Some(Self::parse_from(arguments))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use skep_harness::GUIDE;

    use super::*;

    /// Calls `call` for each verb without subcommands, with its command line.
    fn each_verb(command: &clap::Command, path: &str, call: &mut impl FnMut(&str, &clap::Command)) {
        if !command.has_subcommands() {
            call(path, command);
        }
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            each_verb(verb, &format!("{path} {}", verb.get_name()), call);
        }
    }

    #[test]
    fn the_help_of_each_verb_has_its_exit_codes() {
        let mut seen = 0;
        each_verb(&Cli::command(), "skep", &mut |path, verb| {
            for help in [verb.clone().render_help(), verb.clone().render_long_help()] {
                let help = help.to_string();
                assert_eq!(help.matches(EXIT_CODES_LABEL).count(), 1, "{path}: {help}");
            }
            seen += 1;
        });
        assert!(seen > 80, "{seen}");
    }

    #[test]
    fn the_exit_codes_of_a_verb_say_whether_it_sends_requests() {
        let of = |path: &str| {
            let command = Cli::command();
            let find = |command: &Command, word: &str| command.find_subcommand(word).cloned();
            let verb = path.split(' ').try_fold(command, |command, word| find(&command, word));
            verb.expect(path).get_after_help().expect(path).to_string()
        };
        for client in
            ["boot", "git", "git merge", "ticket claim", "template show", "account set", "webhook rm"]
        {
            assert_eq!(of(client), EXIT_CODES, "{client}");
        }
        for local in ["backup", "restore"] {
            assert_eq!(of(local), LOCAL_EXIT_CODES, "{local}");
        }
        // A verb keeps its other text, and its own exit codes.
        let rm = of("rm");
        assert!(rm.contains("./web is the") && rm.ends_with(EXIT_CODES), "{rm}");
        let man = of("man");
        assert!(man.starts_with("Examples:") && man.ends_with(LOCAL_EXIT_CODES), "{man}");
        for (verb, own) in
            [("ticket wait", "3 all are finished"), ("bake", "0 the template"), ("exec", "124")]
        {
            assert!(of(verb).contains(own), "{verb}: {}", of(verb));
        }
    }

    #[test]
    fn help_groups_settings_and_connection_options() {
        let with_settings = ["skep serve", "skep bake", "skep doctor", "skep config check", "skep uninstall"];
        each_verb(&Cli::command(), "skep", &mut |path, verb| {
            let heading = |id: &str| {
                let argument = verb.get_arguments().find(|argument| argument.get_id() == id)?;
                Some(argument.get_help_heading())
            };
            assert_eq!(heading("max_headers").is_some(), with_settings.contains(&path), "{path}");
            if heading("url").is_some() {
                for id in ["url", "api_key", "ca_file", "data_dir"] {
                    assert_eq!(heading(id), Some(Some("Connection")), "{path}: {id}");
                }
                assert_eq!(heading("json"), Some(None), "{path}");
                let help = verb.clone().render_long_help().to_string();
                let place = |heading| help.find(heading).unwrap_or_else(|| panic!("{path}: {help}"));
                assert!(place("\nOptions:") < place("\nConnection:"), "{path}");
            }
        });
    }

    #[test]
    fn help_names_who_sets_the_default_of_a_boot() {
        let defaults = [("ttl", "[default: that of the server"), ("egress", "[default: that of the account")];
        let mut seen = Vec::new();
        each_verb(&Cli::command(), "skep", &mut |path, verb| {
            if !["skep boot", "skep fork", "skep run"].contains(&path) {
                return;
            }
            for (id, default) in defaults {
                let argument = verb.get_arguments().find(|argument| argument.get_id() == id);
                let Some(help) = argument.and_then(clap::Arg::get_help) else { continue };
                assert!(help.to_string().contains(default), "{path}: {help}");
                seen.push(format!("{path} {id}"));
            }
        });
        seen.sort();
        let wanted =
            ["skep boot egress", "skep boot ttl", "skep fork egress", "skep fork ttl", "skep run ttl"];
        assert_eq!(seen, wanted);
    }

    /// Splits a shell line into the `skep` commands in it. Supports only the shell syntax that the guide uses.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let (mut commands, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
        for c in line.chars().chain([';']) {
            match (c, quote) {
                (c, Some(end)) if c == end => quote = None,
                (c, Some(_)) => word.get_or_insert_default().push(c),
                ('\'' | '"', None) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (' ', None) => words.extend(word.take()),
                ('|' | ';' | '&' | '(' | ')' | '#', None) => {
                    words.extend(word.take());
                    commands.push(std::mem::take(&mut words));
                    if c == '#' {
                        break;
                    }
                }
                (c, None) => word.get_or_insert_default().push(c),
            }
        }
        commands.retain(|words| words.first().is_some_and(|word| word == "skep"));
        commands
    }

    /// A valid value for a placeholder of the guide.
    fn example(word: &str) -> String {
        match word {
            "ID" => "key_01jv0000000000000000000000".to_owned(),
            "$PLAN" | "$PORT" | "$SUM" => "tkt_01jv0000000000000000000000".to_owned(),
            word => word.to_owned(),
        }
    }

    #[test]
    fn the_commands_of_the_guide_are_commands() {
        let (mut checked, mut is_block) = (0, false);
        for (path, line) in GUIDE.iter().flat_map(|(path, page)| page.lines().map(move |line| (path, line))) {
            if line.starts_with("```") {
                is_block = !is_block;
                continue;
            }
            let spans: Vec<&str> = if is_block {
                line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")).into_iter().collect()
            } else {
                line.split('`').skip(1).step_by(2).collect()
            };
            for words in spans.into_iter().flat_map(commands) {
                let words = words.iter().map(|word| example(word));
                match Cli::command().try_get_matches_from(words) {
                    Ok(_) => checked += 1,
                    Err(error) if !error.use_stderr() => checked += 1,
                    // Prose may name a group of verbs, or a verb without its arguments.
                    Err(error)
                        if !is_block && error.kind() == clap::error::ErrorKind::MissingRequiredArgument => {}
                    Err(error) => panic!("{path}: {line}\n{error}"),
                }
            }
        }
        assert!(checked > 40, "{checked}");
    }

    /// The options below a heading that are not those of the connection, of this verb and of all below it.
    fn misplaced(verb: &clap::Command, path: &str, found: &mut Vec<String>) {
        for option in verb.get_arguments() {
            let name = option.get_id().as_str();
            let is_connection = ["url", "api_key", "ca_file", "data_dir", "config"].contains(&name);
            if option.get_help_heading() == Some("Connection") && !is_connection {
                found.push(format!("{path} {name}"));
            }
        }
        for below in verb.get_subcommands() {
            misplaced(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    #[test]
    fn options_of_a_verb_precede_connection_options() {
        let mut found = Vec::new();
        misplaced(&Cli::command(), "skep", &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }

    /// An argument as its verb's help shows it, without values that depend on the machine or on who runs the command.
    fn summary(argument: &clap::Arg) -> String {
        let short = argument.get_short().map(|short| format!("-{short} ")).unwrap_or_default();
        let long = argument.get_long().map(|long| format!("--{long} ")).unwrap_or_default();
        let names = argument.get_value_names().unwrap_or_default();
        let values = if argument.get_action().takes_values() { names } else { &[] };
        let values: String = values.iter().map(|name| format!("<{name}> ")).collect();
        let required = if argument.is_required_set() { "(required) " } else { "" };
        let env = argument.get_env().map(|env| format!("[{}] ", env.display())).unwrap_or_default();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.split(" [default:").next().unwrap_or_default();
        format!("  {short}{long}{values}{required}{env}{help}\n")
    }

    /// A verb and all below it. The settings are listed once, at `skep serve`, and the connection at `skep boot`.
    fn summaries(verb: &clap::Command, path: &str, settings: &BTreeSet<String>, text: &mut String) {
        *text += &format!("{path}: {}\n", verb.get_about().map(ToString::to_string).unwrap_or_default());
        for argument in verb.get_arguments() {
            let is_connection = argument.get_help_heading() == Some("Connection") && path != "skep boot";
            // A setting has a variable; the option of a verb that has its name, such as --egress, has none.
            let is_setting = settings.contains(argument.get_id().as_str())
                && argument.get_env().is_some()
                && path != "skep serve";
            if !is_connection && !is_setting {
                *text += &summary(argument);
            }
        }
        for below in verb.get_subcommands() {
            summaries(below, &format!("{path} {}", below.get_name()), settings, text);
        }
    }

    /// A difference is a change of the command: it belongs in the changelog.
    #[test]
    fn the_help_is_that_of_the_snapshot() {
        let (command, mut text) = (Cli::command(), String::new());
        let serve = command.find_subcommand("serve").expect("a verb");
        let settings = serve.get_arguments().map(|argument| argument.get_id().to_string()).collect();
        summaries(&command, "skep", &settings, &mut text);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
        Internal::command().debug_assert();
    }
}
