//! File operations and their answers. Each operation runs alike on the server's workspace and inside a VM.

mod read;
mod search;
mod write;

use serde::{Deserialize, Serialize};

pub use read::*;
pub use search::*;
pub use write::*;

pub use crate::octal_mode::parse_mode;
use crate::{
    ErrorCode::{self, *},
    Scope,
    endpoint::{Access, Method, Route},
    refusals::{PATH, PLACE},
};

/// The largest content that is sent as JSON, in bytes of JSON. Larger content is streamed.
pub const MAX_CONTENT_BYTES: u64 = 32 << 20;
/// The largest page of a listing, in entries.
pub const MAX_PAGE_ENTRIES: u32 = 1_000;

/// How content is represented in a JSON string: a text encoding, or an encoding of bytes such as `base64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentEncoding(pub String);

impl Default for ContentEncoding {
    fn default() -> Self {
        Self("utf-8".to_owned())
    }
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, a socket or a device.
    Other,
}

/// A route that reads files.
const READ: Route = Route {
    tag: "files",
    refusals: READ_REFUSALS,
    paths: &["path"],
    ..Route::new(Method::Get, "", "", Access::AnyKey(&[Scope::FilesRead]))
};

/// A route that changes files.
const WRITE: Route = Route {
    tag: "files",
    refusals: WRITE_REFUSALS,
    paths: &["path"],
    ..Route::new(Method::Post, "", "", Access::AnyKey(&[Scope::FilesWrite]))
};

/// Refusals of operations that read files.
const READ_REFUSALS: &[&[ErrorCode]] = &[PLACE, PATH, &[NotAFile, BodyTooLarge, NotText, InvalidPattern]];

/// Refusals of operations that change files.
pub const WRITE_REFUSALS: &[&[ErrorCode]] = &[
    PLACE,
    PATH,
    &[
        NotAFile,
        NotEmpty,
        AlreadyExists,
        PreconditionFailed,
        NotText,
        TooDeep,
        DiskFull,
        FileBusy,
        BodyTooLarge,
    ],
];
