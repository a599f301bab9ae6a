//! `/api/files`, `/api/ls`, `/api/mkdir`: files of the workspace, or of a VM.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use skep_api::{
    AbsolutePath, ErrorCode, Failure,
    exec::VmField,
    files::{
        ContentEncoding, FileContent, FileRemoved, FileType, FileWritten, FilesFound, FolderMade, FolderPage,
        GrepFiles, LONGEST_PAGE, LinesFound, ListFolder, MakeFolder, PatternSyntax, ReadFile, Relocate,
        Relocated, RemoveFile, SearchFiles, WriteCondition, WriteFile,
    },
    path::PathEncoding,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Answer, Routes, content, link,
    raw::{self, FilesDesk},
    watch,
};
use crate::{
    accept::{Form, content_form},
    body::Body,
    error::Refusal,
    extract::{Call, Caller, FilesRead, FilesReadWrite, FilesWrite, NoParameters, Query},
    json::Json,
    openapi::refusals::{FilesRefused, FilesWriteRefused, ReadRefused},
    places::{Chosen, Places},
};

/// Entries on a page, and matches, where the caller names no number.
const DEFAULT_PAGE: u32 = 1_000;
/// Matches at the most.
const LARGEST_SEARCH: u32 = 10_000;
/// Lines around a match, at the most.
const LARGEST_CONTEXT: u32 = 100;

/// The routes of this file.
pub(crate) fn routes(desk: FilesDesk) -> Routes {
    let places = desk.places.clone();
    vec![
        routes!(read).with_state(desk.clone()),
        routes!(raw::write_raw).with_state(desk.clone()),
        routes!(watch::watch).with_state(desk),
        routes!(write).with_state(places.clone()),
        routes!(list).with_state(places.clone()),
        routes!(search).with_state(places.clone()),
        routes!(grep).with_state(places.clone()),
        routes!(remove).with_state(places.clone()),
        routes!(make).with_state(places.clone()),
        routes!(link::make_link).with_state(places.clone()),
        routes!(move_file).with_state(places.clone()),
        routes!(copy_file).with_state(places),
    ]
}

/// Which file, and where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReadQuery {
    /// Absolute, below a root.
    #[param(example = "/srv/workspace/notes.md")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// How the content is answered: `utf-8` unless given, `base64`, `hex`, or any label of the WHATWG's list.
    encoding: Option<String>,
    /// The first byte; 0 unless given.
    offset: Option<u64>,
    /// Bytes at the most; all unless given.
    #[param(minimum = 1)]
    limit: Option<u64>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// Read a file
///
/// The whole, or a window of it, in JSON. With `Accept: application/octet-stream` its bytes, streamed: the whole, or the
/// one part that `Range` names, where `If-Range` holds; `encoding`, `offset` and `limit` are of JSON alone. In a VM it needs
/// the scope `swarm:exec` besides.
#[utoipa::path(
    get, path = "/api/files/read", tag = "files", operation_id = "read_file",
    security(("bearer" = ["files:read"])),
    params(
        ReadQuery,
        ("Range" = Option<String>, Header, description = "One part, such as `bytes=0-1023`; of raw bytes alone"),
        ("If-Range" = Option<String>, Header, description = "The tag for which the part is wanted; else the whole"),
    ),
    responses(
        (status = 200, description = "The content", content(
            (FileContent = "application/json"),
            (String = "application/octet-stream", example = json!("# Notes\n"))
        )),
        (status = 206, description = "A part of the bytes", content(
            (String = "application/octet-stream", example = json!("# No"))
        )),
        ReadRefused,
    )
)]
async fn read(
    State(desk): State<FilesDesk>,
    caller: Caller<FilesRead>,
    Query(query): Query<ReadQuery>,
    headers: axum::http::HeaderMap,
) -> Result<Response, Refusal> {
    let file = path("path", &query.path, query.path_encoding)?;
    let chosen = Chosen::by_query(query.vm.as_deref())?;
    if content_form(&headers)? == Form::Raw {
        if query.encoding.is_some() || query.offset.is_some() || query.limit.is_some() {
            let message = "`encoding`, `offset` and `limit` are of JSON; of raw bytes name a part by `Range`";
            return Err(Refusal::new(ErrorCode::InvalidValue, message));
        }
        return raw::read(&desk, &caller, chosen, file, &headers).await;
    }
    let operation = ReadFile {
        path: file,
        encoding: query.encoding.map_or_else(ContentEncoding::default, ContentEncoding),
        offset: query.offset.unwrap_or(0),
        limit: query.limit.map(|limit| within("limit", limit, 1..=u64::MAX)).transpose()?,
    };
    content::answer(desk.places.run(&caller, chosen, operation).await?).await
}

