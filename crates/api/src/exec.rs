//! Commands: requests, answers, and the operation that runs a command in a workspace.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::operation::{HelperKind, Operation};

/// The time limit of a command if the request gives none, in milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// The initial working directory of commands in a VM, to which a relative `cwd` refers.
pub const VM_HOME: &str = "/root";
/// The longest time limit of a command, in milliseconds.
pub const MAX_TIMEOUT_MS: u64 = 3_600_000;
/// The part of each output stream that is kept, in bytes: the first half and the last half of this size.
pub const KEPT_OUTPUT_BYTES: usize = 1 << 20;
/// How long after a command's time limit its answer may arrive, because a loaded machine needs time to end the
/// processes.
pub const ANSWER_GRACE: Duration = Duration::from_secs(30);

/// A command to run. Body of `POST /api/exec` and `POST /api/swarm/vm/{pid}/exec`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecRequest {
    /// The command line, run by `/bin/sh -c`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[^\\u0000]*$", example = "uname -n"))]
    pub command: String,
    /// Working directory. Default: `/root` inside a VM, the account's first root on the server. A relative path
    /// refers to that directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^[^\\u0000]*$", min_length = 1))]
    pub cwd: Option<String>,
    /// Time limit in milliseconds, 1 to 3,600,000; default 60,000. When it expires, all processes that the command
    /// started are ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3_600_000, example = 60_000))]
    pub timeout: Option<u64>,
    /// Additional environment variables. They override those of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Text for the command's standard input, followed by end of file. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The VM, by process id, id or name; default: the server. Only for `POST /api/exec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmField>,
    /// Whether the answer is a stream of server-sent events: `stdout`, `stderr` and `exit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The encoding of `data` in a streamed answer: `utf-8`, or `base64` for the exact bytes. Only with `stream:
    /// true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<OutputEncoding>,
}

/// A VM in a body: its process id as a number, or a string with its id, a unique beginning of the id, its name, host
/// name or address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a VM is given by its process id (a number), or by its id or name (a string)")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum VmField {
    /// The process id.
    Pid(#[serde(deserialize_with = "crate::whole_number::required")] u64),
    /// The id, a unique beginning of it, the name, the host name or the address; or the process id as text.
    Text(String),
}

impl VmField {
    /// The text that refers to this VM in a path.
    pub fn as_text(&self) -> String {
        match self {
            Self::Pid(pid) => pid.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A validated command, as it runs in a workspace: the operation behind both exec routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCommand {
    /// The command line, run by `/bin/sh -c`.
    pub command: String,
    /// Working directory, absolute; the workspace's default if `None`.
    pub cwd: Option<String>,
    /// Additional environment variables. They override those of the workspace.
    pub env: BTreeMap<String, String>,
    /// The source of the command's standard input.
    pub stdin: Stdin,
    /// Time limit in milliseconds, after which all processes that the command started are ended.
    pub timeout_ms: u64,
}

/// The source of a command's standard input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stdin {
    /// End of file at once.
    #[default]
    Empty,
    /// This text, then end of file.
    Text(String),
    /// The data of [`WriteStdin`](crate::exec_stream::WriteStdin), until [`EndStdin`](crate::exec_stream::EndStdin).
    /// Use [`Self::STREAMED`] to create it.
    Streamed {
        /// Distinguishes this form from the others in JSON.
        streamed: (),
    },
}

impl Stdin {
    /// Input that arrives through later operations.
    pub const STREAMED: Self = Self::Streamed { streamed: () };

    /// Whether the command needs a pipe as its standard input.
    pub fn is_piped(&self) -> bool {
        *self != Self::Empty
    }
}

impl From<Option<String>> for Stdin {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Empty, Self::Text)
    }
}

/// How the bytes of an output stream are represented in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OutputEncoding {
    /// As text; bytes that are not UTF-8 become U+FFFD.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// The exact bytes as base64.
    Base64,
}

impl Operation for RunCommand {
    const NAME: &'static str = "run-command";
    const HELPER: Option<HelperKind> = Some(HelperKind::Commands);
    type Answer = ExecOutcome;

    fn time_limit(&self) -> Duration {
        Duration::from_millis(self.timeout_ms).saturating_add(ANSWER_GRACE)
    }

    fn answer_limit(&self) -> crate::AnswerLimit {
        crate::AnswerLimit::with_text(2 * KEPT_OUTPUT_BYTES as u64)
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecExit {
    /// The exit code; null if a signal or the time limit ended the command.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub exit_code: Option<i32>,
    /// The name of the signal that ended the command, such as `SIGKILL`; null if it exited.
    pub signal: Option<String>,
    /// The run time of the command, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub duration_ms: u64,
    /// Whether the time limit ended the command.
    pub timed_out: bool,
    /// Whether output was omitted because it exceeded a limit.
    pub truncated: bool,
}

/// The answer of an exec that does not stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecOutcome {
    /// The exit code; null if a signal or the time limit ended the command.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub exit_code: Option<i32>,
    /// The name of the signal that ended the command, such as `SIGKILL`; null if it exited.
    pub signal: Option<String>,
    /// Standard output. Of output over 1 MiB, the first and the last 512 KiB.
    #[cfg_attr(feature = "openapi", schema(example = "skep-vm\n"))]
    pub stdout: String,
    /// Standard error. Of output over 1 MiB, the first and the last 512 KiB.
    #[cfg_attr(feature = "openapi", schema(example = ""))]
    pub stderr: String,
    /// The run time of the command, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub duration_ms: u64,
    /// Whether the time limit ended the command.
    #[cfg_attr(feature = "openapi", schema(example = false))]
    pub timed_out: bool,
    /// Whether output was omitted because it exceeded a limit.
    pub truncated: bool,
}

/// The header of a streamed answer with the id of the command, by which a client can resume the stream.
pub const EXEC_ID_HEADER: &str = "skep-exec-id";

/// The data of a `stdout` or `stderr` event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecData {
    /// A piece of output. As text it never splits a character; with `encoding: base64` it holds the exact bytes.
    #[cfg_attr(feature = "openapi", schema(example = "skep-vm\n"))]
    pub data: String,
    /// The position in its stream after this piece, in bytes: where a client resumes.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub offset: u64,
}

/// The data of an `error` event: the outcome of the command is unknown, and the stream ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamRefusal {
    /// The reason phrase of the HTTP status that the error would have had as an answer.
    pub error: String,
    /// What went wrong, and how to proceed.
    pub message: String,
    /// The error code, which an event has no header to carry.
    pub code: crate::ErrorCode,
}

/// An event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of standard output. It may end within a character.
    Stdout(Bytes),
    /// A piece of standard error. It may end within a character.
    Stderr(Bytes),
    /// The command ended. The last event.
    Exit(ExecExit),
}
