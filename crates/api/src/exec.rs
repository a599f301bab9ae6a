//! Commands: what callers ask, what they get, and the operation that travels into a VM.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::operation::{HelperKind, Operation};

/// How long a command may run where the caller names nothing, in milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// Where commands in a VM start, and where a relative `cwd` begins.
pub const VM_HOME: &str = "/root";
/// The longest time a command may run, in milliseconds.
pub const MAX_TIMEOUT_MS: u64 = 3_600_000;
/// How much of each output stream is kept, in bytes: the first and the last half.
pub const KEPT_OUTPUT_BYTES: usize = 1 << 20;
/// How long after its timeout a command may take to be answered: a loaded machine ends processes slowly.
pub const ANSWER_GRACE: Duration = Duration::from_secs(30);

/// The body of `POST /api/exec` and `POST /api/swarm/vm/:pid/exec`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecRequest {
    /// Runs by `/bin/sh -c`.
    #[cfg_attr(feature = "openapi", schema(example = "uname -n"))]
    pub command: String,
    /// Working directory. Inside a VM `/root` unless given, on the server the account's first root; a relative one begins
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Milliseconds until everything that the command started is ended; 1 to 3,600,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3_600_000, example = 60_000))]
    pub timeout: Option<u64>,
    /// Variables beside those of the place; these win.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// What the command reads on its standard input; then end of file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The VM, by process id, id or name; the server unless given. Only for `POST /api/exec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmField>,
    /// Answer as server-sent events: `stdout`, `stderr`, `exit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// How `data` of a streamed answer is written: `utf-8`, or `base64` for the exact bytes. Only with `stream: true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<OutputEncoding>,
}

/// A VM in a body: its process id as a number; or its id, the unique beginning of the id, its name, host name or address as
/// a string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a VM is given by its process id (a number), or by its id or name (a string)")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum VmField {
    /// The process id.
    Pid(#[serde(deserialize_with = "crate::whole::required")] u64),
    /// The id, its unique beginning, the name, the host name or the address; or the process id as a text.
    Text(String),
}

impl VmField {
    /// The same as it would stand in a path.
    pub fn as_text(&self) -> String {
        match self {
            Self::Pid(pid) => pid.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A command, checked, as it runs in a workspace: the operation behind both exec routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCommand {
    /// Runs by `/bin/sh -c`.
    pub command: String,
    /// Working directory, absolute; the workspace's own where `None`.
    pub cwd: Option<String>,
    /// Variables beside the workspace's own; these win.
    pub env: BTreeMap<String, String>,
    /// Standard input.
    pub stdin: Stdin,
    /// Milliseconds until everything that it started is ended.
    pub timeout_ms: u64,
}

/// What a command reads on its standard input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stdin {
    /// The end of file.
    #[default]
    Empty,
    /// This text, then the end of file.
    Text(String),
    /// What [`WriteStdin`](crate::exec_stream::WriteStdin) writes, until
    /// [`EndStdin`](crate::exec_stream::EndStdin): see [`Self::STREAMED`].
    Streamed {
        /// Tells this form from the others in JSON.
        streamed: (),
    },
}

impl Stdin {
    /// Input that follows piece by piece.
    pub const STREAMED: Self = Self::Streamed { streamed: () };

    /// Whether the command can read anything.
    pub fn is_piped(&self) -> bool {
        *self != Self::Empty
    }
}

impl From<Option<String>> for Stdin {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Empty, Self::Text)
    }
}

/// How the bytes of an output stream stand in an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OutputEncoding {
    /// As text; what is not UTF-8 becomes U+FFFD.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// As base64 of the exact bytes.
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
    /// The exit code; null where a signal or the timeout ended it.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub exit_code: Option<i32>,
    /// The signal's name, such as `SIGKILL`; null where it exited.
    pub signal: Option<String>,
    /// From start to end, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub duration_ms: u64,
    /// Whether the timeout ended it.
    pub timed_out: bool,
    /// Whether output was left out.
    pub truncated: bool,
}

/// The answer of an exec that does not stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecOutcome {
    /// The exit code; null where a signal or the timeout ended it.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub exit_code: Option<i32>,
    /// The signal's name, such as `SIGKILL`; null where it exited.
    pub signal: Option<String>,
    /// Standard output, up to 1 MiB: the first and the last half.
    #[cfg_attr(feature = "openapi", schema(example = "skep-vm\n"))]
    pub stdout: String,
    /// Standard error, up to 1 MiB: the first and the last half.
    #[cfg_attr(feature = "openapi", schema(example = ""))]
    pub stderr: String,
    /// From start to end, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub duration_ms: u64,
    /// Whether the timeout ended it.
    #[cfg_attr(feature = "openapi", schema(example = false))]
    pub timed_out: bool,
    /// Whether output was left out.
    pub truncated: bool,
}

/// The header of a streamed answer that names its command, to come back to it.
pub const EXEC_ID_HEADER: &str = "skep-exec-id";

/// The data of a `stdout` or `stderr` event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecData {
    /// A piece of output. As text it cuts no character; with `encoding: base64` it is base64 of the exact bytes.
    #[cfg_attr(feature = "openapi", schema(example = "skep-vm\n"))]
    pub data: String,
    /// The bytes of its stream up to its end: where to come back to.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub offset: u64,
}

/// The data of an `error` event: the command's end is unknown, and the stream ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamRefusal {
    /// The reason phrase of the status that the refusal would have had as an answer.
    pub error: String,
    /// What went wrong, and what to do about it.
    pub message: String,
    /// The code, since an event has no header to carry it.
    pub code: crate::ErrorCode,
}

/// What a running command says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of standard output, which may end within a character.
    Stdout(Bytes),
    /// A piece of standard error, which may end within a character.
    Stderr(Bytes),
    /// It ended; the last event.
    Exit(ExecExit),
}
