//! The specification of a process to start: program, user and confinement.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A process to start without privileges.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Path of the program, as the new process sees it.
    pub program: PathBuf,
    /// Without the program's name.
    pub arguments: Vec<String>,
    /// The complete environment: nothing is inherited.
    pub environment: Vec<(String, String)>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// How much the kernel prefers the process when it must kill one for memory, see [`crate::oom_score_adj`]. Its
    /// children inherit it.
    pub oom_score_adj: i16,
    pub confinement: Confinement,
}

/// The confinement of a process, in addition to its user and the lack of capabilities.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confinement {
    /// No further confinement: the process sees the machine as its user does, and inherits standard output, error and
    /// process group. It is killed when the thread that started it ends.
    User,
    /// For a caller without root. The process keeps the caller's user and groups, so `uid` must be the caller's, and
    /// loses all capabilities. It inherits standard output and standard error.
    SameUser(Session),
    /// Its own PID namespace and scratch folders; otherwise the process sees the machine as its user does. It inherits
    /// standard output and standard error.
    Secluded(Seclusion),
    Jail(Jail),
}

impl Confinement {
    /// Whether the process is init of a PID namespace. The stage starts it as a child and reports its PID then.
    pub(crate) fn has_namespaces(&self) -> bool {
        matches!(self, Self::Secluded(_) | Self::Jail(_))
    }
}

/// The session of a process that keeps the caller's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Session {
    /// The caller's session and process group. The process is killed when the thread that started it ends.
    Caller,
    /// A session of its own, so that Ctrl-C on the caller's terminal does not reach the process.
    New,
}

/// PID, mount and IPC namespaces: processes outside are not visible, and when the init process ends, all processes end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seclusion {
    /// Existing folders over which an empty tmpfs is mounted.
    pub scratch: Vec<PathBuf>,
    /// Files and folders from which programs and libraries may be executed. Every other mount is `noexec`, which also
    /// prevents the dynamic loader from mapping programs there. Missing paths are ignored. `None`: all mounts keep
    /// their flags.
    pub executable: Option<Vec<PathBuf>>,
}

/// A jail: a new session, namespaces, root directory, limits and a seccomp filter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Jail {
    pub hostname: String,
    /// Device nodes in addition to null, zero and urandom, owned by the process's user. Paths below /dev.
    pub devices: Vec<PathBuf>,
    pub limits: ResourceLimits,
}

/// The rlimits of a process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ResourceLimits {
    pub open_files: u64,
    /// Maximum size of a file that it writes, in bytes.
    pub file_bytes: u64,
    /// Processes and threads of its user.
    pub processes: u64,
}
