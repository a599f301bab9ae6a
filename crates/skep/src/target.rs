//! The target of a command: a VM, or the server with `--server`.

use std::{
    ffi::{OsStr, OsString},
    fmt,
};

use clap::Args;
use skep_api::{ErrorCode, VmRef};

#[derive(Debug, Clone, Args)]
pub(crate) struct TargetOption {
    /// The VM: process id, id or its unique beginning, name, host name or address. It may stand before the command instead.
    #[arg(long, value_name = "VM", value_parser = vm_reference)]
    pub(crate) vm: Option<String>,
    /// Run the command on the server, as the owner of its workspace.
    #[arg(long, conflicts_with = "vm")]
    pub(crate) server: bool,
}

/// A usage error that clap does not detect; the exit code is 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Parses a reference to a VM. An empty one usually comes from an unset variable, so it gets a message of its own.
pub(crate) fn vm_reference(text: &str) -> Result<String, String> {
    match VmRef::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None if text.is_empty() => {
            Err("the VM is empty; if it comes from a variable, set it: `skep ps` lists the VMs".to_owned())
        }
        None => Err(format!(
            "`{text}` cannot be a VM; give its process id, id, name, host name or address: `skep ps` lists the VMs"
        )),
    }
}

/// Rewrites a command line so that the VM before the command becomes `--vm VM`. `None` if options already name the
/// target.
///
/// # Errors
/// The target or the command is missing, or the verb does not have an option.
pub(crate) fn with_vm_option(
    target: &TargetOption,
    command: &[String],
    line: Option<&str>,
    arguments: &[OsString],
) -> Result<Option<Vec<OsString>>, UsageError> {
    let start = command_start(command, arguments);
    let is_behind_dashes = start.is_some_and(|at| arguments[..at].last().is_some_and(|word| word == "--"));
    if target.vm.is_some() || target.server {
        check_command(target, command, line, is_behind_dashes)?;
        return Ok(None);
    }
    let (Some(vm), Some(at)) = (command.first(), start) else {
        return Err(UsageError(format!("no VM is given; {USAGE}")));
    };
    if is_behind_dashes {
        return Err(UsageError(format!("no VM stands before `--`; {USAGE}")));
    }
    check_option(vm)?;
    let on_server = abbreviated(if vm.is_empty() { &command[1..] } else { command });
    vm_reference(vm).map_err(|why| {
        UsageError(format!("{why}; to run a command on the server: skep exec --server {on_server}"))
    })?;
    let named = [OsString::from("--vm"), OsString::from(vm)];
    Ok(Some([&arguments[..at], &named, &arguments[at + 1..]].concat()))
}

const USAGE: &str =
    "skep exec VM COMMAND... runs a command in a VM, skep exec --server COMMAND... on the server";

/// The usage error for a refusal of the server that finds no VM, or several, for the given reference. `None` for other
/// refusals.
pub(crate) fn unknown_vm_error(
    refusal: &skep_client::Error,
    vm: &str,
    command: &[String],
) -> Option<UsageError> {
    let is_beginning = matches!(VmRef::parse(vm), Some(VmRef::IdPrefix(_)));
    match refusal.code() {
        ErrorCode::UnknownVm => Some(UsageError(format!(
            "no VM `{vm}` in this account: `skep ps` lists the VMs; to run a command on the server: skep exec --server {}",
            abbreviated(command)
        ))),
        ErrorCode::InvalidValue if is_beginning => Some(UsageError(refusal.to_string())),
        _ => None,
    }
}

fn check_command(
    target: &TargetOption,
    command: &[String],
    line: Option<&str>,
    is_behind_dashes: bool,
) -> Result<(), UsageError> {
    match (command.first(), &target.vm) {
        (Some(first), _) if !is_behind_dashes => check_option(first),
        (None, Some(vm)) if line.is_none() => {
            Err(UsageError(format!("no command is given for the VM `{vm}`; {USAGE}")))
        }
        (None, None) if line.is_none() => Err(UsageError(format!("no command is given; {USAGE}"))),
        _ => Ok(()),
    }
}

/// Refuses a first word of the command that looks like an option.
///
/// # Errors
/// The word begins with `-`.
pub(crate) fn check_option(word: &str) -> Result<(), UsageError> {
    if !word.starts_with('-') {
        return Ok(());
    }
    let terminal = ["-i", "-t", "-it", "-ti", "--interactive", "--tty"].contains(&word);
    let why = if terminal {
        "input is passed on without it, and there are no terminals: leave it out"
    } else {
        "`--help` lists the options, and a command that begins with `-` follows `--`"
    };
    Err(UsageError(format!("`{word}` is not an option of this verb; {why}")))
}

/// The index of the command in the command line. The line ends with it; `--` within it may have been removed by clap.
pub(crate) fn command_start(command: &[String], arguments: &[OsString]) -> Option<usize> {
    let first = OsStr::new(command.first()?);
    let starts = [command.len(), command.len() + 1];
    let mut starts = starts.into_iter().filter_map(|length| arguments.len().checked_sub(length));
    starts.find(|at| arguments[*at] == first)
}

/// Abbreviates a command for a message.
fn abbreviated(command: &[String]) -> String {
    const LONGEST: usize = 80;
    let text = command.join(" ");
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None if text.is_empty() => "COMMAND...".to_owned(),
        None => text,
    }
}
