//! `GET /api/swarm/metrics`: samples of what the account's VMs use, as a list or as a stream.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::{
    extract::State,
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::{Stream, stream};
use http::HeaderMap;
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    AccountId, ErrorCode, Failure,
    budget::MAX_ANSWER_BYTES,
    swarm::{SwarmSample, SwarmSamples},
};
use skep_store::Store;
use skep_swarm::{AccountSamples, MetricsHistory, SAMPLE_INTERVAL};
use tokio::sync::watch;
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    access_watch::{access_lost, server_closing},
    error::Refusal,
    extract::{Caller, Query, SwarmRead},
    json::Json,
    openapi::refusals::SwarmSamplesRefused,
    sse,
    swarm_handle::SwarmHandle,
};

/// The header with which a browser resumes a stream.
const LAST_EVENT_ID: &str = "last-event-id";

#[derive(Clone)]
pub(crate) struct SwarmMetricsState {
    pub vms: SwarmHandle,
    pub store: Arc<dyn Store>,
    /// True when the server shuts down.
    pub stopping: watch::Receiver<bool>,
}

pub(crate) fn routes(state: SwarmMetricsState) -> Routes {
    vec![routes!(samples).with_state(state)]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SamplesQuery {
    /// A time (RFC 3339): only samples after it. Default: all that are kept; with `follow=true`, those from now on.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Whether to stream the samples as they are taken.
    #[param(example = false)]
    follow: Option<bool>,
}

/// Read samples of the VMs
///
/// What each of the account's VMs uses of processors and memory, and the sums: a sample each 2 s, of the last 15 minutes,
/// or less where thousands of VMs fill the memory for samples. They are in memory only, and begin anew when the server
/// starts. With `follow=true` the answer is a stream of `sample` events, whose `id` is the time of the sample: a client
/// resumes with it as `Last-Event-ID` or `since`. An `error` event (`{error, message, code}`) is the last of a stream
/// that the server ends, for example because the key was revoked or the session ended.
#[utoipa::path(
    get, path = "/api/swarm/metrics", tag = "swarm", operation_id = "swarm_metrics",
    security(("bearer" = ["swarm:read"])),
    params(
        SamplesQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "As `since`, over which it takes precedence; sent by browsers"),
    ),
    responses(
        (status = 200, description = "The samples, or a stream of them", content(
            (SwarmSamples = "application/json"), (SwarmSample = "text/event-stream"),
        )),
        SwarmSamplesRefused,
    )
)]
async fn samples(
    State(state): State<SwarmMetricsState>,
    caller: Caller<SwarmRead>,
    Query(query): Query<SamplesQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let since = last_event_time(&headers)?.or(query.since);
    let history = state.vms.swarm().await?.history();
    let account = caller.account.id;
    if query.follow != Some(true) {
        caller.memory.reserve(MAX_ANSWER_BYTES as u64).await?;
        let read = tokio::task::spawn_blocking(move || history.after(account, since)).await;
        let AccountSamples { samples, truncated } =
            read.map_err(|error| Refusal::internal(error.to_string()))?;
        let interval_ms = u64::try_from(SAMPLE_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        return Ok(Json(SwarmSamples { interval_ms, samples, truncated }).into_response());
    }
    let followed = SampleStream {
        position: history.position(since),
        history,
        account,
        access_lost: Box::pin(access_lost(state.store.clone(), &caller)),
        closing: Box::pin(server_closing(state.stopping.clone())),
    };
    Ok(sse::respond(followed.into_events()))
}

/// The time of the last sample that a browser received.
fn last_event_time(headers: &HeaderMap) -> Result<Option<Timestamp>, Failure> {
    let Some(id) = headers.get(LAST_EVENT_ID).filter(|id| !id.is_empty()) else { return Ok(None) };
    let time = id.to_str().ok().and_then(|text| text.parse().ok());
    time.map(Some).ok_or_else(|| {
        let message =
            "`Last-Event-ID` is not the `id` of a sample, which is a time; leave it out to begin now";
        Failure::new(ErrorCode::InvalidValue, message)
    })
}

struct SampleStream {
    history: MetricsHistory,
    account: AccountId,
    /// The last sample that was sent or skipped.
    position: u64,
    access_lost: Pin<Box<dyn Future<Output = Failure> + Send>>,
    /// Completes when the server shuts down.
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl SampleStream {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(Some(self), |stream| async move {
            let mut stream = stream?;
            let SampleStream { history, account, position, access_lost, closing } = &mut stream;
            let refusal: Refusal = tokio::select! {
                biased;
                failure = access_lost => failure.into(),
                () = closing => Refusal::new(ErrorCode::ShuttingDown, "the server is shutting down; reconnect"),
                (next, sample) = history.next(*account, *position) => {
                    *position = next;
                    let event = sse::event("sample", &sample).id(format!("{:.3}", sample.at));
                    return Some((Ok(event), Some(stream)));
                }
            };
            Some((Ok(sse::error(&refusal, "samples")), None))
        })
    }
}
