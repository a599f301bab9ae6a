//! Files: the operations, and what they answer. Each runs on the server's workspace and inside a VM alike.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    operation::Operation,
    path::{AbsolutePath, LinkTarget, PathEncoding},
};

/// The longest content that travels as JSON, in bytes of JSON. What is longer is streamed.
pub const LONGEST_CONTENT: u64 = 32 << 20;
/// The longest page of a listing.
pub const LONGEST_PAGE: u32 = 1_000;

/// How content is written in JSON: as text in some encoding, or as digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentEncoding(pub String);

impl Default for ContentEncoding {
    fn default() -> Self {
        Self("utf-8".to_owned())
    }
}

/// What stands at a path.
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
    /// A FIFO, a socket, a device.
    Other,
}

/// Reads a window of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    /// The file.
    pub path: AbsolutePath,
    /// How its content is answered.
    pub encoding: ContentEncoding,
    /// The first byte.
    pub offset: u64,
    /// Bytes at the most; all where `None`.
    pub limit: Option<u64>,
}

/// A window of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileContent {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The window.
    #[cfg_attr(feature = "openapi", schema(example = "# Notes\n"))]
    pub content: String,
    /// How `content` is written.
    #[cfg_attr(feature = "openapi", schema(example = "utf-8"))]
    pub encoding: String,
    /// Of the whole file.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// When its content last changed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
    /// Changes with the file; for `If-Match`.
    #[cfg_attr(feature = "openapi", schema(example = "\"2a-d-18ab-18ab\""))]
    pub etag: String,
    /// Whether more of the file follows the window.
    pub truncated: bool,
}

/// What has to hold for a write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteCondition {
    /// Nothing.
    #[default]
    None,
    /// The file is there, and has one of these tags.
    Matches(Vec<String>),
    /// The file is there.
    Exists,
    /// No file is there.
    Absent,
}

/// Writes a file, whole or at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    /// The file.
    pub path: AbsolutePath,
    /// Its new content, or what is added.
    pub content: String,
    /// How `content` is written.
    pub encoding: ContentEncoding,
    /// Permission bits of a new file, and of a replaced one where it is given.
    pub mode: Option<u32>,
    /// Whether folders that are missing are made.
    pub create_parents: bool,
    /// Whether the content is added to what is there.
    pub append: bool,
    /// What has to hold.
    pub condition: WriteCondition,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileWritten {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Of the file now.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// Whether there was none before.
    pub created: bool,
    /// Changes with the file; for `If-Match`.
    #[cfg_attr(feature = "openapi", schema(example = "\"2a-d-18ab-18ab\""))]
    pub etag: String,
}

/// Lists a folder, a page at a time, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFolder {
    /// The folder.
    pub path: AbsolutePath,
    /// Entries at the most; 1 to [`LONGEST_PAGE`].
    pub limit: u32,
    /// The last name of the page before, percent-encoded.
    pub after: Option<String>,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderEntry {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "notes.md"))]
    pub name: String,
    /// Its path.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `name` and `path` are written, where the name is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_encoding: Option<PathEncoding>,
    /// What it is.
    pub r#type: FileType,
    /// Of its content.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// Its permission bits in octal digits.
    #[cfg_attr(feature = "openapi", schema(example = "0644"))]
    pub mode: String,
    /// The user that it belongs to.
    #[cfg_attr(feature = "openapi", schema(example = 1000))]
    pub uid: u32,
    /// The group that it belongs to.
    #[cfg_attr(feature = "openapi", schema(example = 1000))]
    pub gid: u32,
    /// When its content last changed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
    /// What a symlink says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How `target` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_encoding: Option<PathEncoding>,
}

/// A page of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderPage {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// By name.
    pub entries: Vec<FolderEntry>,
    /// What the next page begins with; null on the last.
    pub next_cursor: Option<String>,
}

/// Makes a folder, and those above it that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeFolder {
    /// The folder.
    pub path: AbsolutePath,
    /// Its permission bits.
    pub mode: Option<u32>,
}

/// A folder that is there now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderMade {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Whether it was not there before.
    pub created: bool,
}

