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

use super::boot::{parse_milliseconds, parse_pairs};
use crate::{
    connection::Connection,
    output,
    signals::{SIGNAL_EXIT_BASE, Signals},
    target::{self, TargetOption, UsageError},
};
pub(super) use stream::Input;

/// The exit code of a command that its timeout ended, as in timeout(1).
const TIMED_OUT: u8 = 124;
/// The exit code if the command did not run or its end is unknown, as in env(1) and timeout(1).
const NOT_RUN: u8 = 125;
const AFTER_HELP: &str = "  skep exec web uname -n             in the VM `web`; a VM is given by process id, id or its unique beginning, name,
                                     host name or address
  skep exec web 'ls | wc -l'         a single word is a shell command line, as with -c
  skep exec web -- ls -l             all words after `--` are the command's
  skep exec --server 'ls; id -un'    on the server, as the owner of its workspace

Input and output are passed on as bytes while the command runs: tar c . | skep exec web tar x. A terminal's input is passed
on line by line. In a loop that reads its own input, give -n.

SIGINT and SIGTERM are passed on to the command. A second SIGINT, ten seconds after SIGTERM, and SIGHUP end it at once.

Exit codes: the command's own; 128+n if signal n ended it or this verb; 124 if its timeout did; 125 if it did not
run or its end is unknown; 2 if the command line is wrong or the VM does not exist.";
const USAGE: &str = "skep exec [OPTIONS] VM COMMAND...
       skep exec [OPTIONS] --vm VM COMMAND...
       skep exec [OPTIONS] --server COMMAND...";

/// Run a command in a VM or on the server.
///
/// Input, output and exit code are those of the command. Its output is passed on unchanged, also to a terminal.
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

/// The command and its options, shared with `skep run`.
#[derive(Debug, Args)]
pub(super) struct Program {
    /// Command and arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) command: Vec<String>,
    /// Command line for the shell, instead of COMMAND.
    #[arg(short = 'c', long = "line", value_name = "LINE")]
    pub(super) line: Option<String>,
    /// Working directory; a relative path is resolved against the default [default: /root in a VM, else the first root
    /// of the workspace].
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
    run_command(verb).await.or_else(|error| {
        let refusal = error.downcast_ref().zip(vm.as_deref());
        match refusal.and_then(|(refusal, vm)| target::unknown_vm_error(refusal, vm, &command)) {
            Some(wrong) => Err(wrong.into()),
            None => Ok(report_failure(&error)),
        }
    })
}

/// Prints the error and returns the exit code of a command that did not run or whose end is unknown.
pub(super) fn report_failure(error: &anyhow::Error) -> ExitCode {
    output::report_error(error);
    ExitCode::from(NOT_RUN)
}

impl Exec {
    /// Rewrites the command line so that the VM before the command becomes `--vm VM`. `None` if options already name
    /// the target.
    ///
    /// # Errors
    /// The command line has no target or no command.
    pub(crate) fn with_vm_option(&self, arguments: &[OsString]) -> Result<Option<Vec<OsString>>, UsageError> {
        let Program { command, line, .. } = &self.program;
        target::with_vm_option(&self.target, command, line.as_deref(), arguments)
    }
}

impl Program {
    /// The request for the command, and its input. With `json` the answer comes as a whole, so the request contains the
    /// input.
    pub(super) fn request(self, vm: Option<String>, json: bool) -> anyhow::Result<(ExecRequest, Input)> {
        anyhow::ensure!(
            self.line.is_none() || self.command.is_empty(),
            "both -c and a command are given: `{}`; give one of them",
            shell_line(&self.command)
        );
        let request = ExecRequest {
            command: self.line.unwrap_or_else(|| shell_line(&self.command)),
            cwd: self.cwd,
            timeout: self.timeout.as_deref().map(parse_milliseconds).transpose()?,
            env: if self.env.is_empty() { None } else { Some(parse_pairs(&self.env)?) },
            stdin: if self.no_stdin || !json { None } else { stdin()? },
            vm: vm.map(VmField::Text),
            stream: None,
            encoding: None,
        };
        Ok((request, if self.no_stdin { Input::Empty } else { Input::Stdin }))
    }
}

