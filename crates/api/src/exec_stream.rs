//! Commands with input and output as bytes: the frames of the WebSocket, and the operations behind them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    exec::{ANSWER_GRACE, ExecExit, MAX_TIMEOUT_MS, StreamRefusal},
    operation::{HelperKind, Operation},
};

/// The subprotocol of the WebSocket. A client need not name it, unless it sends its key as another subprotocol.
pub const EXEC_PROTOCOL: &str = "skep.exec.v1";
/// How the subprotocol begins that carries the key of a client that cannot set `Authorization`, such as a browser.
pub const BEARER_PROTOCOL: &str = "bearer.";
/// The longest message of a client, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// How much input the server holds for one command, in bytes. A client that keeps no more than this unacknowledged gets its
/// control messages through while the command does not read.
pub const STDIN_WINDOW_BYTES: usize = 256 << 10;
/// The most input that one [`WriteStdin`] carries, in bytes.
pub const STDIN_PIECE_BYTES: usize = 64 << 10;

/// The first byte of a binary message: which stream the other bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamId {
    /// Standard input, from the client.
    Stdin = 0,
    /// Standard output, to the client.
    Stdout = 1,
    /// Standard error, to the client.
    Stderr = 2,
}

impl StreamId {
    /// The stream that a message's first byte names.
    pub const fn of(byte: u8) -> Option<Self> {
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

/// A text message of the client, after the first one, which is the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExecControl {
    /// Sends a signal to the command's process group.
    Signal {
        /// Its name.
        name: SignalName,
    },
    /// No input follows: the command reads the end of its standard input behind what was sent.
    EndOfStdin {},
}

/// A text message of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExecNotice {
    /// The command runs. The first message.
    Started {
        /// Its id, to come back to it by `GET /api/swarm/vm/{pid}/exec/{exec_id}`.
        id: String,
    },
    /// Input was taken by the command's pipe.
    Stdin {
        /// How many bytes so far.
        taken: u64,
        /// False once the command has closed its input or ended: what is sent from then on is dropped.
        open: bool,
    },
    /// The command ended. The last message.
    Exit(ExecExit),
    /// The command was refused, or its end is unknown. The last message.
    Error(StreamRefusal),
}

/// A signal that a command can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SignalName {
    /// The terminal was closed.
    #[serde(rename = "SIGHUP")]
    Hup,
    /// Interrupt, as by Ctrl-C.
    #[serde(rename = "SIGINT")]
    Int,
    /// Quit, as by Ctrl-\.
    #[serde(rename = "SIGQUIT")]
    Quit,
    /// End at once.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// For the program's own use.
    #[serde(rename = "SIGUSR1")]
    Usr1,
    /// For the program's own use.
    #[serde(rename = "SIGUSR2")]
    Usr2,
    /// End.
    #[serde(rename = "SIGTERM")]
    Term,
    /// Go on after a stop.
    #[serde(rename = "SIGCONT")]
    Cont,
    /// Stop.
    #[serde(rename = "SIGSTOP")]
    Stop,
}

/// Writes to the standard input of a command that was started with [`Stdin::STREAMED`](crate::exec::Stdin::STREAMED). The bytes
/// follow the request. The answer comes once the command's pipe has taken all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteStdin {
    /// The command's id.
    pub exec_id: String,
}

/// Ends the standard input of such a command, behind what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStdin {
    /// The command's id.
    pub exec_id: String,
}

/// Sends a signal to the process group of a command. One that ended gets none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalCommand {
    /// The command's id.
    pub exec_id: String,
    /// The signal.
    pub signal: SignalName,
}

/// Whether a command takes more input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinState {
    /// False once the command closed its input or ended, or the input was ended.
    pub open: bool,
}

/// The answer of [`SignalCommand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSent {}

impl Operation for WriteStdin {
    const NAME: &'static str = "write-stdin";
    const HELPER: Option<HelperKind> = Some(HelperKind::Commands);
    type Answer = StdinState;

    /// As long as a command runs: one that does not read its input is not silent.
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
            assert_eq!(StreamId::of(byte).map(StreamId::byte), (byte < 3).then_some(byte));
        }
    }
}
