//! What a connection's requests are doing, so that its silence can be judged.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use bytes::Bytes;
use http::{
    HeaderValue, StatusCode, Version,
    header::{CONNECTION, TRANSFER_ENCODING, UPGRADE},
};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

/// The requests of one connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tempo(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    under_way: usize,
    begun: u64,
    quiet_since: Instant,
    /// Another protocol is spoken on it now, with times of its own.
    upgraded: bool,
    /// Answers whose next part waits for room, and since when.
    held: HashMap<u64, Instant>,
}

/// How a connection stands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Standing {
    /// No request is under way since then.
    Quiet(Instant),
    /// Requests are under way. The caller leaves an answer unread since then.
    Busy(Option<Instant>),
    /// It is HTTP no more.
    Upgraded,
}

impl Tempo {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            under_way: 0,
            begun: 0,
            quiet_since: Instant::now(),
            upgraded: false,
            held: HashMap::new(),
        })))
    }

    pub(super) fn standing(&self) -> Standing {
        let state = self.state();
        match state.under_way {
            _ if state.upgraded => Standing::Upgraded,
            0 => Standing::Quiet(state.quiet_since),
            _ => Standing::Busy(state.held.values().min().copied()),
        }
    }

    fn begin(&self) -> UnderWay {
        let mut state = self.state();
        state.under_way += 1;
        state.begun += 1;
        UnderWay { tempo: self.clone(), number: state.begun }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request, until its answer is handed over or given up.
struct UnderWay {
    tempo: Tempo,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.tempo.state();
        state.held.remove(&self.number);
        state.under_way -= 1;
        state.quiet_since = Instant::now();
    }
}

/// The layer that tells a connection of its requests. To be put around everything else.
pub(crate) async fn track(request: Request, next: Next) -> Response {
    let Some(tempo) = request.extensions().get::<Tempo>().cloned() else { return next.run(request).await };
    // Where such a body ends only the HTTP library knows: what comes behind it was not looked at as a request's beginning.
    let last = request.version() <= Version::HTTP_11
        && [TRANSFER_ENCODING, UPGRADE].iter().any(|name| request.headers().contains_key(name));
    let under_way = tempo.begin();
    let mut response = next.run(request).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        tempo.state().upgraded = true;
        return response;
    }
    if last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Answering { body, under_way }))
}

/// The body of an answer on its way.
struct Answering {
    body: Body,
    under_way: UnderWay,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Whoever asks for more has found room for what there was.
        let number = self.under_way.number;
        self.under_way.tempo.state().held.remove(&number);
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if matches!(frame, Some(Ok(_))) {
            self.under_way.tempo.state().held.insert(number, Instant::now());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
