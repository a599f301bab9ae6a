//! `GET /api/tickets/{id}/log`: the output of the command of a boot, in pages or as a stream.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response, sse::Event},
};
use data_encoding::BASE64;
use futures_util::{Stream, stream};
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, VmId,
    endpoint::{MAX_BYTE_OFFSET, check_range},
    exec::{ExecData, OutputEncoding},
    run_log::{LogEnd, TicketLog},
};
use skep_store::{LogPage, ReadLog, VmStore};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use utoipa::IntoParams;

use super::{TicketsState, ticket_id};
use crate::{
    access_watch::{access_lost, server_closing},
    error::Refusal,
    extract::{Caller, Query, Segment, TicketRead},
    json::Json,
    openapi::refusals::TicketLogRefused,
    sse,
    utf8_decoder::Utf8Decoder,
};

/// Bytes of a log on one page, and in one event.
const PAGE_BYTES: usize = 512 << 10;
const PIECE_BYTES: usize = 64 << 10;
/// The most that a page takes as JSON: a control character takes six bytes.
const MAX_PAGE_JSON_BYTES: u64 = 6 * PAGE_BYTES as u64 + (64 << 10);
/// Minimum time between two reads of the store: commits that do not concern the log wake a follower too.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reads without a commit of this server: during a restart the other server writes the log.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogQuery {
    /// The attempt. Default: the latest one that has a log.
    #[param(minimum = 0, maximum = 4_294_967_295_u64, example = 1)]
    attempt: Option<u32>,
    /// The VM of the attempt, by its id.
    #[param(inline, value_type = Option<VmId>)]
    vm: Option<String>,
    /// The first byte; default 0. Bytes that are no longer kept are skipped.
    #[param(minimum = 0, maximum = 9_223_372_036_854_775_807_u64, example = 0)]
    offset: Option<u64>,
    /// Whether to stream the existing and all further output until the command ends.
    #[param(example = false)]
    follow: Option<bool>,
    /// The encoding of the output: `utf-8`, or `base64` for the exact bytes.
    #[param(inline, value_type = Option<OutputEncoding>)]
    encoding: Option<OutputEncoding>,
}

/// Read a ticket's log
///
/// The output of the command of a boot with `ticket` and `command`: standard output and standard error in the order in
/// which they arrived. The last 4 MiB of each attempt are kept for 30 days after its end, even if the VM or the ticket
/// is gone; beyond 256 MiB of logs of an account, the oldest parts are removed. A page has at most 512 KiB. With
/// `follow=true` the answer is a stream of `output` events (`{data, offset}`; reconnect with `offset`), and at the end
/// of the command one `end` event (`{attempt, size_bytes}`). An `error` event (`{error, message, code}`) is the last of
/// a broken stream. A key that is bound to a VM can read the logs of the ticket that this VM works on.
#[utoipa::path(
    get, path = "/api/tickets/{id}/log", tag = "tickets", operation_id = "ticket_log",
    security(("bearer" = ["tickets:read"])),
    params(
        ("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000"),
        LogQuery,
    ),
    responses(
        (status = 200, description = "A page of the log, or a stream of it", content(
            (TicketLog = "application/json"), (String = "text/event-stream"),
        )),
        TicketLogRefused,
    )
)]
pub(super) async fn log(
    State(state): State<TicketsState>,
    caller: Caller<TicketRead>,
    Segment(id): Segment,
    Query(query): Query<LogQuery>,
) -> Result<Response, Refusal> {
    let vm = query.vm.as_deref().map(vm_id).transpose()?;
    let offset = query.offset.unwrap_or(0);
    check_range("offset", offset, 0..=MAX_BYTE_OFFSET)?;
    let mut read = ReadLog {
        account: caller.account.id,
        caller_vm: caller.key.vm,
        ticket: ticket_id(&id)?,
        attempt: query.attempt,
        vm,
        offset,
        limit: PAGE_BYTES,
    };
    let encoding = query.encoding.unwrap_or_default();
    if query.follow != Some(true) {
        caller.memory.reserve(MAX_PAGE_JSON_BYTES).await?;
        let page = state.store.read_log(read).await?;
        return Ok(Json(to_api(&read, page, encoding)).into_response());
    }
    read.limit = 1;
    let first_page = state.store.read_log(read).await?;
    // The stream stays with this attempt, even if a later one begins.
    let next_read =
        ReadLog { attempt: Some(first_page.attempt), vm: Some(first_page.vm), limit: PIECE_BYTES, ..read };
    let followed = LogStream {
        commits: state.store.commits(),
        access_lost: Box::pin(access_lost(state.store.clone(), &caller)),
        closing: Box::pin(server_closing(state.stopping.clone())),
        store: state.store,
        next_read,
        text: (encoding == OutputEncoding::Utf8).then(Utf8Decoder::default),
    };
    Ok(sse::respond(followed.into_events()))
}

