//! The outcome for a ticket when the command of the boot ends.
//!
//! | exit code | outcome |
//! |---|---|
//! | 0, with a valid [`RESULT_FILE`] | the ticket is completed with the object in the file |
//! | 0, without the file | the ticket is completed with the exit code and the end of the output |
//! | 0, with an invalid file | the attempt failed and counts |
//! | 126, 127 | the ticket is given back: the shell could not start the command |
//! | any other, or a signal | the attempt failed and counts |

use std::{collections::VecDeque, time::Duration};

use futures_util::StreamExt;
use serde_json::{Value, json};
use skep_api::{
    ErrorCode,
    exec::{ExecEvent, ExecExit, KEPT_OUTPUT_BYTES},
    streams::StreamFile,
    tickets::{Object, RESULT_FILE},
};
use skep_channel::{Error, Guest};
use skep_store::CommandOutcome;
use tokio::time::{sleep, timeout};

use crate::{ticket_file, vm::VmHandle};

/// Exit codes of a shell whose command is not executable or does not exist.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// Size limit of the result file.
const MAX_RESULT_BYTES: usize = 1 << 20;
/// Limit of commas in the result, and so roughly of values, because a parsed value takes more memory than its text.
const MAX_RESULT_COMMAS: usize = 250_000;
/// Bytes of each output that a completed ticket gets.
const COMPLETED_TAIL_BYTES: usize = 64 << 10;
/// Bytes of each output that a failed attempt gets. Less, because a ticket may have a thousand of these.
const FAILED_TAIL_BYTES: usize = 4 << 10;
/// Time limit for reading the file, and for reading the output.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts at a guest that does not answer, and the pause between them.
const MAX_ATTEMPTS: u32 = 3;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The outcome of an exit. `None` if the VM ended meanwhile: then the end of the VM decides.
pub(crate) async fn from_exit(vm: &VmHandle, exec_id: &str, exit: &ExecExit) -> Option<CommandOutcome> {
    let code = exit.exit_code;
    let result = if code == Some(0) { Some(read_result_with_retries(vm).await?) } else { None };
    if let Some(Ok(Some(result))) = result {
        return Some(CommandOutcome::Completed(result));
    }
    let tails = output_tails(vm, exec_id).await?;
    Some(match result {
        Some(Err(message)) => {
            let mut evidence = evidence(exit, &tails, FAILED_TAIL_BYTES);
            evidence.insert("error".to_owned(), "invalid_result".into());
            evidence.insert("message".to_owned(), message.into());
            CommandOutcome::AttemptFailed(evidence)
        }
        Some(Ok(_)) => CommandOutcome::Completed(evidence(exit, &tails, COMPLETED_TAIL_BYTES)),
        None if matches!(code, Some(NOT_EXECUTABLE | NOT_FOUND)) => {
            CommandOutcome::Released(evidence(exit, &tails, FAILED_TAIL_BYTES))
        }
        None => CommandOutcome::AttemptFailed(evidence(exit, &tails, FAILED_TAIL_BYTES)),
    })
}

/// The outcome if the guest does not know the command. It does not count as an attempt.
pub(crate) fn for_unknown_command() -> CommandOutcome {
    let message = "how the command ended is not known: it was not started before the server ended, or the server was away for \
                   more than ten minutes after its end";
    let evidence = [("error".to_owned(), json!("lost")), ("message".to_owned(), json!(message))];
    CommandOutcome::Released(evidence.into_iter().collect())
}

fn evidence(exit: &ExecExit, tails: &[Tail; 2], bytes: usize) -> Object {
    let mut evidence = Object::from_iter([
        ("exit_code".to_owned(), json!(exit.exit_code)),
        ("stdout_tail".to_owned(), json!(tails[0].text(bytes))),
        ("stderr_tail".to_owned(), json!(tails[1].text(bytes))),
    ]);
    if let Some(signal) = &exit.signal {
        evidence.insert("signal".to_owned(), json!(signal));
    }
    evidence
}

/// Reads the result file. The outer `None`: the VM ended. The inner `None`: there is no file. `Err`: why it is invalid.
async fn read_result_with_retries(vm: &VmHandle) -> Option<Result<Option<Object>, String>> {
    let mut attempts = 0;
    while attempts < MAX_ATTEMPTS {
        let guest = vm.running_guest().await?;
        let error = match timeout(READ_TIMEOUT, read_result(&guest)).await {
            Ok(Ok(Some(text))) => return Some(parse_result(&text).map(Some)),
            Ok(Ok(None)) => return Some(Ok(None)),
            Ok(Err(ReadError::Invalid(message))) => return Some(Err(message)),
            Ok(Err(ReadError::Guest(error))) => error.to_string(),
            Err(_) => format!("it was not read within {} s", READ_TIMEOUT.as_secs()),
        };
        // The VM ends, or it was paused to disk and has another connection after its resume.
        if guest.is_closed() {
            continue;
        }
        attempts += 1;
        tracing::warn!(vm = %vm.facts.id, %error, "the result in VM {} was not read: {error}", vm.facts.id);
        sleep(RETRY_INTERVAL).await;
    }
    Some(Err(format!("{RESULT_FILE} cannot be read")))
}

/// Why the result file could not be read.
enum ReadError {
    /// The file is not a valid result, with the reason.
    Invalid(String),
    /// The guest did not answer correctly.
    Guest(Error),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        Self::Guest(error)
    }
}

