//! What can go wrong in the keeper.

use std::{io, net::SocketAddr, path::PathBuf};

use skep_api::{ErrorCode, ErrorKind, Failure, VmId};

/// What can go wrong in the keeper.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The keeper was started without privileges.
    #[error("VMs need root: start `skep serve` as root")]
    NotRoot,
    /// Another server has the data directory.
    #[error("{} is served by process {pid} at {address}; stop that one, or choose another --data-dir", dir.display())]
    Locked {
        /// The data directory.
        dir: PathBuf,
        /// The other keeper.
        pid: u32,
        /// Where it listens; `an unknown address` where it has not said so yet.
        address: String,
    },
    /// Somebody else may write to the data directory.
    #[error(
        "{dir} can be written by others than us (uid {uid}), who could exchange what lies there; \
         `chown {uid} {dir}` and `chmod go-w {dir}`, or choose another --data-dir",
        dir = dir.display()
    )]
    NotOurs {
        /// The data directory.
        dir: PathBuf,
        /// Whose it should be.
        uid: u32,
    },
    /// There is no such user.
    #[error(
        "there is no user `{0}`; make it: `useradd --system --no-create-home {0}`, or name another with --user"
    )]
    NoUser(String),
    /// The admin key's file holds something else.
    #[error("{} does not hold a key; put the key back, or remove the file", .0.display())]
    DamagedKey(PathBuf),
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}; choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate or its key cannot be read.
    #[error("{} cannot be read: {source}; check --tls-cert and --tls-key", path.display())]
    PairFile {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server asked for a certificate, and there is none.
    #[error("this start has no certificate")]
    NoCertificate,
    /// The server asks for helpers without end.
    #[error("{0} processes that start programs run already; wait until one ends")]
    Helpers(usize),
    /// The settings cannot start a server.
    #[error("this server cannot be started again: {0}")]
    NoRestart(String),
    /// The VM's id is held already.
    #[error("VM {0} exists already")]
    VmExists(VmId),
    /// There are as many as this machine holds.
    #[error("all {0} VMs that this machine holds exist; end one first")]
    Full(u32),
    /// A launch would take the memory that the machine needs for itself.
    #[error(
        "{free_mb} MiB of memory are free on this machine; a VM takes {wanted_mb}, and {kept_mb} are left to the machine; \
         end some VMs, or whatever else takes it"
    )]
    NoMemory {
        /// What is free.
        free_mb: u64,
        /// What a VM takes.
        wanted_mb: u64,
        /// What is left to the machine.
        kept_mb: u64,
    },
    /// The disk that VMs write to is nearly full.
    #[error(
        "{free_mb} MiB of disk are free below the data directory, and {kept_mb} are left to the machine; end a VM, or \
         free some space on the server"
    )]
    NoDisk {
        /// What is free.
        free_mb: u64,
        /// What is left to the machine.
        kept_mb: u64,
    },
    /// The disk that VMs write to is full.
    #[error("no space is left for the disk of another VM; end a VM, or free some space on the server")]
    DiskFull,
    /// The keeper holds no such VM.
    #[error("the keeper holds no VM {0}")]
    UnknownVm(VmId),
    /// The VM's process has ended.
    #[error("VM {0} has ended")]
    Ended(VmId),
    /// A text that is no template's name.
    #[error("`{0}` is no name of a template: lower-case letters, digits and `-`, 63 at the most")]
    NotATemplate(String),
    /// This start cannot run VMs.
    #[error("{0}")]
    NoSwarm(String),
    /// Every block of user ids is claimed by other data directories.
    #[error(
        "all user ids for VMs are claimed by other data directories; `skep doctor --clean` frees those of a crashed one"
    )]
    NoUids,
    /// A refusal that was made elsewhere.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The jail could not be made or cleared away.
    #[error(transparent)]
    Jail(#[from] skep_jail::Error),
    /// The network refused.
    #[error(transparent)]
    Network(#[from] skep_network::Error),
    /// The socket to the server does not work.
    #[error(transparent)]
    Protocol(#[from] skep_keeper_protocol::Error),
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotRoot | Self::NoSwarm(_) => ErrorCode::SwarmUnavailable,
            Self::UnknownVm(_) => ErrorCode::UnknownVm,
            Self::Ended(_) => ErrorCode::VmEnded,
            Self::VmExists(_) | Self::NotATemplate(_) => ErrorCode::InvalidValue,
            Self::NoUids | Self::Full(_) | Self::NoMemory { .. } | Self::NoDisk { .. } | Self::DiskFull => {
                ErrorCode::NoCapacity
            }
            Self::Helpers(_) => ErrorCode::ExecUnavailable,
            Self::NoRestart(_) => ErrorCode::RestartRefused,
            Self::Refused(failure) => failure.code,
            Self::Jail(error) => error.code(),
            Self::Network(error) => error.code(),
            Self::Protocol(error) => error.code(),
            Self::Locked { .. }
            | Self::NotOurs { .. }
            | Self::NoUser(_)
            | Self::DamagedKey(_)
            | Self::Listen { .. }
            | Self::PairFile { .. }
            | Self::NoCertificate
            | Self::Io { .. } => ErrorCode::Internal,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(failure) => failure,
            error => Self::new(error.code(), error.to_string()),
        }
    }
}