/// Makes a symbolic link. Where it leads is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeLink {
    /// The link.
    pub path: AbsolutePath,
    /// What it says.
    pub target: LinkTarget,
    /// Whether a file or a link that stands there is replaced.
    pub overwrite: bool,
}

/// A link that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkMade {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/latest"))]
    pub path: String,
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "builds/42"))]
    pub target: String,
    /// How both are written, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Whether a file or another link was replaced.
    pub replaced: bool,
}

/// Removes a file, a link, or a folder with all that is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveFile {
    /// What is removed.
    pub path: AbsolutePath,
    /// Whether a folder may have something in it.
    pub recursive: bool,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileRemoved {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// What it was.
    pub r#type: FileType,
    /// How many files, folders and links were removed.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub removed: u64,
}

/// Moves or copies a file, a link, or a folder with all that is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocate {
    /// What is moved or copied.
    pub from: AbsolutePath,
    /// Its new path.
    pub to: AbsolutePath,
    /// Whether a file that stands there is replaced.
    pub overwrite: bool,
    /// Whether it stays at its old path too.
    pub keep: bool,
}

/// What stands at its new path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Relocated {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/draft.md"))]
    pub from: String,
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub to: String,
    /// How both are written, where one is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// What it is.
    pub r#type: FileType,
    /// Whether another file was replaced.
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
        let asked = crate::AnswerLimit::with_text(self.limit.unwrap_or(LONGEST_CONTENT));
        let longest = crate::AnswerLimit::SHORT.bytes.saturating_add(LONGEST_CONTENT as usize);
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

/// How a pattern is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PatternSyntax {
    /// By what stands in it: a regex where it holds one of `\ ^ $ ( | +` or begins with `.*`, else a glob.
    #[default]
    Auto,
    /// `*.rs`, `src/**`, `{a,b}?`.
    Glob,
    /// A regular expression, over the path below the root of the search.
    Regex,
}

/// Searches for files by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchFiles {
    /// The folder below which is searched.
    pub path: AbsolutePath,
    /// What matches.
    pub pattern: String,
    /// How the pattern is read.
    pub syntax: PatternSyntax,
    /// Only these.
    pub r#type: Option<FileType>,
    /// Whether names that begin with a dot are looked at.
    pub hidden: bool,
    /// Whether what `.gitignore` names is left out.
    pub gitignore: bool,
    /// Matches at the most.
    pub limit: u32,
}

/// A file that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FoundFile {
    /// Its path.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// What it is.
    pub r#type: FileType,
    /// Of its content.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// When its content last changed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub modified_at: Timestamp,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilesFound {
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// As it was asked for.
    #[cfg_attr(feature = "openapi", schema(example = "*.md"))]
    pub pattern: String,
    /// How the pattern was read: never `auto`.
    pub syntax: PatternSyntax,
    /// By path.
    pub matches: Vec<FoundFile>,
    /// Whether there may be more: the limit, the time, or 16 MiB of JSON were reached.
    pub truncated: bool,
}

/// Searches for lines in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepFiles {
    /// The folder below which is searched, or one file.
    pub path: AbsolutePath,
    /// A regular expression.
    pub pattern: String,
    /// Only files whose path below the root of the search matches this glob.
    pub glob: Option<String>,
    /// Lines before and after each match.
    pub context: u32,
    /// Matches at the most.
    pub limit: u32,
}

/// A line that matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MatchedLine {
    /// The file.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/notes.md"))]
    pub path: Arc<str>,
    /// How `path` is written, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// From 1.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub line: u64,
    /// The first byte of the match, from 1.
    #[cfg_attr(feature = "openapi", schema(example = 5))]
    pub column: u64,
    /// The line, without its end. What is not UTF-8 is replaced. A line near several matches stands in memory once.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "    todo!()"))]
    pub text: Arc<str>,
    /// The lines before it.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, example = json!(["fn main() {"])))]
    pub before: Vec<Arc<str>>,
    /// The lines after it.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, example = json!(["fn main() {"])))]
    pub after: Vec<Arc<str>>,
}

/// The lines that matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinesFound {
    /// By path and line.
    pub matches: Vec<MatchedLine>,
    /// Whether there may be more: the limit, the time, or 16 MiB of JSON were reached.
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