/// What is written, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WriteBody {
    /// Absolute, below a root.
    #[schema(example = "/srv/workspace/notes.md")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// The file's new content.
    content: String,
    /// How `content` is written: `utf-8` unless given.
    encoding: Option<String>,
    /// Permission bits in octal digits, 0000 to 1777; 0644, or those of the file that is replaced, unless given. Setuid and setgid
    /// are not given, and not kept.
    #[schema(example = "0644")]
    mode: Option<String>,
    /// Whether missing folders are made; true unless given.
    create_parents: Option<bool>,
    /// Whether the content is added at the end of what is there.
    append: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Write a file
///
/// A reader sees the old or the new content, whole, also after a power cut. `If-Match` and `If-None-Match: *` are
/// honoured: of several callers with one tag, one is accepted and the others get 412, by whichever links their paths lead
/// through. That holds for all calls of this API; a program that changes the file by itself in the moment between the
/// comparison and the replacement is not noticed. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/files/write", tag = "files", operation_id = "write_file",
    security(("bearer" = ["files:write"])),
    params(
        ("If-Match" = Option<String>, Header, description = "Tags of which the file must have one, or `*`"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only where no file is there"),
    ),
    request_body(content = WriteBody, example = json!({"path": "/srv/workspace/notes.md", "content": "# Notes\n"})),
    responses(
        (status = 200, description = "A file was replaced, or added to", body = FileWritten),
        (status = 201, description = "A file was made", body = FileWritten),
        FilesWriteRefused,
    )
)]
async fn write(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    _: Query<NoParameters>,
    headers: axum::http::HeaderMap,
    call: Call,
    Body(body): Body<WriteBody>,
) -> Result<Response, Refusal> {
    let operation = WriteFile {
        path: path("path", &body.path, body.path_encoding)?,
        content: body.content,
        encoding: body.encoding.map_or_else(ContentEncoding::default, ContentEncoding),
        mode: body.mode.as_deref().map(mode).transpose()?,
        create_parents: body.create_parents.unwrap_or(true),
        append: body.append.unwrap_or(false),
        condition: condition(&headers)?,
    };
    let chosen = Chosen::by_field(body.vm.as_ref())?;
    Places::note(&chosen, &call.trail);
    let written = places.run(&caller, chosen, operation).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(written)).into_response())
}

/// Which folder, and which page of it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Absolute, below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// Entries on the page, 1 to 1,000; 1,000 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// List a folder
///
/// By name, a page at a time. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    get, path = "/api/ls", tag = "files", operation_id = "list_folder", params(ListQuery),
    security(("bearer" = ["files:read"])),
    responses((status = 200, description = "A page of the folder", body = FolderPage), FilesRefused)
)]
async fn list(
    State(places): State<Places>,
    caller: Caller<FilesRead>,
    Query(query): Query<ListQuery>,
) -> Answer<FolderPage> {
    let operation = ListFolder {
        path: path("path", &query.path, query.path_encoding)?,
        limit: within("limit", query.limit.unwrap_or(DEFAULT_PAGE), 1..=LONGEST_PAGE)?,
        after: query.cursor,
    };
    Ok(Json(places.run(&caller, Chosen::by_query(query.vm.as_deref())?, operation).await?))
}

/// What is searched for, and where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// The folder below which is searched: absolute, below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// A glob or a regex. A glob without `/` matches names at any depth, one with `/` the path below `path`.
    #[param(example = "*.md", min_length = 1)]
    pattern: String,
    /// `glob`, `regex`, or `auto`, which looks at the pattern; `auto` unless given.
    #[param(inline)]
    syntax: Option<PatternSyntax>,
    /// Only these.
    #[param(inline)]
    r#type: Option<FileType>,
    /// Whether names that begin with a dot are looked at; true unless given.
    hidden: Option<bool>,
    /// Whether what `.gitignore`, `.ignore` and `.git/info/exclude` name is left out; false unless given. One of these files
    /// that is longer than 64 KiB is passed over, and so is one with which more than 2,000 patterns would hold in a folder.
    gitignore: Option<bool>,
    /// Matches at the most, 1 to 10,000; 1,000 unless given.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// Search for files by name
