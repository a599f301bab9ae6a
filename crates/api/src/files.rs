//! File operations and their answers. Each operation runs alike on the server's workspace and inside a VM.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    operation::Operation,
    path::{AbsolutePath, LinkTarget, PathEncoding},
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

/// Reads a range of bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    /// The file to read.
    pub path: AbsolutePath,
    /// The encoding of the content in the answer.
    pub encoding: ContentEncoding,
    /// The offset of the first byte.
    pub offset: u64,
    /// The maximum number of bytes; the rest of the file if `None`.
    pub limit: Option<u64>,
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

/// The precondition of a write, from `If-Match` or `If-None-Match`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteCondition {
    /// No precondition.
    #[default]
    None,
    /// The file exists and has one of these entity tags.
    Matches(Vec<String>),
    /// The file exists.
    Exists,
    /// The file does not exist.
    Absent,
}

/// Writes a file, or appends to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    /// The file to write.
    pub path: AbsolutePath,
    /// The new content, or the content to append.
    pub content: String,
    /// The encoding of `content`.
    pub encoding: ContentEncoding,
    /// Permission bits of a new file. If given, a replaced file gets them as well.
    pub mode: Option<u32>,
    /// Whether missing parent folders are created.
    pub create_parents: bool,
    /// Whether the content is appended to the existing content.
    pub append: bool,
    /// The condition under which the file is written.
    pub condition: WriteCondition,
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileWritten {
    /// The path of the file as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The size of the file after the write, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// Whether the write created the file.
    pub created: bool,
    /// The entity tag of the new version of the file, for `If-Match`.
    #[cfg_attr(feature = "openapi", schema(example = "\"2a-d-18ab-18ab\""))]
    pub etag: String,
}

/// Lists one page of a folder, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFolder {
    /// The folder to list.
    pub path: AbsolutePath,
    /// The maximum number of entries: 1 to [`MAX_PAGE_ENTRIES`].
    pub limit: u32,
    /// The last name of the previous page, percent-encoded.
    pub after: Option<String>,
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

/// Creates a folder and its missing parents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeFolder {
    /// The folder to create.
    pub path: AbsolutePath,
    /// The permission bits of the folder; the default of the workspace if `None`.
    pub mode: Option<u32>,
}

/// The result of creating a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderMade {
    /// The path of the folder as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// False if the folder existed before.
    pub created: bool,
}

/// Creates a symbolic link. The target is not resolved and need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeLink {
    /// The path of the link.
    pub path: AbsolutePath,
    /// The target of the link, stored unchanged.
    pub target: LinkTarget,
    /// Whether an existing file or link at the path is replaced.
    pub overwrite: bool,
}

/// The result of creating a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkMade {
    /// The path of the link as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/latest"))]
    pub path: String,
    /// The target of the link as requested.
    #[cfg_attr(feature = "openapi", schema(example = "builds/42"))]
    pub target: String,
    /// The encoding of `path` and `target`; absent if both are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Whether an existing file or link was replaced.
    pub replaced: bool,
}

/// Removes a file, a link, or a folder with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveFile {
    /// The path to remove.
    pub path: AbsolutePath,
    /// Whether a folder that is not empty is removed with its contents.
    pub recursive: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileRemoved {
    /// The removed path as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The type of the removed file.
    pub r#type: FileType,
    /// The number of removed files, folders and links.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub removed: u64,
}

/// Moves or copies a file, a link, or a folder with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocate {
    /// The source path.
    pub from: AbsolutePath,
    /// The destination path.
    pub to: AbsolutePath,
    /// Whether an existing file at the destination is replaced.
    pub overwrite: bool,
    /// Whether the source is kept, which makes this a copy.
    pub keep: bool,
}

/// The result of a move or a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Relocated {
    /// The source path as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/draft.md"))]
    pub from: String,
    /// The destination path as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub to: String,
    /// The encoding of `from` and `to`; absent if both are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The type of the file.
    pub r#type: FileType,
    /// Whether an existing file at the destination was replaced.
    pub replaced: bool,
}

macro_rules! operations {
    ($($operation:ident = $name:literal -> $answer:ident),+ $(,)?) => {
        $(impl Operation for $operation {
            const NAME: &'static str = $name;
            type Answer = $answer;
        })+
    };
}

impl Operation for ReadFile {
    const NAME: &'static str = "read-file";
    type Answer = FileContent;