async fn read_result(guest: &Guest) -> Result<Option<Vec<u8>>, ReadError> {
    let path = ticket_file::path(RESULT_FILE).map_err(|failure| ReadError::Invalid(failure.message))?;
    let read = StreamFile { path, range: None, if_range: None };
    let mut content = match guest.call_streamed(&read, None).await {
        Ok((_, content)) => content,
        Err(Error::Refused(failure)) if failure.code == ErrorCode::UnknownPath => return Ok(None),
        Err(Error::Refused(failure)) if failure.code == ErrorCode::NotAFile => {
            return Err(ReadError::Invalid(format!("{RESULT_FILE} is not a regular file")));
        }
        Err(Error::Refused(failure)) => {
            return Err(ReadError::Invalid(format!("{RESULT_FILE} cannot be read: {}", failure.message)));
        }
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    while let Some(piece) = content.next().await {
        text.extend(piece.map_err(|_| Error::Ended)?);
        if text.len() > MAX_RESULT_BYTES {
            return Err(ReadError::Invalid(format!("{RESULT_FILE} has more than {MAX_RESULT_BYTES} bytes")));
        }
    }
    Ok(Some(text))
}

fn parse_result(text: &[u8]) -> Result<Object, String> {
    if text.iter().filter(|byte| **byte == b',').count() > MAX_RESULT_COMMAS {
        return Err(format!("{RESULT_FILE} has more than {MAX_RESULT_COMMAS} values"));
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("{RESULT_FILE} is not an object of JSON")),
        Err(error) => Err(format!("{RESULT_FILE} is not JSON: {error}")),
    }
}

/// The last part of stdout and stderr, as the guest keeps them. `None` if the VM ended.
async fn output_tails(vm: &VmHandle, exec_id: &str) -> Option<[Tail; 2]> {
    loop {
        let guest = vm.running_guest().await?;
        let mut tails = [Tail::default(), Tail::default()];
        if let Ok(Err(error)) = timeout(READ_TIMEOUT, read_tails(&guest, exec_id, &mut tails)).await {
            // The VM ends, or it was paused to disk and has another connection after its resume.
            if guest.is_closed() {
                continue;
            }
            tracing::warn!(vm = %vm.facts.id, %error, "the output of the command of VM {} was not read: {error}", vm.facts.id);
        }
        return Some(tails);
    }
}

/// Adds the output of a command that has ended. After an error, `tails` has what was read before.
async fn read_tails(guest: &Guest, exec_id: &str, tails: &mut [Tail; 2]) -> Result<(), Error> {
    let mut events = guest.attach_detached(exec_id, 0, 0, READ_TIMEOUT).await?;
    let mut read = 0;
    // A guest may send more than it keeps.
    while read <= 3 * KEPT_OUTPUT_BYTES {
        let (tail, bytes) = match events.next().await {
            Some(Ok(ExecEvent::Stdout(bytes))) => (&mut tails[0], bytes),
            Some(Ok(ExecEvent::Stderr(bytes))) => (&mut tails[1], bytes),
            Some(Ok(ExecEvent::Exit(_))) | None => break,
            Some(Err(error)) => return Err(error),
        };
        read += bytes.len();
        tail.push(&bytes);
    }
    Ok(())
}

/// The last part of an output.
#[derive(Debug, Default)]
struct Tail {
    bytes: VecDeque<u8>,
    is_cut: bool,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(COMPLETED_TAIL_BYTES);
        self.bytes.drain(..over);
        self.is_cut |= over > 0;
    }

    /// At most the last `most` bytes as text, without a partial character at the beginning.
    fn text(&self, most: usize) -> String {
        let over = self.bytes.len().saturating_sub(most);
        let is_cut = self.is_cut || over > 0;
        let end: Vec<u8> = self.bytes.range(over..).copied().collect();
        let rest = end.iter().take(3).take_while(|byte| is_cut && **byte & 0xc0 == 0x80).count();
        String::from_utf8_lossy(&end[rest..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_within_the_limits_is_a_result() {
        assert_eq!(parse_result(br#"{"a": 1}"#).unwrap()["a"], 1);
        let many = format!("{{\"a\": [{}0]}}", "0,".repeat(MAX_RESULT_COMMAS + 1));
        for (text, message) in [
            ("[1]", "not an object"),
            ("{", "not JSON"),
            ("", "not JSON"),
            (&"[".repeat(100_000), "not JSON"),
            (&many, "more than 250000 values"),
        ] {
            let refused = parse_result(text.as_bytes()).unwrap_err();
            assert!(refused.contains(message), "{refused}");
        }
    }

    #[test]
    fn a_tail_is_the_end_and_cuts_no_character() {
        let mut tail = Tail::default();
        tail.push("a".repeat(10).as_bytes());
        assert_eq!((tail.text(100), tail.text(3)), ("a".repeat(10), "aaa".to_owned()));
        for _ in 0..COMPLETED_TAIL_BYTES {
            tail.push("é".as_bytes());
        }
        tail.push(b"x");
        let text = tail.text(COMPLETED_TAIL_BYTES);
        assert!(
            text.len() == COMPLETED_TAIL_BYTES - 1 && text.starts_with('é') && text.ends_with("éx"),
            "{}",
            text.len()
        );
    }
}
