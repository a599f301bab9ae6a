//! `/api/files`, `/api/ls`, `/api/mkdir`: files of the workspace or of a VM.

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
        GrepFiles, LinesFound, ListFolder, MAX_PAGE_ENTRIES, MakeFolder, PatternSyntax, ReadFile, Relocate,
        Relocated, RemoveFile, SearchFiles, WriteCondition, WriteFile,
    },
    path::PathEncoding,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Answer, Routes, content, link,
    raw::{self, FilesState},
    watch,
};
use crate::{
    body::Body,
    error::Refusal,
    extract::{Caller, FilesRead, FilesReadWrite, FilesWrite, NoParameters, Query, RequestInfo},
    json::Json,
    negotiate::{MediaType, content_media_type},
    openapi::refusals::{FilesRefused, FilesWriteRefused, ReadRefused},
    places::{Places, Target},
};

/// Entries on a page, or matches, without `limit`.
const DEFAULT_PAGE: u32 = 1_000;
const MAX_MATCHES: u32 = 10_000;
const MAX_CONTEXT: u32 = 100;

pub(crate) fn routes(state: FilesState) -> Routes {
    let places = state.places.clone();
    vec![
        routes!(read).with_state(state.clone()),
        routes!(raw::write_raw).with_state(state.clone()),
        routes!(watch::watch).with_state(state),
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

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReadQuery {
    /// An absolute path below a root.
    #[param(example = "/srv/workspace/notes.md")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// The encoding of the content in the answer: `utf-8` (default), `base64`, `hex`, or any label of the WHATWG
    /// Encoding Standard.
    encoding: Option<String>,
    /// The first byte; default 0.
    offset: Option<u64>,
    /// The most bytes. Default: all.
    #[param(minimum = 1)]
    limit: Option<u64>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Read a file
///
/// Returns the file, or a part of it, as JSON. With `Accept: application/octet-stream` the bytes are streamed: all of
/// them, or the one part that `Range` names if `If-Range` matches; `encoding`, `offset` and `limit` are for JSON only.
/// In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/files/read", tag = "files", operation_id = "read_file",
    security(("bearer" = ["files:read"])),
    params(
        ReadQuery,
        ("Range" = Option<String>, Header, description = "One part, such as `bytes=0-1023`; for raw bytes only"),
        ("If-Range" = Option<String>, Header, description = "Ignore `Range` unless the file has this tag"),
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
    State(state): State<FilesState>,
    caller: Caller<FilesRead>,
    Query(query): Query<ReadQuery>,
    headers: axum::http::HeaderMap,
) -> Result<Response, Refusal> {
    let file = path("path", &query.path, query.path_encoding)?;
    let chosen = Target::from_query(query.vm.as_deref())?;
    if content_media_type(&headers)? == MediaType::Raw {
        if query.encoding.is_some() || query.offset.is_some() || query.limit.is_some() {
            let message =
                "`encoding`, `offset` and `limit` are for JSON; use `Range` for a part of the raw bytes";
            return Err(Refusal::new(ErrorCode::InvalidValue, message));
        }
        return raw::read(&state, &caller, chosen, file, &headers).await;
    }
    let operation = ReadFile {
        path: file,
        encoding: query.encoding.map_or_else(ContentEncoding::default, ContentEncoding),
        offset: query.offset.unwrap_or(0),
        limit: query.limit.map(|limit| check_range("limit", limit, 1..=u64::MAX)).transpose()?,
    };
    content::answer(state.places.run(&caller, chosen, operation).await?).await
}

/// A file to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WriteBody {
    /// An absolute path below a root.
    #[schema(example = "/srv/workspace/notes.md")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// The file's new content.
    content: String,
    /// The encoding of `content`; default `utf-8`.
    encoding: Option<String>,
    /// Permission bits in octal digits, 0000 to 1777. Default: those of the replaced file, or 0644. Setuid and setgid
    /// cannot be set and are not kept.
    #[schema(example = "0644")]
    mode: Option<String>,
    /// Whether to create missing parent folders; default true.
    create_parents: Option<bool>,
    /// Whether to append the content to an existing file.
    append: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Write a file
///
/// Readers see either the complete old or the complete new content, even after a power failure. `If-Match` and
/// `If-None-Match: *` are honoured: of several callers with the same tag, one succeeds and the others get 412, even if
/// their paths lead through different links. This holds for all calls of this API; a change by another program between
/// the comparison and the replacement is not detected. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/files/write", tag = "files", operation_id = "write_file",
    security(("bearer" = ["files:write"])),
    params(
        ("If-Match" = Option<String>, Header, description = "Tags of which the file must have one, or `*`"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if the file does not exist"),
    ),
    request_body(content = WriteBody, example = json!({"path": "/srv/workspace/notes.md", "content": "# Notes\n"})),
    responses(
        (status = 200, description = "A file was replaced or appended to", body = FileWritten),
        (status = 201, description = "A file was created", body = FileWritten),
        FilesWriteRefused,
    )
)]
async fn write(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    _: Query<NoParameters>,
    headers: axum::http::HeaderMap,
    call: RequestInfo,
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
    let chosen = Target::from_field(body.vm.as_ref())?;
    Places::record_resource(&chosen, &call.audit);
    let written = places.run(&caller, chosen, operation).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(written)).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// An absolute path below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// Entries on the page, 1 to 1,000; default 1,000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// List a folder
///
/// Returns a page of its entries, sorted by name. In a VM it also needs the scope `swarm:exec`.
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
        limit: check_range("limit", query.limit.unwrap_or(DEFAULT_PAGE), 1..=MAX_PAGE_ENTRIES)?,
        after: query.cursor,
    };
    Ok(Json(places.run(&caller, Target::from_query(query.vm.as_deref())?, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// The folder to search, an absolute path below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// A glob or a regex. A glob without `/` matches names at any depth, one with `/` the path below `path`.
    #[param(example = "*.md", min_length = 1)]
    pattern: String,
    /// `glob`, `regex`, or `auto` (default), which guesses from the pattern.
    #[param(inline)]
    syntax: Option<PatternSyntax>,
    /// Only entries of this type.
    #[param(inline)]
    r#type: Option<FileType>,
    /// Whether to include names that begin with a dot; default true.
    hidden: Option<bool>,
    /// Whether to leave out what `.gitignore`, `.ignore` and `.git/info/exclude` exclude; default false. Such a file is
    /// ignored if it is longer than 64 KiB, or if more than 2,000 patterns would apply in a folder with it.
    gitignore: Option<bool>,
    /// The most matches, 1 to 10,000; default 1,000.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Search for files by name
///
/// Links are not followed. After 30 seconds the search stops and returns its matches so far, with `truncated`. In a VM
/// it also needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/files/search", tag = "files", operation_id = "search_files", params(SearchQuery),
    security(("bearer" = ["files:read"])),
    responses((status = 200, description = "The matches", body = FilesFound), FilesRefused)
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
        limit: check_range("limit", query.limit.unwrap_or(DEFAULT_PAGE), 1..=MAX_MATCHES)?,
    };
    Ok(Json(places.run(&caller, Target::from_query(query.vm.as_deref())?, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GrepQuery {
    /// The folder or file to search, an absolute path below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// A regular expression that is matched against each line.
    #[param(example = "TODO", min_length = 1)]
    pattern: String,
    /// Only files whose name matches this glob; with a `/` in the glob, whose path below `path` matches.
    #[param(min_length = 1)]
    glob: Option<String>,
    /// Lines before and after each match, 0 to 100; default 0.
    #[param(minimum = 0, maximum = 100)]
    context: Option<u32>,
    /// The most matches, 1 to 10,000; default 1,000.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Search for lines in files
///
/// Files with a zero byte are left out. Of a line over 4 KiB the beginning is answered. In a VM it also needs the
/// scope `swarm:exec`.
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
        context: check_range("context", query.context.unwrap_or(0), 0..=MAX_CONTEXT)?,
        limit: check_range("limit", query.limit.unwrap_or(DEFAULT_PAGE), 1..=MAX_MATCHES)?,
    };
    Ok(Json(places.run(&caller, Target::from_query(query.vm.as_deref())?, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// An absolute path below a root, but not a root itself.
    #[param(example = "/srv/workspace/old")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// Whether to remove a folder that is not empty; default true.
    recursive: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Remove a file or a folder
///
/// A link is removed, not followed. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    delete, path = "/api/files", tag = "files", operation_id = "remove_file", params(RemoveQuery),
    security(("bearer" = ["files:write"])),
    responses((status = 200, description = "What was removed", body = FileRemoved), FilesWriteRefused)
)]
async fn remove(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    Query(query): Query<RemoveQuery>,
    call: RequestInfo,
) -> Answer<FileRemoved> {
    let operation = RemoveFile {
        path: path("path", &query.path, query.path_encoding)?,
        recursive: query.recursive.unwrap_or(true),
    };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Places::record_resource(&chosen, &call.audit);
    Ok(Json(places.run(&caller, chosen, operation).await?))
}

/// A folder to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MakeBody {
    /// An absolute path below a root.
    #[schema(example = "/srv/workspace/src")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// Permission bits in octal digits, 0000 to 1777; default 0755.
    #[schema(example = "0755")]
    mode: Option<String>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Create a folder
///
/// Also creates missing parent folders. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/mkdir", tag = "files", operation_id = "make_folder", security(("bearer" = ["files:write"])),
    request_body(content = MakeBody, example = json!({"path": "/srv/workspace/src"})),
    responses(
        (status = 200, description = "The folder existed already", body = FolderMade),
        (status = 201, description = "The folder was created", body = FolderMade),
        FilesWriteRefused,
    )
)]
async fn make(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<MakeBody>,
) -> Result<Response, Refusal> {
    let operation = MakeFolder {
        path: path("path", &body.path, body.path_encoding)?,
        mode: body.mode.as_deref().map(mode).transpose()?,
    };
    let chosen = Target::from_field(body.vm.as_ref())?;
    Places::record_resource(&chosen, &call.audit);
    let made = places.run(&caller, chosen, operation).await?;
    let status = if made.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(made)).into_response())
}

/// A file or a folder to move or copy.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RelocateBody {
    /// An absolute path below a root.
    #[schema(example = "/srv/workspace/draft.md")]
    from: String,
    /// An absolute path below a root.
    #[schema(example = "/srv/workspace/notes.md")]
    to: String,
    /// The encoding of both paths.
    path_encoding: Option<PathEncoding>,
    /// Whether to replace an existing file.
    overwrite: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Move a file or a folder
///
/// In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/files/move", tag = "files", operation_id = "move_file",
    security(("bearer" = ["files:read", "files:write"])),
    request_body(content = RelocateBody, example = json!({"from": "/srv/workspace/draft.md", "to": "/srv/workspace/notes.md"})),
    responses((status = 200, description = "It was moved", body = Relocated), FilesWriteRefused)
)]
async fn move_file(
    places: State<Places>,
    caller: Caller<FilesReadWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    body: Body<RelocateBody>,
) -> Answer<Relocated> {
    relocate(places, caller, call, body, false).await
}

/// Copy a file or a folder
///
/// Links are copied as links; sockets, pipes and devices are left out. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/files/copy", tag = "files", operation_id = "copy_file",
    security(("bearer" = ["files:read", "files:write"])),
    request_body(content = RelocateBody, example = json!({"from": "/srv/workspace/notes.md", "to": "/srv/workspace/copy.md"})),
    responses((status = 200, description = "It was copied", body = Relocated), FilesWriteRefused)
)]
async fn copy_file(
    places: State<Places>,
    caller: Caller<FilesReadWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    body: Body<RelocateBody>,
) -> Answer<Relocated> {
    relocate(places, caller, call, body, true).await
}

async fn relocate(
    State(places): State<Places>,
    caller: Caller<FilesReadWrite>,
    call: RequestInfo,
    Body(body): Body<RelocateBody>,
    keep: bool,
) -> Answer<Relocated> {
    let operation = Relocate {
        from: path("from", &body.from, body.path_encoding)?,
        to: path("to", &body.to, body.path_encoding)?,
        overwrite: body.overwrite.unwrap_or(false),
        keep,
    };
    let chosen = Target::from_field(body.vm.as_ref())?;
    Places::record_resource(&chosen, &call.audit);
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

fn check_range<N: PartialOrd + std::fmt::Display>(
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

/// Parses permission bits in octal digits.
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

/// The precondition in the headers (RFC 9110, section 13.1).
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
        (None, Some(_)) => invalid("`If-None-Match` of a write must be `*`, for a file that does not exist"),
    }
}