///
/// No link is followed. After 30 seconds the answer is what was found until then, and `truncated`. In a VM it needs the
/// scope `swarm:exec` besides.
#[utoipa::path(
    get, path = "/api/files/search", tag = "files", operation_id = "search_files", params(SearchQuery),
    security(("bearer" = ["files:read"])),
    responses((status = 200, description = "What was found", body = FilesFound), FilesRefused)
)]
async fn search(
    State(places): State<Places>,
    caller: Caller<FilesRead>,
    Query(query): Query<SearchQuery>,
) -> Answer<FilesFound> {
    let operation = SearchFiles {
        path: path("path", &query.path, query.path_encoding)?,
        pattern: not_empty("pattern", query.pattern)?,
        syntax: query.syntax.unwrap_or_default(),
        r#type: query.r#type,
        hidden: query.hidden.unwrap_or(true),
        gitignore: query.gitignore.unwrap_or(false),
        limit: within("limit", query.limit.unwrap_or(DEFAULT_PAGE), 1..=LARGEST_SEARCH)?,
    };
    Ok(Json(places.run(&caller, Chosen::by_query(query.vm.as_deref())?, operation).await?))
}

/// Which lines are searched for, and where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GrepQuery {
    /// The folder below which is searched, or one file: absolute, below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// A regular expression over lines.
    #[param(example = "TODO", min_length = 1)]
    pattern: String,
    /// Only files whose name (or path below `path`, where it has a `/`) matches this glob.
    #[param(min_length = 1)]
    glob: Option<String>,
    /// Lines before and after each match, 0 to 100; 0 unless given.
    #[param(minimum = 0, maximum = 100)]
    context: Option<u32>,
    /// Matches at the most, 1 to 10,000; 1,000 unless given.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// Search for lines in files
///
/// Files with a zero byte are left out. Of a line over 4 KiB the beginning is answered. In a VM it needs the scope
/// `swarm:exec` besides.
#[utoipa::path(
    get, path = "/api/files/grep", tag = "files", operation_id = "grep_files", params(GrepQuery),
    security(("bearer" = ["files:read"])),
    responses((status = 200, description = "The lines", body = LinesFound), FilesRefused)
)]
async fn grep(
    State(places): State<Places>,
    caller: Caller<FilesRead>,
    Query(query): Query<GrepQuery>,
) -> Answer<LinesFound> {
    let operation = GrepFiles {
        path: path("path", &query.path, query.path_encoding)?,
        pattern: not_empty("pattern", query.pattern)?,
        glob: query.glob.map(|glob| not_empty("glob", glob)).transpose()?,
        context: within("context", query.context.unwrap_or(0), 0..=LARGEST_CONTEXT)?,
        limit: within("limit", query.limit.unwrap_or(DEFAULT_PAGE), 1..=LARGEST_SEARCH)?,
    };
    Ok(Json(places.run(&caller, Chosen::by_query(query.vm.as_deref())?, operation).await?))
}

/// What is removed, and where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// Absolute, below a root, and no root itself.
    #[param(example = "/srv/workspace/old")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// Whether a folder may have something in it; true unless given.
    recursive: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// Remove a file or a folder
///
/// A link is removed and never followed. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    delete, path = "/api/files", tag = "files", operation_id = "remove_file", params(RemoveQuery),
    security(("bearer" = ["files:write"])),
    responses((status = 200, description = "What was removed", body = FileRemoved), FilesWriteRefused)
)]
async fn remove(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    Query(query): Query<RemoveQuery>,
    call: Call,
) -> Answer<FileRemoved> {
    let operation = RemoveFile {
        path: path("path", &query.path, query.path_encoding)?,
        recursive: query.recursive.unwrap_or(true),
    };
    let chosen = Chosen::by_query(query.vm.as_deref())?;
    Places::note(&chosen, &call.trail);
    Ok(Json(places.run(&caller, chosen, operation).await?))
}

/// Which folder is made, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MakeBody {
    /// Absolute, below a root.
    #[schema(example = "/srv/workspace/src")]
    path: String,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// Permission bits in octal digits, 0000 to 1777; 0755 unless given.
    #[schema(example = "0755")]
    mode: Option<String>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Make a folder
///
/// And those above it that are missing. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/mkdir", tag = "files", operation_id = "make_folder", security(("bearer" = ["files:write"])),
    request_body(content = MakeBody, example = json!({"path": "/srv/workspace/src"})),
    responses(
        (status = 200, description = "The folder is there already", body = FolderMade),
        (status = 201, description = "The folder was made", body = FolderMade),
        FilesWriteRefused,
    )
)]
async fn make(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<MakeBody>,
) -> Result<Response, Refusal> {
    let operation = MakeFolder {
        path: path("path", &body.path, body.path_encoding)?,
        mode: body.mode.as_deref().map(mode).transpose()?,
    };
    let chosen = Chosen::by_field(body.vm.as_ref())?;
    Places::note(&chosen, &call.trail);
    let made = places.run(&caller, chosen, operation).await?;
    let status = if made.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(made)).into_response())
}

