//! `skep exec`.

use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal, Read},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use futures_util::StreamExt;
use skep_api::exec::{ExecExit, ExecRequest, VmField};
use skep_client::{Client, ExecEvent};
use tokio::io::AsyncWriteExt;

use super::boot::{milliseconds, variables};
use crate::{
    connection::Connection,
    output,
    signals::{SIGNALLED, Signals},
    transfer::is_vm,
};

/// The exit code for a command that its timeout ended, as `timeout` has it.
const TIMED_OUT: u8 = 124;
/// The exit code where the command's end is not known, as `env` and `timeout` have it.
const FAILED: u8 = 125;
const AFTER_HELP: &str = "The VM may stand before the command instead: skep exec 4242 uname -n. After `--` every word is the command's.

A single word is taken as a line for the shell, as -c does: skep exec 4242 'ls | wc -l'

Exit codes: the command's own; 128+n where signal n ended it, or ended this verb: SIGINT, SIGTERM and SIGHUP end the
command in the VM too; 124 where its timeout did; 125 where it did not run, or its end is not known; 2 where the command
line is wrong.";

/// Run a command in a VM, or on the server. What it prints is passed on byte by byte, also to a terminal.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Exec {
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required_unless_present = "line")]
    command: Vec<String>,
    /// The VM, by process id or id [default: the server].
    #[arg(long, value_name = "VM")]
    vm: Option<String>,
    /// A line for the shell.
    #[arg(short = 'c', long = "line", value_name = "LINE")]
    line: Option<String>,
    /// The working directory [default: the workspace; in a VM /root].
    #[arg(short = 'w', long, value_name = "DIR")]
    cwd: Option<String>,
    /// A variable that the command sees; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Seconds until the command is ended; `ms`, `s`, `m` and `h` may follow the number [default: 60].
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Pass no input on.
    #[arg(short = 'n', long)]
    no_stdin: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Exec) -> anyhow::Result<ExitCode> {
    Ok(run_to_its_end(verb).await.unwrap_or_else(|error| {
        output::failed(&error);
        ExitCode::from(FAILED)
    }))
}

impl Exec {
    /// The words of the command line, with `--vm VM` in the place of a VM that stands before the command. `None` where none
    /// does.
    pub(crate) fn with_vm_named(&self, arguments: &[OsString]) -> Option<Vec<OsString>> {
        let vm = self.command.first().filter(|word| self.vm.is_none() && is_vm(word))?;
        // The command is what the command line ends with; within it `--` may be missing.
        let starts = [self.command.len(), self.command.len() + 1];
        let mut starts = starts.into_iter().filter_map(|length| arguments.len().checked_sub(length));
        let at = starts.find(|at| arguments[*at] == OsStr::new(vm))?;
        let (before, after) = (&arguments[..at], &arguments[at + 1..]);
        if before.last().is_some_and(|word| word == "--") {
            return None;
        }
        let named = [OsString::from("--vm"), OsString::from(vm)];
        Some([before, &named, after].concat())
    }
}

async fn run_to_its_end(verb: Exec) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        verb.line.is_none() || verb.command.is_empty(),
        "both -c and a command are given: `{}`; give one of them",
        shell_line(&verb.command)
    );
    let client = verb.connection.client()?;
    let request = ExecRequest {
        command: verb.line.unwrap_or_else(|| shell_line(&verb.command)),
        cwd: verb.cwd,
        timeout: verb.timeout.as_deref().map(milliseconds).transpose()?,
        env: if verb.env.is_empty() { None } else { Some(variables(&verb.env)?) },
        stdin: if verb.no_stdin { None } else { stdin()? },
        vm: verb.vm.map(VmField::Text),
        stream: None,
    };
    let mut signals = Signals::listen()?;
    let command = async {
        if verb.connection.json { whole(&client, &request).await } else { streamed(&client, &request).await }
    };
    tokio::select! {
        outcome = command => outcome,
        // The call is given up, and with it the server ends the command.
        code = signals.next() => Ok(code),
    }
}

async fn whole(client: &Client, request: &ExecRequest) -> anyhow::Result<ExitCode> {
    let outcome = client.exec(request).await?;
    output::json(&outcome.text)?;
    Ok(code(outcome.exit_code, outcome.signal.as_deref(), outcome.timed_out))
}

