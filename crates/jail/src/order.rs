//! What is to be jailed, and how.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A process to start without privileges.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The program, as the new process sees it.
    pub program: PathBuf,
    /// Its arguments without the program's name.
    pub arguments: Vec<String>,
    /// Its environment, whole.
    pub environment: Vec<(String, String)>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its further groups.
    pub groups: Vec<u32>,
    /// What keeps it in.
    pub confinement: Confinement,
}

/// What keeps a process in, besides its user and the lack of capabilities.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confinement {
    /// Nothing: it sees this machine as its user does, and keeps our standard output and error and our process group. It
    /// is killed when the thread that started it ends.
    User,
    /// A jail.
    Jail(Jail),
}

/// A jail: a session, namespaces, a root, limits and denied system calls of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Jail {
    /// Its host name.
    pub hostname: String,
    /// Device nodes that it gets besides null, zero and urandom; they belong to its user. Paths below /dev.
    pub devices: Vec<PathBuf>,
    /// What it may use.
    pub limits: ResourceLimits,
}

/// What one process may use, by rlimit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Open descriptors.
    pub open_files: u64,
    /// The largest offset that it may write in any file, in bytes.
    pub file_bytes: u64,
    /// Processes and threads of its user.
    pub processes: u64,
}
