//! Commands with binary input and output: the messages of the WebSocket, and the operations behind them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    exec::{ANSWER_GRACE, ExecExit, MAX_TIMEOUT_MS, StreamRefusal},
    operation::{HelperKind, Operation},
};

/// The WebSocket subprotocol. A client may omit it, unless it sends its key as another subprotocol.
pub const EXEC_PROTOCOL: &str = "skep.exec.v1";
/// The prefix of the subprotocol that carries the key of a client that cannot set `Authorization`, such as a browser.
pub const BEARER_PROTOCOL: &str = "bearer.";
/// The maximum size of a message from a client, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// How much input the server buffers for one command, in bytes. A client that keeps at most this much unacknowledged
/// can still send control messages while the command does not read its input.
pub const STDIN_WINDOW_BYTES: usize = 256 << 10;
/// The maximum input of one [`WriteStdin`], in bytes.
pub const MAX_WRITE_BYTES: usize = 64 << 10;

/// The stream of a binary message, given by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamId {
    /// Standard input, from client to server.
    Stdin = 0,
    /// Standard output, from server to client.
    Stdout = 1,
    /// Standard error, from server to client.
    Stderr = 2,
}

impl StreamId {
    /// The stream for the first byte of a message; `None` for an unknown one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Stdin),
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }

    /// The first byte of this stream's messages.
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

/// A text message from the client. The first message of a connection is the request instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExecControl {
    /// Sends a signal to the command's process group.
    Signal {
        /// The signal to send.
        name: SignalName,
    },
    /// Ends the command's standard input after the data sent so far.
    EndOfStdin {},
}

/// A text message from the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExecNotice {
    /// The command has started. This is the first message.
    Started {
        /// The command's id, for `GET /api/swarm/vm/{pid}/exec/{exec_id}`.
        id: String,
    },
    /// The command's pipe has accepted input.
    Stdin {
        /// Bytes accepted so far.
        taken: u64,
        /// False once the command has closed its input or ended. Further input is discarded.
        open: bool,
    },
    /// The command has ended. This is the last message.
    Exit(ExecExit),
    /// The command was rejected, or its outcome is unknown. This is the last message.
    Error(StreamRefusal),
}

/// A signal that can be sent to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SignalName {
    /// Hang-up: the terminal was closed.
    #[serde(rename = "SIGHUP")]
    Hup,
    /// Interrupt, as by Ctrl-C.
    #[serde(rename = "SIGINT")]
    Int,
    /// Quit, as by Ctrl-\.
    #[serde(rename = "SIGQUIT")]
    Quit,
    /// Kills the process; cannot be caught.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// User-defined signal 1.
    #[serde(rename = "SIGUSR1")]
    Usr1,
    /// User-defined signal 2.
    #[serde(rename = "SIGUSR2")]
    Usr2,
    /// Requests termination.
    #[serde(rename = "SIGTERM")]
    Term,
    /// Continues a stopped process.
    #[serde(rename = "SIGCONT")]
    Cont,
    /// Stops the process; cannot be caught.
    #[serde(rename = "SIGSTOP")]
    Stop,
}

/// Writes to the standard input of a command that was started with [`Stdin::STREAMED`](crate::exec::Stdin::STREAMED).
/// The bytes follow the request. The answer is sent when the command's pipe has accepted all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteStdin {
    /// The id of the command.
    pub exec_id: String,
}

/// Ends the standard input of a command started with [`Stdin::STREAMED`](crate::exec::Stdin::STREAMED), after the
/// bytes written so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStdin {
    /// The id of the command.
    pub exec_id: String,
}

/// Sends a signal to the process group of a command. A command that has ended gets none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalCommand {
    /// The id of the command.
    pub exec_id: String,
    /// The signal to send.
    pub signal: SignalName,
}

/// Whether a command accepts more input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinState {
    /// False once the command has closed its input or ended, or [`EndStdin`] was sent.
    pub open: bool,
}

/// The empty answer of [`SignalCommand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSent {}

impl Operation for WriteStdin {
    const NAME: &'static str = "write-stdin";
    const HELPER: Option<HelperKind> = Some(HelperKind::Commands);
    type Answer = StdinState;

    /// As long as a command may run: a command that does not read its input must not count as a guest that does not
    /// answer.
    fn time_limit(&self) -> Duration {
        Duration::from_millis(MAX_TIMEOUT_MS).saturating_add(ANSWER_GRACE)
    }
}

impl Operation for EndStdin {
    const NAME: &'static str = "end-stdin";
    const HELPER: Option<HelperKind> = Some(HelperKind::Commands);
    type Answer = StdinState;
}

impl Operation for SignalCommand {
    const NAME: &'static str = "signal-command";
    const HELPER: Option<HelperKind> = Some(HelperKind::Commands);
    type Answer = SignalSent;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_they_are_documented() {
        let control = |text: &str| serde_json::from_str::<ExecControl>(text);
        assert_eq!(
            control(r#"{"type":"signal","name":"SIGINT"}"#).unwrap(),
            ExecControl::Signal { name: SignalName::Int }
        );
        assert_eq!(control(r#"{"type":"end_of_stdin"}"#).unwrap(), ExecControl::EndOfStdin {});
        for wrong in [
            r#"{"type":"signal"}"#,
            r#"{"type":"signal","name":"INT"}"#,
            r#"{"type":"signal","name":"SIGINT","pid":1}"#,
            r#"{"type":"end_of_stdin","x":1}"#,
            r#"{"type":"resize"}"#,
            "{}",
        ] {
            assert!(control(wrong).is_err(), "{wrong}");
        }
        let exit =
            ExecExit { exit_code: Some(3), signal: None, duration_ms: 7, timed_out: false, truncated: false };
        assert_eq!(
            serde_json::to_string(&ExecNotice::Exit(exit)).unwrap(),
            r#"{"type":"exit","exit_code":3,"signal":null,"duration_ms":7,"timed_out":false,"truncated":false}"#
        );
        assert_eq!(
            serde_json::to_string(&ExecNotice::Stdin { taken: 5, open: true }).unwrap(),
            r#"{"type":"stdin","taken":5,"open":true}"#
        );
    }

    #[test]
    fn a_byte_names_a_stream() {
        for byte in 0..=u8::MAX {
            assert_eq!(StreamId::from_byte(byte).map(StreamId::byte), (byte < 3).then_some(byte));
        }
    }
}
