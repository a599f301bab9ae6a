//! Why an operation was refused.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use skep_api::{ErrorCode, ErrorKind, Failure};

/// Why an operation was refused. The message is for the caller; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is known by this name.
    #[error(
        "`{name}` is no operation of this workspace; it may be older than the server: make its template anew"
    )]
    UnknownOperation {
        /// The name that was asked for.
        name: String,
    },
    /// The operation's JSON does not fit.
    #[error("the request of `{operation}` is malformed: {source}")]
    Malformed {
        /// The operation's name.
        operation: &'static str,
        /// Where it does not fit.
        source: serde_json::Error,
    },
    /// The answer cannot be told as JSON.
    #[error("internal error")]
    Unspeakable(#[source] serde_json::Error),
    /// A field holds what it may not.
    #[error("`{field}` {reason}")]
    InvalidValue {
        /// The field's name.
        field: &'static str,
        /// What is wrong with its value, and what would be right.
        reason: String,
    },
    /// The working directory is not there.
    #[error("the working directory `{path}` does not exist; make it first or name another `cwd`")]
    UnknownDirectory {
        /// As the caller named it.
        path: String,
    },
    /// The working directory is something else.
    #[error("the working directory `{path}` is not a directory; name one as `cwd`")]
    NotADirectory {
        /// As the caller named it.
        path: String,
    },
    /// The working directory lies elsewhere.
    #[error("the working directory `{path}` lies outside the workspace; name one inside as `cwd`")]
    OutsideRoot {
        /// As the caller named it.
        path: String,
    },
    /// A root that is none, or that this process does not reach.
    #[error("the root {} cannot be used: {source}; {}", path.display(), way_out(source))]
    Root {
        /// As it is configured.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// Nothing is there.
    #[error("`{path}` does not exist; `GET /api/ls` shows what its folder has")]
    UnknownPath {
        /// As the caller named it.
        path: String,
    },
    /// It lies, or leads, elsewhere.
    #[error(
        "`{path}` lies outside the roots of this workspace, or leads there by a link; `GET /api/whoami` names them"
    )]
    OutsideRoots {
        /// As the caller named it.
        path: String,
    },
    /// A file stands where a folder is needed.
    #[error("`{path}` leads through a file where a folder should be")]
    ThroughAFile {
        /// As the caller named it.
        path: String,
    },
    /// A FIFO, a device, a socket.
    #[error("`{path}` is no regular file, and nothing else is opened")]
    NotAFile {
        /// As the caller named it.
        path: String,
    },
    /// A folder where a file is needed.
    #[error("`{path}` is a directory, which has no content; `GET /api/ls` lists it")]
    IsADirectory {
        /// As the caller named it.
        path: String,
    },
    /// Something else where a folder is needed.
    #[error("`{path}` is no directory; `GET /api/files/read` reads a file")]
    NotAFolder {
        /// As the caller named it.
        path: String,
    },
    /// A folder that is not empty, where nobody said that what is in it shall go too.
    #[error("`{path}` is a directory that is not empty; remove what is in it, or say `recursive=true`")]
    NotEmpty {
        /// As the caller named it.
        path: String,
    },
    /// Another file system.
    #[error("`{path}` is a mount point, or has one below it; it is removed by whoever mounted it")]
    MountPoint {
        /// As the caller named it.
        path: String,
    },
    /// Something has the name.
    #[error("`{path}` is there already; name another path, or say `overwrite: true` to replace a file")]
    AlreadyExists {
        /// As the caller named it.
        path: String,
    },
    /// A folder that would lie in itself.
    #[error("`{path}` lies within what should be put there; name a path elsewhere")]
    WithinItself {
        /// As the caller named it.
        path: String,
    },
    /// Others change it without a pause, or its file system does not answer.
    #[error("`{path}` is being changed by other requests, or its file system does not answer; try again")]
    Busy {
        /// As the caller named it.
        path: String,
    },
    /// What the caller demanded of the file does not hold.
    #[error("`{path}` is not what `If-Match` or `If-None-Match` asks for; read it again")]
    Precondition {
        /// As the caller named it.
        path: String,
    },
    /// More than fits into one answer.
    #[error(
        "what was asked for of `{path}` takes more than 32 MiB as JSON in this encoding; read a window by `offset` and `limit`, \
             or stream it with `Accept: application/octet-stream`"
    )]
    ContentTooLong {
        /// As the caller named it.
        path: String,
    },
    /// Bytes that are no text.
    #[error("`{path}` is not valid {encoding} here; read it with `encoding=base64`")]
    NotText {
        /// As the caller named it.
        path: String,
        /// The encoding that was asked for.
        encoding: String,
    },
    /// Text that the encoding cannot say.
    #[error("`content` has characters that {encoding} does not; write it as `utf-8`")]
    NotInEncoding {
        /// The encoding that was asked for.
        encoding: String,
    },
    /// A regex or a glob that is none.
    #[error("`{field}` {reason}")]
    InvalidPattern {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Folders in folders without end.
    #[error("`{path}` holds folders more than {limit} deep; copy or move what is in them by itself")]
    TooDeep {
        /// As the caller named it.
        path: String,
        /// How deep it may be.
        limit: usize,
    },
    /// Content that did not come whole.
    #[error("the body was cut short, so nothing was written: {reason}")]
    BodyBroken {
        /// What happened to it.
        reason: String,
    },
    /// Input of a command that did not come whole.
    #[error("the input was cut short: {reason}")]
    InputBroken {
        /// What happened to it.
        reason: String,
    },
    /// No room.
    #[error(
        "no room is left for `{path}`: the disk, or what this user may have of it, is full; remove what nobody needs"
    )]
    DiskFull {
        /// As the caller named it.
        path: String,
    },
    /// More than the file system, or the user's limit, allows for one file.
    #[error("`{path}` would be larger than a file may be here; write less")]
    FileTooLong {
        /// As the caller named it.
        path: String,
    },
    /// More folders than are watched at once.
    #[error("`{path}` has more folders than can be watched ({reason}); watch one below it")]
    TooManyFolders {
        /// As the caller named it.
        path: String,
        /// Which limit it is.
        reason: &'static str,
    },
    /// A thread that could not be limited to the roots, or not be started.
    #[error("internal error")]
    Unfenced(#[source] io::Error),
    /// Work that ended without an answer.
    #[error("internal error")]
    Broken,
    /// Links without end.
    #[error("`{path}` leads through more than 40 links; name what they lead to")]
    TooManyLinks {
        /// As the caller named it.
        path: String,
    },
    /// The workspace's user may not.
    #[error("the workspace's user may not do this at `{path}`; change its mode or owner")]
    Denied {
        /// As the caller named it.
        path: String,
    },
    /// The kernel refused what should work.
    #[error("`{path}`: {source}")]
    Path {
        /// As the caller named it.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The command could not be started.
    #[error("the command could not be started: {source}")]
    NotStarted {
        /// What the kernel said.
        #[from]
        source: io::Error,
    },
    /// The control group that a command needs.
    #[error("no control group for the command at {}: {source}", path.display())]
    ControlGroup {
        /// Where it should be.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody started it, or it was forgotten.
    #[error("there is no command `{id}`: it was never started, or ended too long ago")]
    UnknownCommand {
        /// The id that was asked for.
        id: String,
    },
    /// A git operation.
    #[error(transparent)]
    Git(#[from] crate::git::Refused),
    /// Two commands under one id.
    #[error("a command `{id}` was started already; give each command an id of its own")]
    IdTaken {
        /// The id.
        id: String,
    },
}

impl Error {
    /// What the kernel said of a path, in words for the caller.
    pub(crate) fn of_path(path: &Path, error: &io::Error) -> Self {
        let named = path.display().to_string();
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

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownOperation { .. } => ErrorCode::UnknownRoute,
            Self::Malformed { .. } => ErrorCode::MalformedBody,
            Self::Unspeakable(_) => ErrorCode::Internal,
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
            Self::Path { .. } | Self::Unfenced(_) | Self::Broken => ErrorCode::Internal,
            Self::NotStarted { .. } | Self::ControlGroup { .. } | Self::IdTaken { .. } => {
                ErrorCode::ExecFailed
            }
            Self::UnknownCommand { .. } => ErrorCode::UnknownExec,
            Self::Git(refused) => refused.code(),
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

/// What to do about a root that cannot be used.
fn way_out(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        "the server reaches the roots that it knew when it was started: restart it, or let its user read that folder"
    } else {
        "make that folder, or give the account others as `roots`"
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
