//! `skep exec`.

mod stream;

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Read},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use futures_util::{Stream, StreamExt};
use skep_api::exec::{ExecExit, ExecRequest, VmField};
use skep_client::{Client, ExecEvent};
use tokio::io::AsyncWriteExt;

use super::boot::{milliseconds, variables};
use crate::{
    connection::Connection,
    output,
    signals::{SIGNALLED, Signals},
    target::{self, TargetOption, WrongLine},
};
pub(super) use stream::Input;

/// The exit code for a command that its timeout ended, as `timeout` has it.
const TIMED_OUT: u8 = 124;
/// The exit code where the command's end is not known, as `env` and `timeout` have it.
const FAILED: u8 = 125;
const AFTER_HELP: &str = "  skep exec web uname -n             in the VM `web`; a VM is given by process id, id or its unique beginning, name,
                                     host name or address
  skep exec web 'ls | wc -l'         a single word is a line for the shell, as with -c
  skep exec web -- ls -l             after `--` every word is the command's
  skep exec --server 'ls; id -un'    on the server, as the owner of its workspace

Input and output are passed on as bytes while the command runs: tar c . | skep exec web tar x. A terminal's input is passed
on line by line. In a loop that reads its own input, give -n.

SIGINT and SIGTERM are passed on to the command. A second SIGINT, ten seconds after SIGTERM, and SIGHUP end it at once.

Exit codes: the command's own; 128+n where signal n ended it or this verb; 124 where its timeout did; 125 where it did not
run, or its end is not known; 2 where the command line is wrong, or its VM does not exist.";
const USAGE: &str = "skep exec [OPTIONS] VM COMMAND...
       skep exec [OPTIONS] --vm VM COMMAND...
       skep exec [OPTIONS] --server COMMAND...";

/// Run a command in a VM, or on the server. What it prints is passed on byte by byte, also to a terminal.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = USAGE)]
pub(crate) struct Exec {
    #[command(flatten)]
    target: TargetOption,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    connection: Connection,
}

/// A command, and what it runs with.
#[derive(Debug, Args)]
pub(super) struct Program {
    /// Command and arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) command: Vec<String>,
    /// Command line for the shell.
    #[arg(short = 'c', long = "line", value_name = "LINE")]
    pub(super) line: Option<String>,
    /// The working directory; a relative one begins at the default [default: in a VM /root, else the workspace].
    #[arg(short = 'w', long, value_name = "DIR")]
    cwd: Option<String>,
    /// Environment variable for the command; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Time limit for the command, such as 500ms, 90s or 2h [default: 60s].
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Do not pass on standard input.
    #[arg(short = 'n', long)]
    no_stdin: bool,
}

pub(crate) async fn run(verb: Exec) -> anyhow::Result<ExitCode> {
    let (vm, command) = (verb.target.vm.clone(), verb.program.command.clone());
    run_to_its_end(verb).await.or_else(|error| {
        let refusal = error.downcast_ref().zip(vm.as_deref());
        match refusal.and_then(|(refusal, vm)| target::no_such_vm(refusal, vm, &command)) {
            Some(wrong) => Err(wrong.into()),
            None => Ok(failed(&error)),
        }
    })
}

/// The exit code of a command that did not run, or whose end is not known.
pub(super) fn failed(error: &anyhow::Error) -> ExitCode {
    output::failed(error);
    ExitCode::from(FAILED)
}

impl Exec {
    /// The words of the command line, with `--vm VM` in the place of the VM that stands before the command. `None` where the
    /// options give the place.
    ///
    /// # Errors
    /// The command line gives no place or no command.
    pub(crate) fn with_vm_named(&self, arguments: &[OsString]) -> Result<Option<Vec<OsString>>, WrongLine> {
        let Program { command, line, .. } = &self.program;
        target::with_vm_named(&self.target, command, line.as_deref(), arguments)
    }
}

impl Program {
    /// The request that runs it in this VM, or on the server, and its input. A whole answer, which `json` prints, takes the
    /// input with the request.
    pub(super) fn request(self, vm: Option<String>, json: bool) -> anyhow::Result<(ExecRequest, Input)> {
        anyhow::ensure!(
            self.line.is_none() || self.command.is_empty(),
            "both -c and a command are given: `{}`; give one of them",
            shell_line(&self.command)
        );
        let request = ExecRequest {
            command: self.line.unwrap_or_else(|| shell_line(&self.command)),
            cwd: self.cwd,
            timeout: self.timeout.as_deref().map(milliseconds).transpose()?,
            env: if self.env.is_empty() { None } else { Some(variables(&self.env)?) },
            stdin: if self.no_stdin || !json { None } else { stdin()? },
            vm: vm.map(VmField::Text),
            stream: None,
            encoding: None,
        };
        Ok((request, if self.no_stdin { Input::Nothing } else { Input::Stdin }))
    }
}