async fn run_command(verb: Exec) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let (request, input) = verb.program.request(verb.target.vm, verb.connection.json)?;
    execute(&client, &request, input, verb.connection.json).await
}

/// Runs a command until it ends or a signal ends this verb.
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
        outcome = run_buffered(client, request) => outcome,
        // Dropping the call closes the connection, and the server ends the command.
        code = signals.next_exit_code() => Ok(code),
    }
}

async fn run_buffered(client: &Client, request: &ExecRequest) -> anyhow::Result<ExitCode> {
    let outcome = client.exec(request).await?;
    output::json(&outcome.text)?;
    Ok(exit_code_of(outcome.exit_code, outcome.signal.as_deref(), outcome.timed_out))
}

/// Copies the output of a command to this process. `None` if the events end before the command.
pub(super) async fn forward_output(
    mut events: impl Stream<Item = skep_client::Result<ExecEvent>> + Unpin,
) -> anyhow::Result<Option<ExitCode>> {
    // Asynchronous streams: a blocked reader must not delay signals.
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => {
                // A closed reader ends the command, as it would locally.
                let written = async {
                    out.write_all(&bytes).await?;
                    out.flush().await
                };
                written.await.context("the output was closed by its reader")?;
            }
            ExecEvent::Stderr(bytes) => {
                let _ = err.write_all(&bytes).await;
                let _ = err.flush().await;
            }
            ExecEvent::Exit(exit) => return Ok(Some(report_exit(&exit))),
        }
    }
    Ok(None)
}

fn report_exit(exit: &ExecExit) -> ExitCode {
    if exit.timed_out {
        output::eprint_line(&format!("skep: the timeout ended the command after {} ms", exit.duration_ms));
    }
    exit_code_of(exit.exit_code, exit.signal.as_deref(), exit.timed_out)
}

fn exit_code_of(exit_code: Option<i32>, signal: Option<&str>, timed_out: bool) -> ExitCode {
    if timed_out {
        return ExitCode::from(TIMED_OUT);
    }
    match (exit_code, signal.and_then(number_of)) {
        (Some(code), _) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        (None, Some(number)) => ExitCode::from(SIGNAL_EXIT_BASE.saturating_add(number)),
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

/// A single word is a shell line; several words are a program and its arguments, which are quoted.
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

/// Reads standard input unless it is a terminal. The answer of `--json` needs it as text.
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

    /// Command lines without a target or a command, and part of each error.
    const USAGE_ERRORS: [(&str, &str); 14] = [
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
    fn the_target_is_a_vm_or_the_server() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            exec: Exec,
        }
        let parse = |words: &[OsString]| Line::try_parse_from(words).map(|line| line.exec).unwrap();
        let named = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut exec = parse(&words);
            if let Some(words) = exec.with_vm_option(&words)? {
                exec = parse(&words);
                assert_eq!(exec.with_vm_option(&words)?, None);
            }
            Ok::<_, UsageError>((exec.target.vm, exec.program.command.join(" "), exec.program.line))
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
        for (line, why) in USAGE_ERRORS {
            let refused = named(line).unwrap_err().to_string();
            assert!(refused.contains(why), "{line}: {refused}");
        }
        for line in ["exec --vm= ls", "exec --vm A ls", "exec --vm 42 --server ls"] {
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        let line =
            |words: &[&str]| shell_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["ls | wc -l"]), "ls | wc -l");
        assert_eq!(line(&["sh", "-c", "echo $HOME"]), "sh -c 'echo $HOME'");
        assert_eq!(line(&["echo", "it's", ""]), r"echo 'it'\''s' ''");
    }

    #[test]
    fn exit_codes_follow_shell_conventions() {
        assert_eq!(exit_code_of(Some(7), None, false), ExitCode::from(7));
        assert_eq!(exit_code_of(None, Some("SIGKILL"), false), ExitCode::from(137));
        assert_eq!(exit_code_of(None, Some("SIGTERM"), false), ExitCode::from(143));
        assert_eq!(exit_code_of(None, None, true), ExitCode::from(124));
        assert_eq!(exit_code_of(None, Some("SIGRTMIN"), false), ExitCode::FAILURE);
    }
}
