//! The errors of the keeper.

use std::{io, net::SocketAddr, path::PathBuf};

use skep_api::{ErrorCode, ErrorKind, Failure, VmId};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another keeper has locked the data directory.
    #[error("{} is served by process {pid} at {address}; stop that one, or choose another --data-dir", dir.display())]
    Locked {
        dir: PathBuf,
        pid: u32,
        /// Where it listens; `an unknown address` if it does not listen yet.
        address: String,
    },
    /// Other users may write to the data directory.
    #[error(
        "{dir} can be written by others than uid {uid}, who could replace the files in it; \
         `chown {uid} {dir}` and `chmod go-w {dir}`, or choose another --data-dir",
        dir = dir.display()
    )]
    UnsafePermissions { dir: PathBuf, uid: u32 },
    #[error(
        "there is no user `{0}`; make it: `useradd --system --no-create-home {0}`, or name another with --user"
    )]
    NoUser(String),
    /// The admin key's file does not contain a valid key.
    #[error("{} does not hold a key; put the key back, or remove the file", .0.display())]
    DamagedKey(PathBuf),
    #[error("cannot listen at {address}: {source}; choose another with --listen")]
    Listen { address: SocketAddr, source: io::Error },
    /// Another program has the port at the other loopback address.
    #[error(
        "cannot take the port of {own} at {address} too, where browsers may look for `localhost`: {source}; stop the program \
         that has it (`ss -ltnp`), or choose another port with --listen"
    )]
    OtherLoopback { own: SocketAddr, address: SocketAddr, source: io::Error },
    #[error("{} cannot be read: {source}; check --tls-cert and --tls-key", path.display())]
    TlsFile { path: PathBuf, source: io::Error },
    /// The server asked for a certificate, but none is configured.
    #[error("this server has no certificate files")]
    NoCertificate,
    /// The server has too many helpers of one kind.
    #[error("{0} helper processes of this kind run already; wait until one ends")]
    TooManyHelpers(usize),
    /// A successor could not be started.
    #[error("this server cannot be started again: {0}")]
    RestartFailed(String),
    #[error("VM {0} exists already")]
    VmExists(VmId),
    /// The limit of VMs is reached.
    #[error("the limit of {0} VMs on this machine is reached; end one first")]
    VmLimitReached(u32),
    /// A launch would take memory that is reserved for the machine.
    #[error(
        "{available_mb} MiB of memory are available on this machine, and {kept_mb} MiB are reserved; end some VMs or \
         other programs"
    )]
    NoMemory {
        available_mb: u64,
        /// Reserved for the machine.
        kept_mb: u64,
    },
    /// Free disk space is below the reserve of the machine.
    #[error(
        "{free_mb} MiB of disk are free below the data directory, and {kept_mb} MiB are reserved; end a VM, or \
         free some space on the server"
    )]
    NoDisk {
        free_mb: u64,
        /// Reserved for the machine.
        kept_mb: u64,
    },
    /// The copy of a disk layer failed for lack of space.
    #[error("no space is left for a copy of the disk of a VM; end a VM, or free some space on the server")]
    DiskFull,
    #[error("the keeper holds no VM {0}")]
    UnknownVm(VmId),
    #[error("VM {0} has ended")]
    Ended(VmId),
    /// There is no egress process, or it does not answer.
    #[error("VMs of this server reach nothing outside: {0}")]
    NoEgress(&'static str),
    /// This machine cannot run VMs, with the reason.
    #[error("{0}")]
    NoSwarm(String),
    #[error(
        "all user ids for VMs are used by other data directories; `skep doctor --clean` frees those of a crashed one"
    )]
    NoUids,
    /// A failure that carries its own code, such as one of a template.
    #[error(transparent)]
    Refused(#[from] Failure),
    #[error(transparent)]
    Jail(#[from] skep_jail::Error),
    #[error(transparent)]
    Network(#[from] skep_network::Error),
    #[error(transparent)]
    Protocol(#[from] skep_keeper_protocol::Error),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoSwarm(_) | Self::NoEgress(_) => ErrorCode::SwarmUnavailable,
            Self::UnknownVm(_) => ErrorCode::UnknownVm,
            Self::Ended(_) => ErrorCode::VmEnded,
            Self::VmExists(_) => ErrorCode::InvalidValue,
            Self::NoUids
            | Self::VmLimitReached(_)
            | Self::NoMemory { .. }
            | Self::NoDisk { .. }
            | Self::DiskFull => ErrorCode::NoCapacity,
            Self::TooManyHelpers(_) => ErrorCode::ExecUnavailable,
            Self::RestartFailed(_) => ErrorCode::RestartRefused,
            Self::Refused(failure) => failure.code,
            Self::Jail(error) => error.code(),
            Self::Network(error) => error.code(),
            Self::Protocol(error) => error.code(),
            Self::Locked { .. }
            | Self::UnsafePermissions { .. }
            | Self::NoUser(_)
            | Self::DamagedKey(_)
            | Self::Listen { .. }
            | Self::OtherLoopback { .. }
            | Self::TlsFile { .. }
            | Self::NoCertificate
            | Self::Io { .. } => ErrorCode::Internal,
        }
    }

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
