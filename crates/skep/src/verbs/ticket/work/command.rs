//! The command for a ticket. It runs in a process group of its own, so that all its processes can be ended.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, process::Stdio, time::Duration};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use skep_api::tickets::{Object, Ticket};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use super::{files::Files, output::CapturedOutput};

/// Exit codes of a shell for a command that is not executable or does not exist.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time to wait for the last output after the command has ended: a background child may hold the pipe open.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

pub(super) struct RunningCommand {
    child: Child,
    group: Option<Pid>,
    stdout: JoinHandle<()>,
    stderr: JoinHandle<()>,
    captured: [CapturedOutput; 2],
}

/// A finished command.
pub(super) struct FinishedCommand {
    status: ExitStatus,
    stdout: CapturedOutput,
    stderr: CapturedOutput,
}

impl RunningCommand {
    /// Starts the command, with the ticket in environment variables and on standard input.
    ///
    /// # Errors
    /// The program does not exist.
    pub(super) fn start(
        words: &[String],
        ticket: &Ticket,
        assignee: &str,
        files: &Files,
    ) -> anyhow::Result<Self> {
        let mut command = match words {
            [line] => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", line]);
                shell
            }
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            [] => anyhow::bail!("there is no command"),
        };
        command
            .env("SKEP_TICKET_ID", ticket.id.to_string())
            .env("SKEP_TICKET_ATTEMPT", ticket.attempt.to_string())
            .env("SKEP_TICKET_ASSIGNEE", assignee)
            .env("SKEP_TICKET_TITLE", ticket.title.replace('\0', " "))
            .env("SKEP_TICKET_FILE", files.ticket())
            .env("SKEP_RESULT_FILE", files.result())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let started = command.spawn();
        let mut child = started.with_context(|| format!("`{}` could not be started", words.join(" ")))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(mut input) = child.stdin.take() {
            let record = serde_json::to_vec(ticket)?;
            // The command may ignore its input.
            tokio::spawn(async move { _ = input.write_all(&record).await });
        }
        let kept = [CapturedOutput::default(), CapturedOutput::default()];
        let stdout = tokio::spawn(capture(child.stdout.take(), kept[0].clone(), None));
        let stderr = tokio::spawn(capture(child.stderr.take(), kept[1].clone(), Some(tokio::io::stderr())));
        Ok(Self { child, group, stdout, stderr, captured: kept })
    }

    /// Waits until the command ends.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(super) async fn wait(&mut self) -> anyhow::Result<FinishedCommand> {
        let status = self.child.wait().await.context("the command cannot be waited for")?;
        let _ = timeout(OUTPUT_GRACE, async {
            let _ = (&mut self.stdout).await;
            let _ = (&mut self.stderr).await;
        })
        .await;
        let [stdout, stderr] = self.captured.clone();
        Ok(FinishedCommand { status, stdout, stderr })
    }

    /// Ends all processes of the command.
    pub(super) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        if timeout(GRACE, self.child.wait()).await.is_err() {
            self.signal(Signal::KILL);
            let _ = self.child.wait().await;
        }
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // Fails only if the group has already ended.
        let _ = self.group.map(|group| kill_process_group(group, signal));
    }
}

/// Captures output and copies it to `to`.
async fn capture(
    from: Option<impl AsyncRead + Unpin>,
    kept: CapturedOutput,
    mut to: Option<tokio::io::Stderr>,
) {
    let Some(mut from) = from else { return };
    let mut piece = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        kept.push(&piece[..count]);
        if let Some(to) = &mut to {
            let _ = to.write_all(&piece[..count]).await;
            let _ = to.flush().await;
        }
    }
}

/// The outcome of a ticket, derived from its command.
pub(super) enum Outcome {
    Completed(Object),
    Failed(Object),
    /// The shell or the system could not start the command, for this reason; the attempt is not the ticket's fault.
    NotStarted(String),
}

impl FinishedCommand {
    /// The outcome. The result of a success is the object in the result file, else the output if it is an object, else
    /// the exit code and the end of the output.
    pub(super) fn outcome(&self, files: &Files) -> Outcome {
        let code = self.status.code();
        if let Some(code @ (NOT_EXECUTABLE | NOT_FOUND)) = code {
            let stderr = self.stderr.tail();
            let last = stderr.lines().last().unwrap_or_default();
            return Outcome::NotStarted(format!("exit code {code}: {last}"));
        }
        let mut tails = Object::from_iter([
            ("exit_code".to_owned(), json!(code)),
            ("stdout_tail".to_owned(), json!(self.stdout.tail())),
            ("stderr_tail".to_owned(), json!(self.stderr.tail())),
        ]);
        if !self.status.success() {
            tails.insert("signal".to_owned(), json!(self.status.signal()));
            return Outcome::Failed(tails);
        }
        match files.read_result() {
            Ok(Some(result)) => Outcome::Completed(result),
            Ok(None) => Outcome::Completed(self.printed_object().unwrap_or(tails)),
            Err(message) => {
                tails.insert("error".to_owned(), json!("invalid_result"));
                tails.insert("message".to_owned(), json!(message));
                Outcome::Failed(tails)
            }
        }
    }

    /// The output, if it is a JSON object as a whole.
    fn printed_object(&self) -> Option<Object> {
        match serde_json::from_slice(&self.stdout.whole()?) {
            Ok(Value::Object(object)) => Some(object),
            _ => None,
        }
    }
}