async fn run_to_its_end(verb: Exec) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let (request, input) = verb.program.request(verb.target.vm, verb.connection.json)?;
    execute(&client, &request, input, verb.connection.json).await
}

/// Runs a command until it ends, or until a signal ends this verb.
pub(super) async fn execute(
    client: &Client,
    request: &ExecRequest,
    input: Input,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if !json {
        return stream::run(client, request, input).await;
    }
    let mut signals = Signals::listen()?;
    tokio::select! {
        outcome = whole(client, request) => outcome,
        // The call is given up, and with it the server ends the command.
        code = signals.next() => Ok(code),
    }
}

async fn whole(client: &Client, request: &ExecRequest) -> anyhow::Result<ExitCode> {
    let outcome = client.exec(request).await?;
    output::json(&outcome.text)?;
    Ok(code(outcome.exit_code, outcome.signal.as_deref(), outcome.timed_out))
}

/// Passes on what a command prints. `None` where the events end before the command.
pub(super) async fn pass_on(
    mut events: impl Stream<Item = skep_client::Result<ExecEvent>> + Unpin,
) -> anyhow::Result<Option<ExitCode>> {
    // Not the blocking ones: a reader that takes nothing would keep signals waiting too.
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => {
                // A reader that went away ends the command, as it would on this machine.
                let written = async {
                    out.write_all(&bytes).await?;
                    out.flush().await
                };
                written.await.context("the output has no reader")?;
            }
            ExecEvent::Stderr(bytes) => {
                let _ = err.write_all(&bytes).await;
                let _ = err.flush().await;
            }
            ExecEvent::Exit(exit) => return Ok(Some(ended(&exit))),
        }
    }
    Ok(None)
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

/// What is on standard input, where that is no terminal: the whole answer of `--json` takes text.
fn stdin() -> anyhow::Result<Option<String>> {
    let mut input = io::stdin();
    if input.is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    let read = input.read_to_string(&mut text);
    read.context("the input is not UTF-8 text, or cannot be read; leave out --json, or give -n")?;
    Ok(if text.is_empty() { None } else { Some(text) })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Command lines without a place or a command, and a part of each refusal.
    const WRONG: [(&str, &str); 14] = [
        ("exec", "no VM is given"),
        ("exec -c ls", "no VM is given"),
        ("exec ls", "no command is given for the VM `ls`"),
        ("exec  ls", "the VM is empty"),
        ("exec  ls", "exec --server ls"),
        ("exec Ls -l", "`Ls` cannot be a VM"),
        ("exec ls;id x", "--server ls;id x"),
        ("exec -- 42 x", "no VM stands before `--`"),
        ("exec -it 42 sh", "`-it` is not an option"),
        ("exec 42 -it sh", "there are no terminals"),
        ("exec 42 --user root sh", "`--user` is not an option"),
        ("exec --server", "no command is given"),
        ("exec --server -x", "`-x` is not an option"),
        ("exec --vm 42", "no command is given for the VM `42`"),
    ];

    #[test]
    fn a_command_runs_in_a_vm_that_is_named_or_on_the_server_that_is_asked_for() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            exec: Exec,
        }
        let parse = |words: &[OsString]| Line::try_parse_from(words).map(|line| line.exec).unwrap();
        let named = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut exec = parse(&words);
            if let Some(words) = exec.with_vm_named(&words)? {
                exec = parse(&words);
                assert_eq!(exec.with_vm_named(&words)?, None);
            }
            Ok::<_, WrongLine>((exec.target.vm, exec.program.command.join(" "), exec.program.line))
        };
        let text = |text: &str| Some(text.to_owned());
        for line in [
            "exec 42 echo -n x",
            "exec 42 -- echo -n x",
            "exec --vm 42 echo -n x",
            "exec --vm 42 -- echo -n x",
        ] {
            assert_eq!(named(line).unwrap(), (text("42"), "echo -n x".to_owned(), None), "{line}");
        }
        assert_eq!(named("exec vm_01h -w /tmp -c ls").unwrap(), (text("vm_01h"), String::new(), text("ls")));
        assert_eq!(named("exec -n 42 42 42").unwrap(), (text("42"), "42 42".to_owned(), None));
        assert_eq!(named("exec web web").unwrap(), (text("web"), "web".to_owned(), None));
        assert_eq!(named("exec 10.77.0.2 -- -x").unwrap(), (text("10.77.0.2"), "-x".to_owned(), None));
        assert_eq!(named("exec --server uname -n").unwrap(), (None, "uname -n".to_owned(), None));
        assert_eq!(named("exec --server -- -n").unwrap(), (None, "-n".to_owned(), None));
        assert_eq!(named("exec --server -c ls").unwrap(), (None, String::new(), text("ls")));
        for (line, why) in WRONG {
            let refused = named(line).unwrap_err().to_string();
            assert!(refused.contains(why), "{line}: {refused}");
        }
        for line in ["exec --vm= ls", "exec --vm A ls", "exec --vm 42 --server ls"] {
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
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
