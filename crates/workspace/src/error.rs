//! Errors of workspace operations.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use skep_api::{ErrorCode, Failure};

/// Why an operation failed. The message is for the caller; the cause is the source.
///
/// A field `path` holds the path as the caller wrote it, unless noted otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No operation has this name.
    #[error(
        "this workspace has no operation `{name}`; its template may be older than the server: build it again"
    )]
    UnknownOperation { name: String },
    /// The JSON of the request does not match the operation's type.
    #[error("the request of `{operation}` is malformed: {source}")]
    Malformed { operation: &'static str, source: serde_json::Error },
    /// The answer cannot be serialised as JSON.
    #[error("internal error")]
    NotSerializable(#[source] serde_json::Error),
    /// A field has an invalid value.
    #[error("`{field}` {reason}")]
    InvalidValue {
        field: &'static str,
        /// What is wrong with the value, and what would be valid.
        reason: String,
    },
    #[error("the working directory `{path}` does not exist; make it first or name another `cwd`")]
    UnknownDirectory { path: String },
    #[error("the working directory `{path}` is not a directory; name one as `cwd`")]
    NotADirectory { path: String },
    #[error("the working directory `{path}` lies outside the workspace; name one inside as `cwd`")]
    OutsideRoot { path: String },
    /// A configured root that is missing, is not a directory, or cannot be accessed by this process.
    #[error("the root {} cannot be used: {source}; {}", path.display(), root_hint(source))]
    Root {
        /// As it is configured.
        path: PathBuf,
        source: io::Error,
    },
    #[error("`{path}` does not exist; list its folder to see what is there")]
    UnknownPath { path: String },
    /// The path, or what its links lead to, is outside the roots.
    #[error(
        "`{path}` lies outside the roots of this workspace, or leads there by a link; name a path below the account's `roots`"
    )]
    OutsideRoots { path: String },
    /// A file where a folder is needed within the path.
    #[error("`{path}` leads through a file where a folder should be")]
    ThroughAFile { path: String },
    /// A FIFO, a device or a socket.
    #[error("`{path}` is not a regular file, and other kinds of files are not opened")]
    NotAFile { path: String },
    /// A folder where a file is needed.
    #[error("`{path}` is a directory, which has no content; list it, or name a file")]
    IsADirectory { path: String },
    /// Not a folder, where the operation needs one.
    #[error("`{path}` is not a directory; name one")]
    NotAFolder { path: String },
    /// The folder is not empty and the request was not recursive.
    #[error("`{path}` is a directory that is not empty; remove what is in it, or set `recursive=true`")]
    NotEmpty { path: String },
    /// Another file system is mounted at or below the path.
    #[error("`{path}` is a mount point, or has one below it; unmount it first")]
    MountPoint { path: String },
    #[error("`{path}` already exists; name another path, or set `overwrite: true` to replace a file")]
    AlreadyExists { path: String },
    /// The target folder lies inside the source folder.
    #[error("`{path}` lies inside the folder that is moved or copied there; name a path elsewhere")]
    WithinItself { path: String },
    /// Other requests keep changing the file, or its file system does not answer.
    #[error("`{path}` is being changed by other requests, or its file system does not answer; try again")]
    Busy { path: String },
    /// The condition of the request (`If-Match`, `If-None-Match`) does not hold.
    #[error("`{path}` is not what `If-Match` or `If-None-Match` asks for; read it again")]
    Precondition { path: String },
    /// The content does not fit into one answer.
    #[error(
        "what was asked for of `{path}` takes more than 32 MiB as JSON in this encoding; read a window by `offset` and `limit`, \
             or stream it with `Accept: application/octet-stream`"
    )]
    ContentTooLong { path: String },
    /// The file is not valid text in the requested encoding.
    #[error("`{path}` is not valid {encoding} here; read it with `encoding=base64`")]
    NotText { path: String, encoding: String },
    /// The text has characters that the encoding cannot represent.
    #[error("`content` has characters that {encoding} cannot represent; write it as `utf-8`")]
    NotInEncoding { encoding: String },
    /// An invalid regex or glob.
    #[error("`{field}` {reason}")]
    InvalidPattern { field: &'static str, reason: String },
    /// Folders nested too deeply.
    #[error(
        "`{path}` contains folders nested more than {limit} deep; copy or move the inner ones separately"
    )]
    TooDeep { path: String, limit: usize },
    /// The request body ended early.
    #[error("the body was cut short, so nothing was written: {reason}")]
    BodyBroken { reason: String },
    /// The input for a command ended early.
    #[error("the input was cut short: {reason}")]
    InputBroken { reason: String },
    /// The disk or a quota is full.
    #[error(
        "no space is left for `{path}`: the disk, or the quota of this user, is full; remove files that are not needed"
    )]
    DiskFull { path: String },
    /// The account may not occupy more.
    #[error(transparent)]
    OverDiskQuota(Failure),
    /// The file would exceed the limit of the file system or of the user.
    #[error("`{path}` would exceed the largest file size allowed here; write less")]
    FileTooLong { path: String },
    /// More folders than can be watched at the same time.
    #[error("`{path}` has more folders than can be watched ({reason}); watch one below it")]
    TooManyFolders { path: String, reason: &'static str },
    /// A worker thread could not be started or restricted to the roots.
    #[error("internal error")]
    NotConfined(#[source] io::Error),
    /// A worker thread ended without a result.
    #[error("internal error")]
    WorkerFailed,
    #[error("`{path}` leads through more than 40 links; name what they lead to")]
    TooManyLinks { path: String },
    /// The user of the workspace lacks the permission.
    #[error("the workspace's user may not do this at `{path}`; change its mode or owner")]
    Denied { path: String },
    /// Any other error of the kernel.
    #[error("`{path}`: {source}")]
    Path { path: String, source: io::Error },
    #[error("the command could not be started: {source}")]
    NotStarted {
        #[from]
        source: io::Error,
    },
    /// The control group of a command could not be created or entered.
    #[error("cannot set up the control group of the command at {}: {source}", path.display())]
    ControlGroup { path: PathBuf, source: io::Error },
    /// The command was never started, or its result was discarded.
    #[error("there is no command `{id}`: it was never started, or ended too long ago")]
    UnknownCommand { id: String },
    #[error(transparent)]
    Git(#[from] crate::git::GitError),
    /// The id of the command is in use.
    #[error("a command `{id}` was started already; give each command an id of its own")]
    IdTaken { id: String },
}

impl Error {
    /// The error for an `io::Error` that concerns `path`.
    pub(crate) fn of_path(path: &Path, error: &io::Error) -> Self {
        let named = path.display().to_string();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        if let Some(Self::OverDiskQuota(refused)) = inner {
            return Self::OverDiskQuota(refused.clone());
        }
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Self::UnknownPath { path: named },
            Some(Errno::XDEV) => Self::OutsideRoots { path: named },
            Some(Errno::NOTDIR) => Self::ThroughAFile { path: named },
            Some(Errno::INVAL | Errno::NXIO) => Self::NotAFile { path: named },
            Some(Errno::LOOP) => Self::TooManyLinks { path: named },
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied { path: named },
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { path: named },
            Some(Errno::FBIG) => Self::FileTooLong { path: named },
            Some(Errno::TIMEDOUT) => Self::Busy { path: named },
            Some(Errno::NAMETOOLONG) => {
                let reason =
                    format!("is too long: {} bytes, or a name in it over 255", path.as_os_str().len());
                Self::InvalidValue { field: "path", reason }
            }
            _ => Self::Path { path: named, source: io::Error::new(error.kind(), error.to_string()) },
        }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownOperation { .. } => ErrorCode::UnknownRoute,
            Self::Malformed { .. } => ErrorCode::MalformedBody,
            Self::NotSerializable(_) => ErrorCode::Internal,
            Self::InvalidValue { .. } => ErrorCode::InvalidValue,
            Self::UnknownDirectory { .. } | Self::UnknownPath { .. } => ErrorCode::UnknownPath,
            Self::NotADirectory { .. } | Self::ThroughAFile { .. } => ErrorCode::NotADirectory,
            Self::OutsideRoot { .. } | Self::OutsideRoots { .. } => ErrorCode::PathOutsideRoots,
            Self::NotAFile { .. } | Self::IsADirectory { .. } => ErrorCode::NotAFile,
            Self::NotAFolder { .. } => ErrorCode::NotADirectory,
            Self::NotEmpty { .. } => ErrorCode::NotEmpty,
            Self::AlreadyExists { .. } | Self::WithinItself { .. } => ErrorCode::AlreadyExists,
            Self::MountPoint { .. } => ErrorCode::PermissionDenied,
            Self::Busy { .. } => ErrorCode::FileBusy,
            Self::Precondition { .. } => ErrorCode::PreconditionFailed,
            Self::ContentTooLong { .. } => ErrorCode::BodyTooLarge,
            Self::NotText { .. } | Self::NotInEncoding { .. } => ErrorCode::NotText,
            Self::TooManyLinks { .. } => ErrorCode::TooManyLinks,
            Self::InvalidPattern { .. } => ErrorCode::InvalidPattern,
            Self::TooDeep { .. } => ErrorCode::TooDeep,
            Self::BodyBroken { .. } | Self::InputBroken { .. } => ErrorCode::MalformedBody,
            Self::DiskFull { .. } => ErrorCode::DiskFull,
            Self::FileTooLong { .. } => ErrorCode::BodyTooLarge,
            Self::TooManyFolders { .. } => ErrorCode::WatchLimit,
            Self::Denied { .. } => ErrorCode::PermissionDenied,
            Self::Root { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorCode::UnknownPath,
                io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
                io::ErrorKind::NotADirectory => ErrorCode::NotADirectory,
                _ => ErrorCode::Internal,
            },
            Self::Path { .. } | Self::NotConfined(_) | Self::WorkerFailed => ErrorCode::Internal,
            Self::NotStarted { .. } | Self::ControlGroup { .. } | Self::IdTaken { .. } => {
                ErrorCode::ExecFailed
            }
            Self::UnknownCommand { .. } => ErrorCode::UnknownExec,
            Self::Git(refused) => refused.code(),
            Self::OverDiskQuota(refused) => refused.code,
        }
    }
}

/// What to do about a root that cannot be used.
fn root_hint(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        "the server can access only the roots configured at its start: restart it, or let its user read that folder"
    } else {
        "create that folder, or give the account other `roots`"
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
