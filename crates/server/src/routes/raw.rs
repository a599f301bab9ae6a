//! Raw bytes of files: `GET /api/files/read` with `Accept: application/octet-stream`, and `PUT /api/files/raw`.

use std::sync::Arc;

use axum::{
    body::Body as HttpBody,
    extract::{FromRequestParts, Request, State},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE,
        LAST_MODIFIED, RANGE, VARY, X_CONTENT_TYPE_OPTIONS,
    },
};
use jiff::fmt::rfc2822::DateTimePrinter;
use serde::Deserialize;
use skep_api::{
    AbsolutePath, ErrorCode,
    files::{FileWritten, parse_mode},
    path::PathEncoding,
    streams::{ByteRange, FilePart, StreamFile, StreamedFile, UploadFile},
};
use skep_store::Store;
use skep_workspace::Content;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::operations::precondition;
use crate::{
    access_watch::{access_lost, server_closing},
    auth::Identity,
    body_stream::with_content,
    error::Refusal,
    extract::{Caller, FilesWrite, Query, RequestInfo},
    json::Json,
    openapi::refusals::FilesWriteRefused,
    operation_runner::{OperationRunner, Target},
    watchers::WatchCounts,
};

/// Shorter content is sent in one block, without watching whether the key is revoked meanwhile.
const SHORT_BYTES: u64 = 256 << 10;
/// What a read takes, in bytes: three blocks of 256 KiB, one that waits for the client, the next one, and one that is being read.
const READ_BYTES: u64 = 768 << 10;
/// What a write takes, in bytes: the parts that came, a block of 256 KiB, and one of 1 MiB that bypasses the page cache.
const WRITE_BYTES: u64 = 1536 << 10;

/// The state of the routes that stream files.
#[derive(Clone)]
pub(crate) struct FilesState {
    pub runner: OperationRunner,
    /// Used to check that the key of a streaming caller is still valid.
    pub store: Arc<dyn Store>,
    /// True when the server is about to close the remaining connections.
    pub closing: watch::Receiver<bool>,
    /// Limits the watches of each account.
    pub watchers: WatchCounts,
}

/// Returns the bytes of a file, or of the part that `Range` names.
pub(super) async fn read(
    state: &FilesState,
    caller: &Identity,
    chosen: Target,
    path: AbsolutePath,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    let if_range = headers.get(IF_RANGE).map(|tag| tag.to_str().unwrap_or_default().trim().to_owned());
    let operation = StreamFile { path, range: range(headers), if_range };
    caller.memory.reserve(READ_BYTES).await?;
    let (file, content) = state.runner.run_streamed(caller, chosen, operation, None).await?;
    let size = file.size_bytes;
    let (status, length, part) = match file.part {
        FilePart::Whole => (StatusCode::OK, size, None),
        FilePart::Range { first, length } => {
            let last = first.saturating_add(length).saturating_sub(1);
            (StatusCode::PARTIAL_CONTENT, length, Some(format!("bytes {first}-{last}/{size}")))
        }
        FilePart::Unsatisfiable => return Ok(unsatisfiable(size)),
    };
    let content =
        if length > SHORT_BYTES { until_revoked_or_closing(content, state, caller) } else { content };
    let mut answer = Response::new(HttpBody::from_stream(content));
    *answer.status_mut() = status;
    let answer_headers = answer.headers_mut();
    add_file_headers(answer_headers, &file);
    answer_headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    answer_headers.extend(part.and_then(|part| Some((CONTENT_RANGE, HeaderValue::try_from(part).ok()?))));
    Ok(answer)
}

fn add_file_headers(headers: &mut HeaderMap, file: &StreamedFile) {
    let fixed: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, "application/octet-stream"),
        (CONTENT_DISPOSITION, "attachment"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (ACCEPT_RANGES, "bytes"),
        (VARY, "Accept"),
    ];
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    // The tag comes from the guest, and may be an invalid header value.
    headers.extend(HeaderValue::try_from(&file.etag).ok().map(|tag| (ETAG, tag)));
    let modified = DateTimePrinter::new().timestamp_to_rfc9110_string(&file.modified_at).ok();
    let modified = modified.and_then(|time| HeaderValue::try_from(time).ok());
    headers.extend(modified.map(|time| (LAST_MODIFIED, time)));
}

fn unsatisfiable(size: u64) -> Response {
    let message = format!("the file has {size} bytes, and none of the `Range`; ask for a part that it has");
    let mut answer = Refusal::new(ErrorCode::RangeNotSatisfiable, message).into_response();
    let part = HeaderValue::try_from(format!("bytes */{size}"));
    answer.headers_mut().extend(part.ok().map(|part| (CONTENT_RANGE, part)));
    answer
}

