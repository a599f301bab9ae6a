//! Reading files and listing folders.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ContentEncoding, FileType, MAX_CONTENT_BYTES, MAX_PAGE_ENTRIES, READ};
use crate::{
    AnswerLimit, ErrorCode, Failure,
    endpoint::{MAX_BYTE_OFFSET, Route, Success, WorkspaceEndpoint, check_range},
    operation::Operation,
    path::{AbsolutePath, PathEncoding},
    refusals::{PATH, PLACE},
};

/// Reads a range of bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadFile {
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/notes.md"))]
    pub path: AbsolutePath,
    /// The encoding of the content in the answer: `utf-8` (default), `base64`, `hex`, or any label of the WHATWG
    /// Encoding Standard.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub encoding: ContentEncoding,
    /// The first byte; default 0.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub offset: u64,
    /// The most bytes. Default: all.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_223_372_036_854_775_807_u64))]
    pub limit: Option<u64>,
}

impl ReadFile {
    /// Reads a whole file as UTF-8.
    pub fn whole(path: AbsolutePath) -> Self {
        Self { path, encoding: ContentEncoding::default(), offset: 0, limit: None }
    }
}

impl Operation for ReadFile {
    const NAME: &'static str = "read-file";
    type Answer = FileContent;

    fn answer_limit(&self) -> AnswerLimit {
        let asked = AnswerLimit::with_text(self.limit.unwrap_or(MAX_CONTENT_BYTES));
        let longest = AnswerLimit::SHORT.bytes.saturating_add(MAX_CONTENT_BYTES as usize);
        AnswerLimit { bytes: asked.bytes.min(longest), ..asked }
    }
}

impl WorkspaceEndpoint for ReadFile {
    const ROUTE: Route = Route {
        path: "/api/files/read",
        id: "read_file",
        summary: "Read a file",
        description: "Returns the file, or a part of it, as JSON. With `Accept: application/octet-stream` the bytes are \
            streamed: all of them, or the one part that `Range` names if `If-Range` matches; `encoding`, `offset` and \
            `limit` are for JSON only.",
        refusals: &[
            PLACE,
            PATH,
            &[
                ErrorCode::NotAFile,
                ErrorCode::BodyTooLarge,
                ErrorCode::NotText,
                ErrorCode::NotAcceptable,
                ErrorCode::RangeNotSatisfiable,
            ],
        ],
        success: Success::Done("The content"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_range("offset", self.offset, 0..=MAX_BYTE_OFFSET)?;
        self.limit.map_or(Ok(()), |limit| check_range("limit", limit, 1..=MAX_BYTE_OFFSET))
    }
}

/// A range of bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileContent {
    /// The path of the file as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The content of the range.
    #[cfg_attr(feature = "openapi", schema(example = "# Notes\n"))]
    pub content: String,
    /// The encoding of `content`.
    #[cfg_attr(feature = "openapi", schema(example = "utf-8"))]
    pub encoding: String,
    /// The size of the whole file, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// The time of the last change of the content.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
    /// The entity tag of this version of the file, for `If-Match`.
    #[cfg_attr(feature = "openapi", schema(example = "\"2a-d-18ab-18ab\""))]
    pub etag: String,
    /// Whether the file continues after the range.
    pub truncated: bool,
}

/// Lists one page of a folder, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListFolder {
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace"))]
    pub path: AbsolutePath,
    /// Entries on the page, 1 to 1,000; default 1,000.
    #[serde(default = "default_page")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: u32,
    /// `next_cursor` of the previous page.
    #[serde(default)]
    pub cursor: Option<String>,
}

const fn default_page() -> u32 {
    MAX_PAGE_ENTRIES
}

impl ListFolder {
    /// Lists the first page.
    pub fn first_page(path: AbsolutePath) -> Self {
        Self { path, limit: MAX_PAGE_ENTRIES, cursor: None }
    }
}

impl Operation for ListFolder {
    const NAME: &'static str = "list-folder";
    type Answer = FolderPage;

    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::of_elements(self.limit, 12)
    }
}

impl WorkspaceEndpoint for ListFolder {
    const ROUTE: Route = Route {
        path: "/api/ls",
        id: "list_folder",
        summary: "List a folder",
        description: "Returns a page of its entries, sorted by name.",
        success: Success::Done("A page of the folder"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_range("limit", self.limit, 1..=MAX_PAGE_ENTRIES)
    }
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderEntry {
    /// The file name.
    #[cfg_attr(feature = "openapi", schema(example = "notes.md"))]
    pub name: String,
    /// The path of the entry.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `name` and `path`; absent if the name is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_encoding: Option<PathEncoding>,
    /// The type of the entry.
    pub r#type: FileType,
    /// The size of the content, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// The permission bits, in octal.
    #[cfg_attr(feature = "openapi", schema(example = "0644"))]
    pub mode: String,
    /// The user id of the owner.
    #[cfg_attr(feature = "openapi", schema(example = 1000))]
    pub uid: u32,
    /// The group id of the owner.
    #[cfg_attr(feature = "openapi", schema(example = 1000))]
    pub gid: u32,
    /// The time of the last change of the content.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
    /// The target of a symbolic link; absent for other types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The encoding of `target`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_encoding: Option<PathEncoding>,
}

/// A page of a folder's entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderPage {
    /// The path of the folder as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The entries, sorted by name.
    pub entries: Vec<FolderEntry>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}