/// What is moved or copied, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RelocateBody {
    /// Absolute, below a root.
    #[schema(example = "/srv/workspace/draft.md")]
    from: String,
    /// Absolute, below a root.
    #[schema(example = "/srv/workspace/notes.md")]
    to: String,
    /// How both are written.
    path_encoding: Option<PathEncoding>,
    /// Whether a file that stands there is replaced.
    overwrite: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Move a file or a folder
///
/// In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/files/move", tag = "files", operation_id = "move_file",
    security(("bearer" = ["files:read", "files:write"])),
    request_body(content = RelocateBody, example = json!({"from": "/srv/workspace/draft.md", "to": "/srv/workspace/notes.md"})),
    responses((status = 200, description = "It stands at its new path", body = Relocated), FilesWriteRefused)
)]
async fn move_file(
    places: State<Places>,
    caller: Caller<FilesReadWrite>,
    _: Query<NoParameters>,
    call: Call,
    body: Body<RelocateBody>,
) -> Answer<Relocated> {
    relocate(places, caller, call, body, false).await
}

/// Copy a file or a folder
///
/// Links are copied as links; what has no content is left out. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/files/copy", tag = "files", operation_id = "copy_file",
    security(("bearer" = ["files:read", "files:write"])),
    request_body(content = RelocateBody, example = json!({"from": "/srv/workspace/notes.md", "to": "/srv/workspace/copy.md"})),
    responses((status = 200, description = "It stands at its new path too", body = Relocated), FilesWriteRefused)
)]
async fn copy_file(
    places: State<Places>,
    caller: Caller<FilesReadWrite>,
    _: Query<NoParameters>,
    call: Call,
    body: Body<RelocateBody>,
) -> Answer<Relocated> {
    relocate(places, caller, call, body, true).await
}

async fn relocate(
    State(places): State<Places>,
    caller: Caller<FilesReadWrite>,
    call: Call,
    Body(body): Body<RelocateBody>,
    keep: bool,
) -> Answer<Relocated> {
    let operation = Relocate {
        from: path("from", &body.from, body.path_encoding)?,
        to: path("to", &body.to, body.path_encoding)?,
        overwrite: body.overwrite.unwrap_or(false),
        keep,
    };
    let chosen = Chosen::by_field(body.vm.as_ref())?;
    Places::note(&chosen, &call.trail);
    Ok(Json(places.run(&caller, chosen, operation).await?))
}

pub(super) fn path(field: &str, text: &str, encoding: Option<PathEncoding>) -> Result<AbsolutePath, Failure> {
    AbsolutePath::parse(field, text, encoding.unwrap_or_default())
}

fn not_empty(field: &str, text: String) -> Result<String, Failure> {
    if !text.is_empty() {
        return Ok(text);
    }
    Err(Failure::new(ErrorCode::InvalidValue, format!("`{field}` is empty; give what shall be found")))
}

fn within<N: PartialOrd + std::fmt::Display>(
    field: &str,
    number: N,
    range: std::ops::RangeInclusive<N>,
) -> Result<N, Failure> {
    if range.contains(&number) {
        return Ok(number);
    }
    let message =
        format!("`{field}` is {number}; it must be a whole number from {} to {}", range.start(), range.end());
    Err(Failure::new(ErrorCode::InvalidValue, message))
}

/// Permission bits out of octal digits.
pub(super) fn mode(text: &str) -> Result<u32, Failure> {
    let digits = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) && (1..=5).contains(&text.len());
    let mode = if digits { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o1777).ok_or_else(|| {
        let message = format!(
            "`mode` is `{text}`; give octal digits from 0000 to 1777, such as `0644`: setuid and setgid cannot be given"
        );
        Failure::new(ErrorCode::InvalidValue, message)
    })
}

/// What the headers demand of the file (RFC 9110, section 13.1).
pub(super) fn condition(headers: &axum::http::HeaderMap) -> Result<WriteCondition, Failure> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").trim().to_owned());
    let invalid = |message: &str| Err(Failure::new(ErrorCode::InvalidValue, message));
    match (text("if-match"), text("if-none-match")) {
        (None, None) => Ok(WriteCondition::None),
        (Some(_), Some(_)) => invalid("`If-Match` and `If-None-Match` together cannot both hold; send one"),
        (Some(all), None) if all == "*" => Ok(WriteCondition::Exists),
        (Some(tags), None) => {
            Ok(WriteCondition::Matches(tags.split(',').map(|tag| tag.trim().to_owned()).collect()))
        }
        (None, Some(all)) if all == "*" => Ok(WriteCondition::Absent),
        (None, Some(_)) => invalid("`If-None-Match` of a write is `*`: no file may be there"),
    }
}