    fn answer_limit(&self) -> crate::AnswerLimit {
        let asked = crate::AnswerLimit::with_text(self.limit.unwrap_or(MAX_CONTENT_BYTES));
        let longest = crate::AnswerLimit::SHORT.bytes.saturating_add(MAX_CONTENT_BYTES as usize);
        crate::AnswerLimit { bytes: asked.bytes.min(longest), ..asked }
    }
}

impl Operation for ListFolder {
    const NAME: &'static str = "list-folder";
    type Answer = FolderPage;

    fn answer_limit(&self) -> crate::AnswerLimit {
        crate::AnswerLimit::of_elements(self.limit, 12)
    }
}

operations! {
    WriteFile = "write-file" -> FileWritten,
    MakeFolder = "make-folder" -> FolderMade,
    MakeLink = "make-link" -> LinkMade,
    RemoveFile = "remove-file" -> FileRemoved,
    Relocate = "relocate" -> Relocated,
}

/// The syntax of a file name pattern.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PatternSyntax {
    /// Chosen by content: a regular expression if the pattern contains one of `\ ^ $ ( | +` or begins with `.*`, else
    /// a glob.
    #[default]
    Auto,
    /// A glob, such as `*.rs`, `src/**` or `{a,b}?`.
    Glob,
    /// A regular expression, matched against the path relative to the searched folder.
    Regex,
}

/// Searches for files by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchFiles {
    /// The folder to search, with its subfolders.
    pub path: AbsolutePath,
    /// The pattern that file names must match.
    pub pattern: String,
    /// The syntax of `pattern`.
    pub syntax: PatternSyntax,
    /// Restricts the search to files of this type.
    pub r#type: Option<FileType>,
    /// Whether names that begin with a dot are included.
    pub hidden: bool,
    /// Whether files ignored by `.gitignore` are excluded.
    pub gitignore: bool,
    /// The maximum number of matches.
    pub limit: u32,
}

/// A file that matched the search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FoundFile {
    /// The path of the file.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The type of the file.
    pub r#type: FileType,
    /// The size of the content, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// The time of the last change of the content.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
}

/// The result of a search for files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilesFound {
    /// The searched folder as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The pattern as requested.
    #[cfg_attr(feature = "openapi", schema(example = "*.md"))]
    pub pattern: String,
    /// The syntax that was applied; never `auto`.
    pub syntax: PatternSyntax,
    /// The matching files, sorted by path.
    pub matches: Vec<FoundFile>,
    /// Whether there may be more matches: the limit of matches, of time, or of 16 MiB of JSON was reached.
    pub truncated: bool,
}

/// Searches for lines in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepFiles {
    /// The folder to search with its subfolders, or a single file.
    pub path: AbsolutePath,
    /// A regular expression.
    pub pattern: String,
    /// Restricts the search to files whose path relative to the searched folder matches this glob.
    pub glob: Option<String>,
    /// The number of lines to return before and after each match.
    pub context: u32,
    /// The maximum number of matches.
    pub limit: u32,
}

/// A matching line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MatchedLine {
    /// The path of the file.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/notes.md"))]
    pub path: Arc<str>,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The line number, from 1.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub line: u64,
    /// The position of the match's first byte in the line, from 1.
    #[cfg_attr(feature = "openapi", schema(example = 5))]
    pub column: u64,
    /// The line without its line ending. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "    todo!()"))]
    // Shared: a line that is in the context of several matches is in memory once.
    pub text: Arc<str>,
    /// The lines before the match.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, example = json!(["fn main() {"])))]
    pub before: Vec<Arc<str>>,
    /// The lines after the match.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, example = json!(["fn main() {"])))]
    pub after: Vec<Arc<str>>,
}

/// The result of a search for lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinesFound {
    /// The matching lines, sorted by path and line number.
    pub matches: Vec<MatchedLine>,
    /// Whether there may be more matches: the limit of matches, of time, or of 16 MiB of JSON was reached.
    pub truncated: bool,
}

impl Operation for SearchFiles {
    const NAME: &'static str = "search-files";
    type Answer = FilesFound;

    fn answer_limit(&self) -> crate::AnswerLimit {
        crate::AnswerLimit::of_elements(self.limit, 8)
    }
}

impl Operation for GrepFiles {
    const NAME: &'static str = "grep-files";
    type Answer = LinesFound;

    fn answer_limit(&self) -> crate::AnswerLimit {
        crate::AnswerLimit::of_elements(self.limit, self.context.saturating_mul(2).saturating_add(12))
    }
}