/// The same content, which ends with an error when the key or the session is lost or the server shuts down.
fn until_revoked_or_closing(content: Content, state: &FilesState, caller: &Identity) -> Content {
    let lost = Box::pin(access_lost(Arc::clone(&state.store), caller));
    let closing = Box::pin(server_closing(state.closing.clone()));
    Box::pin(stream::unfold(Some((content, lost, closing)), |state| async move {
        let (mut content, mut lost, mut closing) = state?;
        let cut = tokio::select! {
            biased;
            failure = &mut lost => failure.message,
            () = &mut closing => "the server is shutting down".to_owned(),
            block = content.next() => return Some((block?, Some((content, lost, closing)))),
        };
        Some((Err(std::io::Error::other(cut)), None))
    }))
}

/// The part that the `Range` header names. Several parts, another unit or a malformed range mean the complete file, as
/// HTTP allows (RFC 9110, section 14.2).
fn range(headers: &HeaderMap) -> Option<ByteRange> {
    let mut all = headers.get_all(RANGE).iter();
    let text = all.next().filter(|_| all.next().is_none())?.to_str().ok()?;
    let (unit, range) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match range.trim().split_once('-')? {
        ("", count) => Some(ByteRange::Last(number(count)?)),
        (first, "") => Some(ByteRange::From(number(first)?)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::Between(first, last))
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RawQuery {
    /// An absolute path below a root.
    #[param(example = "/srv/workspace/model.bin")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// Permission bits in octal digits, 0000 to 1777. Default: those of the replaced file, or 0644. Setuid and setgid
    /// cannot be set and are not kept.
    #[param(example = "0644")]
    mode: Option<String>,
    /// Whether to create missing parent folders; default true.
    create_parents: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Write a file of any size
///
/// The bytes of the body, of any content type, become the content of the file. Readers see either the complete old or
/// the complete new content, even after a power failure; a caller that disconnects before the end changes nothing.
/// `If-Match` and `If-None-Match: *` are honoured as by `POST /api/files/write`, and checked when the whole body has
/// arrived. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    put, path = "/api/files/raw", tag = "files", operation_id = "write_raw_file",
    security(("bearer" = ["files:write"])),
    params(
        RawQuery,
        ("If-Match" = Option<String>, Header, description = "Tags of which the file must have one, or `*`"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if the file does not exist"),
    ),
    request_body(
        content = String, content_type = "application/octet-stream", description = "The file's bytes",
        example = json!("# Notes\n")
    ),
    responses(
        (status = 200, description = "A file was replaced", body = FileWritten),
        (status = 201, description = "A file was created", body = FileWritten),
        FilesWriteRefused,
    )
)]
pub(super) async fn write_raw(
    State(state): State<FilesState>,
    caller: Caller<FilesWrite>,
    request: Request,
) -> Result<Response, Refusal> {
    let (mut parts, body) = request.into_parts();
    let Query(query) = Query::<RawQuery>::from_request_parts(&mut parts, &()).await?;
    let call = RequestInfo::from_request_parts(&mut parts, &()).await?;
    let operation = UploadFile {
        path: AbsolutePath::parse("path", &query.path, query.path_encoding.unwrap_or_default())?,
        mode: query.mode.as_deref().map(parse_mode).transpose()?,
        create_parents: query.create_parents.unwrap_or(true),
        condition: precondition(&parts.headers)?,
    };
    let chosen = Target::from_query(query.vm.as_deref())?;
    OperationRunner::record_resource(&chosen, &call.audit);
    let times = parts.extensions.get().copied().unwrap_or_default();
    caller.memory.reserve(WRITE_BYTES).await?;
    let written = with_content(body, times, |content| {
        state.runner.run_streamed(&caller, chosen, operation, Some(content))
    });
    let (written, _) = written.await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(written)).into_response())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<ByteRange> {
        range(&HeaderMap::from_iter([(RANGE, HeaderValue::from_str(text).unwrap())]))
    }

    #[test]
    fn only_a_single_valid_range_is_parsed() {
        for (text, expected) in [
            ("bytes=0-", Some(ByteRange::From(0))),
            ("Bytes=5-9", Some(ByteRange::Between(5, 9))),
            ("bytes=-3", Some(ByteRange::Last(3))),
            ("bytes=0-99999999999999999999999", Some(ByteRange::Between(0, u64::MAX))),
            ("bytes=9-5", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("lines=0-1", None),
            ("0-1", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let twice =
            [(RANGE, HeaderValue::from_static("bytes=0-1")), (RANGE, HeaderValue::from_static("bytes=2-3"))];
        let mut headers = HeaderMap::new();
        for (name, value) in twice {
            headers.append(name, value);
        }
        assert_eq!(range(&headers), None);
    }

    proptest! {
        #[test]
        fn the_range_parser_never_panics(text in "(bytes)?=?[0-9,=-]{0,30}") {
            let _ = read(&text);
        }
    }
}
