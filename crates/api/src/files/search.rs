//! Searching for files and for lines in files.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{FileType, READ};
use crate::{
    AnswerLimit, Failure,
    endpoint::{Route, Success, WorkspaceEndpoint, check_range, invalid},
    operation::Operation,
    path::{AbsolutePath, PathEncoding},
};

/// The most matches of a search.
const MAX_MATCHES: u32 = 10_000;
/// The most matches without `limit`.
const DEFAULT_MATCHES: u32 = 1_000;
/// The most lines around a match.
const MAX_CONTEXT: u32 = 100;

/// Searches for files by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SearchFiles {
    /// The folder to search, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace"))]
    pub path: AbsolutePath,
    /// A glob or a regex. A glob without `/` matches names at any depth, one with `/` the path below `path`.
    #[cfg_attr(feature = "openapi", schema(example = "*.md", min_length = 1))]
    pub pattern: String,
    /// `glob`, `regex`, or `auto` (default), which guesses from the pattern.
    #[serde(default)]
    pub syntax: PatternSyntax,
    /// Only entries of this type.
    #[serde(default)]
    pub r#type: Option<FileType>,
    /// Whether to include names that begin with a dot; default true.
    #[serde(default = "enabled")]
    pub hidden: bool,
    /// Whether to leave out what `.gitignore`, `.ignore` and `.git/info/exclude` exclude; default false. Such a file is
    /// ignored if it is longer than 64 KiB, or if more than 2,000 patterns would apply in a folder with it.
    #[serde(default)]
    pub gitignore: bool,
    /// The most matches, 1 to 10,000; default 1,000.
    #[serde(default = "default_matches")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub limit: u32,
}

const fn enabled() -> bool {
    true
}

const fn default_matches() -> u32 {
    DEFAULT_MATCHES
}

impl Operation for SearchFiles {
    const NAME: &'static str = "search-files";
    type Answer = FilesFound;

    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::of_elements(self.limit, 8)
    }
}

impl WorkspaceEndpoint for SearchFiles {
    const ROUTE: Route = Route {
        path: "/api/files/search",
        id: "search_files",
        summary: "Search for files by name",
        description: "Links are not followed. After 30 seconds the search stops and returns its matches so far, with \
            `truncated`.",
        success: Success::Done("The matches"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_not_empty("pattern", &self.pattern)?;
        check_range("limit", self.limit, 1..=MAX_MATCHES)
    }
}

/// Searches for lines in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GrepFiles {
    /// The folder or file to search, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace"))]
    pub path: AbsolutePath,
    /// A regular expression that is matched against each line.
    #[cfg_attr(feature = "openapi", schema(example = "TODO", min_length = 1))]
    pub pattern: String,
    /// Only files whose name matches this glob; with a `/` in the glob, whose path below `path` matches.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub glob: Option<String>,
    /// Lines before and after each match, 0 to 100; default 0.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub context: u32,
    /// The most matches, 1 to 10,000; default 1,000.
    #[serde(default = "default_matches")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub limit: u32,
}

impl Operation for GrepFiles {
    const NAME: &'static str = "grep-files";
    type Answer = LinesFound;

    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::of_elements(self.limit, self.context.saturating_mul(2).saturating_add(12))
    }
}

impl WorkspaceEndpoint for GrepFiles {
    const ROUTE: Route = Route {
        path: "/api/files/grep",
        id: "grep_files",
        summary: "Search for lines in files",
        description: "Files with a zero byte are left out. Of a line over 4 KiB the beginning is answered.",
        success: Success::Done("The lines"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_not_empty("pattern", &self.pattern)?;
        self.glob.as_deref().map_or(Ok(()), |glob| check_not_empty("glob", glob))?;
        check_range("context", self.context, 0..=MAX_CONTEXT)?;
        check_range("limit", self.limit, 1..=MAX_MATCHES)
    }
}

fn check_not_empty(field: &str, text: &str) -> Result<(), Failure> {
    if text.is_empty() { invalid(format!("`{field}` is empty; give what shall be found")) } else { Ok(()) }
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