fn vm_id(text: &str) -> Result<VmId, Failure> {
    text.parse().map_err(|_| {
        let message =
            format!("`vm` is `{text}`; give the id of the VM, `vm_` and 26 characters; it may have ended");
        Failure::new(ErrorCode::InvalidValue, message)
    })
}

fn to_api(query: &ReadLog, page: LogPage, encoding: OutputEncoding) -> TicketLog {
    let LogPage { attempt, vm, offset, bytes, size, running, .. } = page;
    let end = offset + bytes.len() as u64;
    let (output, pending) = match encoding {
        OutputEncoding::Base64 => (BASE64.encode(&bytes), 0),
        OutputEncoding::Utf8 => {
            let mut pieces = Utf8Decoder::default();
            let mut text = pieces.push(&bytes);
            // An incomplete character that may still be completed goes to the next page.
            let pending = if running || end < size { pieces.pending() as u64 } else { 0 };
            if pending == 0 {
                text.push_str(&pieces.finish());
            }
            (text, pending)
        }
    };
    TicketLog {
        ticket: query.ticket,
        attempt,
        vm,
        offset,
        next_offset: end - pending,
        size_bytes: size,
        output,
        encoding,
        running,
        truncated: end < size,
    }
}

/// A stream of a log.
struct LogStream {
    store: Arc<dyn VmStore>,
    next_read: ReadLog,
    /// Decodes the output to text, and keeps an incomplete last character. `None`: base64.
    text: Option<Utf8Decoder>,
    commits: watch::Receiver<u64>,
    access_lost: Pin<Box<dyn Future<Output = Failure> + Send>>,
    /// Completes when the server shuts down.
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl LogStream {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(Some(self), |followed| async move {
            let mut followed = followed?;
            let refusal = match followed.next().await {
                Ok((event, false)) => return Some((Ok(event), Some(followed))),
                Ok((event, true)) => return Some((Ok(event), None)),
                Err(refusal) => refusal,
            };
            Some((Ok(sse::error(&refusal, "a log")), None))
        })
    }

    /// The next event, and whether it is the last.
    async fn next(&mut self) -> Result<(Event, bool), Refusal> {
        let Self { store, next_read, text, commits, access_lost, closing } = self;
        tokio::select! {
            biased;
            failure = access_lost => Err(failure.into()),
            () = closing => Err(Refusal::new(ErrorCode::ShuttingDown, "the server is shutting down; reconnect with the last offset")),
            page = next_page(store, next_read, commits) => {
                let page = page?;
                next_read.offset = page.offset + page.bytes.len() as u64;
                Ok(encode(&page, next_read.offset, text))
            }
        }
    }
}

/// Waits for further output or the end of the command. Cancel safe.
async fn next_page(
    store: &Arc<dyn VmStore>,
    wanted: &ReadLog,
    commits: &mut watch::Receiver<u64>,
) -> Result<LogPage, Refusal> {
    loop {
        // Marked as seen before the read, so that a commit during the read wakes the next one.
        commits.borrow_and_update();
        let (reader, query) = (Arc::clone(store), *wanted);
        // A separate task waits for the store, because this future is polled only while the caller reads.
        let reading = AbortOnDropHandle::new(tokio::spawn(async move { reader.read_log(query).await }));
        let page = reading.await.map_err(|error| Refusal::internal(error.to_string()))??;
        if !page.bytes.is_empty() || !page.running {
            return Ok(page);
        }
        sleep(MIN_READ_INTERVAL).await;
        let _ = timeout(POLL_INTERVAL, commits.changed()).await;
    }
}

fn encode(page: &LogPage, end: u64, text: &mut Option<Utf8Decoder>) -> (Event, bool) {
    if page.bytes.is_empty() {
        return (sse::event("end", &LogEnd { attempt: page.attempt, size_bytes: page.size }), true);
    }
    let (data, pending) = match text {
        None => (BASE64.encode(&page.bytes), 0),
        Some(pieces) => {
            let data = pieces.push(&page.bytes);
            (data, pieces.pending() as u64)
        }
    };
    (sse::event("output", &ExecData { data, offset: end - pending }), false)
}
