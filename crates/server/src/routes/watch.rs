//! `GET /api/files/watch`: streams the changes below a folder as server-sent events.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::{
    extract::State,
    response::{Response, sse::Event},
};
use bytes::{Buf, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use skep_accounts::AccountPermit;
use skep_api::{
    AbsolutePath, ErrorCode, Failure,
    path::PathEncoding,
    streams::{ChangeType, FileChange, WatchFolder},
};
use skep_workspace::Content;
use utoipa::IntoParams;

use super::raw::FilesState;
use crate::{
    access_watch::{access_lost, server_closing},
    error::Refusal,
    extract::{Caller, FilesRead, Query},
    openapi::refusals::WatchRefused,
    operation_runner::Target,
    sse,
};

/// The longest encoded change, in bytes: two paths whose bytes are all percent-encoded.
const MAX_LINE_BYTES: usize = 64 << 10;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchQuery {
    /// The folder, an absolute path below a root.
    #[param(example = "/srv/workspace")]
    path: String,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Watch a folder
///
/// Streams `change` events (`{type, path, from?}`) of the folder and everything below it, including new folders; links
/// are not followed. `overflow` means that changes were lost because they came faster than they were read: list the
/// folder again. An `error` event (`{error, message, code}`) is the last of a broken stream; if the folder is deleted,
/// the stream ends after that change. An account can watch at most 32 folders at once. In a VM it also needs the scope
/// `swarm:exec`.
#[utoipa::path(
    get, path = "/api/files/watch", tag = "files", operation_id = "watch_files", params(WatchQuery),
    security(("bearer" = ["files:read"])),
    responses(
        (status = 200, description = "The changes as they happen", content((FileChange = "text/event-stream"))),
        WatchRefused,
    )
)]
pub(super) async fn watch(
    State(state): State<FilesState>,
    caller: Caller<FilesRead>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Refusal> {
    let operation = WatchFolder {
        path: AbsolutePath::parse("path", &query.path, query.path_encoding.unwrap_or_default())?,
    };
    let chosen = Target::from_query(query.vm.as_deref())?;
    let watcher = state.watchers.acquire(caller.account.id)?;
    let (_, content) = state.runner.run_streamed(&caller, chosen, operation, None).await?;
    let watch = Watch {
        lines: Lines { content, buffer: BytesMut::new() },
        access_lost: Box::pin(access_lost(Arc::clone(&state.store), &caller)),
        closing: Box::pin(server_closing(state.closing.clone())),
        _watcher: watcher,
    };
    Ok(sse::respond(watch.into_events()))
}

/// Decodes the changes from a stream of lines.
struct Lines {
    content: Content,
    buffer: BytesMut,
}

impl Lines {
    /// The next change, or `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<FileChange>, Refusal> {
        let broken = |why: String| Refusal::new(ErrorCode::VmEnded, format!("the watch broke off: {why}"));
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                return serde_json::from_slice(&line).map(Some).map_err(|error| broken(error.to_string()));
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(broken(format!("a change of more than {MAX_LINE_BYTES} bytes")));
            }
            match self.content.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(broken(error.to_string())),
                None => return Ok(None),
            }
        }
    }
}

struct Watch {
    lines: Lines,
    access_lost: Pin<Box<dyn Future<Output = Failure> + Send>>,
    /// Completes when the server is about to close the remaining connections.
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    _watcher: AccountPermit,
}

impl Watch {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(Some(self), |watch| async move {
            let mut watch = watch?;
            let ending = tokio::select! {
                biased;
                failure = &mut watch.access_lost => failure.into(),
                () = &mut watch.closing => Refusal::new(ErrorCode::ShuttingDown, "the server is shutting down; watch again"),
                change = watch.lines.next() => match change {
                    Ok(Some(change)) => return Some((Ok(change_event(&change)), Some(watch))),
                    Ok(None) => return None,
                    Err(refusal) => refusal,
                },
            };
            Some((Ok(sse::error(&ending, "changes")), None))
        })
    }
}

fn change_event(change: &FileChange) -> Event {
    sse::event(if change.r#type == ChangeType::Overflow { "overflow" } else { "change" }, change)
}
