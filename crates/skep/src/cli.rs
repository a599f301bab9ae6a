//! The command line.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    connection::EXIT_CODES,
    verbs::{
        account, attach, audit, backup, bake, bench, boot, cat, cleanup, config, cp, doctor, end, events,
        exec, find, git, grep, helper, keys, logs, ls, mkdir, mv, ps, rename, restore, rm, run, serve,
        status, ticket, uninstall, watch, webhook, whoami, write,
    },
};

/// A workspace server for AI agents: files, git and commands, on the server and in microVMs.
#[derive(Debug, Parser)]
#[command(name = "skep", version, propagate_version = true, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the server.
    Serve(serve::Serve),
    /// Boot one or more VMs.
    Boot(boot::Boot),
    /// List the VMs.
    Ps(ps::Ps),
    /// Run a command in a VM; input, output and exit code are those of the command.
    Exec(exec::Exec),
    /// Boot a VM and run a command in it.
    Run(run::Run),
    /// Follow a running command of a VM.
    Attach(attach::Attach),
    /// Print a VM's console, and the output of the command that it was booted with.
    Logs(logs::Logs),
    /// List a folder of the server's workspace or of a VM.
    Ls(ls::Ls),
    /// Print files.
    Cat(cat::Cat),
    /// Write standard input to a file.
    Write(write::Write),
    /// Copy files and folders between this machine, the server's workspace and VMs.
    Cp(cp::Cp),
    /// Make folders.
    Mkdir(mkdir::Mkdir),
    /// Move or rename a file or a folder.
    Mv(mv::Mv),
    /// Remove files and folders.
    Rm(rm::Rm),
    /// Print changes below a folder as they happen.
    Watch(watch::Watch),
    /// Find files by name.
    Find(find::Find),
    /// Search file contents.
    Grep(grep::Grep),
    /// Work with git repositories in the server's workspace or in a VM.
    Git(git::Git),
    /// Create, claim and finish tickets.
    Ticket(ticket::Ticket),
    /// Print events of tickets, VMs and keys as they occur.
    Events(events::Events),
    /// Send events to an HTTP endpoint.
    Webhook(webhook::Webhook),
    /// Give a VM another name.
    Rename(rename::Rename),
    /// End VMs.
    End(end::End),
    /// End all VMs of the account.
    Cleanup(cleanup::Cleanup),
    /// Show the number of VMs, memory, pool and VM engine.
    Status(status::Status),
    /// Measure boot times and cost of VMs on a running server.
    Bench(bench::Bench),
    /// Show the key in use: its account, scopes and limits.
    Whoami(whoami::Whoami),
    /// Create, list, change and delete accounts.
    Account(account::Account),
    /// Create, list, rotate and revoke API keys.
    Keys(keys::Keys),
    /// Show the audit log: every write and every refusal.
    Audit(audit::Audit),
    /// Check whether this machine can run a server with VMs.
    Doctor(doctor::Doctor),
    /// Copy the store to a file; a server may keep running.
    Backup(backup::Backup),
    /// Replace the store with a backup; no server may run.
    Restore(restore::Restore),
    /// Check the settings of a server.
    Config(config::Config),
    /// Build the base template.
    Bake(bake::Bake),
    /// Remove skep and its data from this machine.
    Uninstall(uninstall::Uninstall),
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
    use super::*;

    /// Calls `call` for each verb without subcommands, with its command line.
    fn each_verb(command: &clap::Command, words: &str, call: &mut impl FnMut(&str, &clap::Command)) {
        if !command.has_subcommands() {
            call(words, command);
        }
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            each_verb(verb, &format!("{words} {}", verb.get_name()), call);
        }
    }

    #[test]
    fn settings_stand_where_they_count_and_the_connection_under_its_own_heading() {
        let with_settings = ["skep serve", "skep bake", "skep doctor", "skep config check", "skep uninstall"];
        each_verb(&Cli::command(), "skep", &mut |words, verb| {
            let heading = |id: &str| {
                let argument = verb.get_arguments().find(|argument| argument.get_id() == id)?;
                Some(argument.get_help_heading())
            };
            assert_eq!(heading("max_headers").is_some(), with_settings.contains(&words), "{words}");
            if heading("url").is_some() {
                for id in ["url", "api_key", "ca_file", "data_dir"] {
                    assert_eq!(heading(id), Some(Some("Connection")), "{words}: {id}");
                }
                assert_eq!(heading("json"), Some(None), "{words}");
                let help = verb.clone().render_long_help().to_string();
                let place = |heading| help.find(heading).unwrap_or_else(|| panic!("{words}: {help}"));
                assert!(place("\nOptions:") < place("\nConnection:"), "{words}");
            }
        });
    }

    const README: &str = include_str!("../../../README.md");

    /// Splits a shell line into the `skep` commands in it. Supports only the shell syntax that the README uses.
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

    /// A valid value for a placeholder of the README.
    fn example(word: &str) -> String {
        match word {
            "ID" => "key_01jv0000000000000000000000".to_owned(),
            "$PLAN" | "$PORT" | "$SUM" => "tkt_01jv0000000000000000000000".to_owned(),
            word => word.to_owned(),
        }
    }

    #[test]
    fn the_commands_of_the_readme_are_commands() {
        let (mut checked, mut is_block) = (0, false);
        for line in README.lines() {
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
                    Err(error) => panic!("{line}\n{error}"),
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
    fn the_options_of_a_verb_stand_before_those_of_the_connection() {
        let mut found = Vec::new();
        misplaced(&Cli::command(), "skep", &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn the_command_lines_contradict_nothing() {
        Cli::command().debug_assert();
        Internal::command().debug_assert();
    }
}
