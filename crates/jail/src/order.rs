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
    /// Processes and scratch folders of its own; it sees the rest of this machine as its user does. It keeps our standard
    /// output and error.
    Secluded(Seclusion),
    /// A jail.
    Jail(Jail),
}

impl Confinement {
    /// Whether the process is the first of a namespace, which the stage starts and tells of.
    pub(crate) fn has_namespaces(&self) -> bool {
        matches!(self, Self::Secluded(_) | Self::Jail(_))
    }
}

/// Namespaces of processes, mounts and System V objects: no process outside is seen, and when the first one ends, all end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seclusion {
    /// Folders that are there and that it finds empty, in memory.
    pub scratch: Vec<PathBuf>,
    /// Files and folders from which programs and libraries may be executed: every other mount is `noexec`, so that the
    /// dynamic loader maps no program from there either. What a machine lacks of them is passed over. `None`: all mounts
    /// keep their flags.
    pub executable: Option<Vec<PathBuf>>,
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