async fn streamed(client: &Client, request: &ExecRequest) -> anyhow::Result<ExitCode> {
    // Not the blocking ones: a reader that takes nothing would keep signals waiting too.
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    let mut events = client.exec_stream(request).await?;
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Stdout(text) => {
                // A reader that went away ends the command, as it would on this machine.
                let written = async {
                    out.write_all(text.as_bytes()).await?;
                    out.flush().await
                };
                written.await.context("the output has no reader")?;
            }
            ExecEvent::Stderr(text) => {
                let _ = err.write_all(text.as_bytes()).await;
                let _ = err.flush().await;
            }
            ExecEvent::Exit(exit) => return Ok(ended(&exit)),
        }
    }
    anyhow::bail!("the server closed the stream before the command's end was known")
}

fn ended(exit: &ExecExit) -> ExitCode {
    if exit.timed_out {
        output::say(&format!("skep: the timeout ended the command after {} ms", exit.duration_ms));
    }
    code(exit.exit_code, exit.signal.as_deref(), exit.timed_out)
}

fn code(exit_code: Option<i32>, signal: Option<&str>, timed_out: bool) -> ExitCode {
    if timed_out {
        return ExitCode::from(TIMED_OUT);
    }
    match (exit_code, signal.and_then(number_of)) {
        (Some(code), _) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        (None, Some(number)) => ExitCode::from(SIGNALLED.saturating_add(number)),
        (None, None) => ExitCode::FAILURE,
    }
}

/// The number of a signal on Linux.
fn number_of(name: &str) -> Option<u8> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let at = NAMES.iter().position(|known| *known == name)?;
    u8::try_from(at + 1).ok()
}

/// One word is a line; several are a program and its arguments, each kept as it is.
fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What is on standard input, where that is no terminal.
fn stdin() -> anyhow::Result<Option<String>> {
    let mut input = io::stdin();
    if input.is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    let read = input.read_to_string(&mut text);
    read.context("the input is not UTF-8 text, or cannot be read; encode it, or give -n")?;
    Ok(if text.is_empty() { None } else { Some(text) })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_vm_may_stand_before_the_command() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            exec: Exec,
        }
        let named = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let parse = |words: &[OsString]| Line::try_parse_from(words).map(|line| line.exec).unwrap();
            let exec = parse(&words);
            let exec = exec.with_vm_named(&words).map_or(exec, |words| parse(&words));
            (exec.vm, exec.command.join(" "), exec.line)
        };
        let text = |text: &str| Some(text.to_owned());
        for line in [
            "exec 42 echo -n x",
            "exec 42 -- echo -n x",
            "exec --vm 42 echo -n x",
            "exec --vm 42 -- echo -n x",
        ] {
            assert_eq!(named(line), (text("42"), "echo -n x".to_owned(), None), "{line}");
        }
        assert_eq!(named("exec vm_01h -w /tmp -c ls"), (text("vm_01h"), String::new(), text("ls")));
        assert_eq!(named("exec -n 42 42 42"), (text("42"), "42 42".to_owned(), None));
        assert_eq!(named("exec uname -n"), (None, "uname -n".to_owned(), None));
        assert_eq!(named("exec -- 42 x"), (None, "42 x".to_owned(), None));
    }

    #[test]
    fn words_reach_the_program_as_they_are() {
        let line =
            |words: &[&str]| shell_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["ls | wc -l"]), "ls | wc -l");
        assert_eq!(line(&["sh", "-c", "echo $HOME"]), "sh -c 'echo $HOME'");
        assert_eq!(line(&["echo", "it's", ""]), r"echo 'it'\''s' ''");
    }

    #[test]
    fn an_end_has_the_exit_code_that_a_shell_would_give() {
        assert_eq!(code(Some(7), None, false), ExitCode::from(7));
        assert_eq!(code(None, Some("SIGKILL"), false), ExitCode::from(137));
        assert_eq!(code(None, Some("SIGTERM"), false), ExitCode::from(143));
        assert_eq!(code(None, None, true), ExitCode::from(124));
        assert_eq!(code(None, Some("SIGRTMIN"), false), ExitCode::FAILURE);
    }
}
