//! Streams a command as server-sent events. Dropping the response ends the command, unless the server is shutting down.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::response::{Response, sse::Event};
use data_encoding::BASE64;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderName, HeaderValue};
use skep_api::{
    ErrorCode, Failure,
    exec::{EXEC_ID_HEADER, ExecData, OutputEncoding},
};
use skep_swarm::{EndReasonReceiver, ExecEvent, ExecStream};

use super::exec_state::ExecState;
use crate::{
    access_watch::{access_lost, server_closing},
    auth::Identity,
    error::Refusal,
    helper, sse,
    utf8_decoder::Utf8Decoder,
};

/// The response that streams these events until the key is lost or the server shuts down.
pub(super) fn answer(
    events: ExecStream,
    state: &ExecState,
    caller: &Identity,
    home: ExecPlace,
    encoding: OutputEncoding,
) -> Response {
    let id = HeaderValue::from_str(events.id());
    let run = CommandStream {
        events: Some(events),
        home,
        stdout: OutputEncoder::new(encoding),
        stderr: OutputEncoder::new(encoding),
        access_lost: Box::pin(access_lost(Arc::clone(&state.store), caller)),
        closing: Box::pin(server_closing(state.closing.clone())),
    };
    let mut answer = sse::respond(run.into_events());
    // The server generates the ids, so they are valid header values.
    answer.headers_mut().extend(id.map(|id| (HeaderName::from_static(EXEC_ID_HEADER), id)));
    answer
}

#[derive(Debug)]
pub(super) enum ExecPlace {
    Server,
    Vm(EndReasonReceiver),
}

impl ExecPlace {
    /// The refusal that explains why the events of a command ended with this error.
    pub(super) async fn explain(&self, error: skep_channel::Error) -> Refusal {
        match self {
            Self::Server => helper::helper_failure(error).into(),
            Self::Vm(ending) => ending.explain(error).await.into(),
        }
    }
}

/// Encodes one of the two output streams.
#[derive(Debug)]
struct OutputEncoder {
    form: Form,
    /// Bytes of the stream received so far.
    end: u64,
}

#[derive(Debug)]
enum Form {
    Text(Utf8Decoder),
    Base64,
}

impl OutputEncoder {
    fn new(encoding: OutputEncoding) -> Self {
        let form = match encoding {
            OutputEncoding::Utf8 => Form::Text(Utf8Decoder::default()),
            OutputEncoding::Base64 => Form::Base64,
        };
        Self { form, end: 0 }
    }

    /// The events of a piece that ends at the offset `end`.
    fn push(&mut self, name: &str, bytes: &[u8], end: u64) -> Vec<Event> {
        self.end = end;
        let data = match &mut self.form {
            Form::Text(pieces) => pieces.push(bytes),
            Form::Base64 => BASE64.encode(bytes),
        };
        self.event(name, data)
    }

    fn finish(&mut self, name: &str) -> Vec<Event> {
        let data = match &mut self.form {
            Form::Text(pieces) => pieces.finish(),
            Form::Base64 => String::new(),
        };
        self.event(name, data)
    }

    fn event(&self, name: &str, data: String) -> Vec<Event> {
        let pending = match &self.form {
            Form::Text(pieces) => pieces.pending() as u64,
            Form::Base64 => 0,
        };
        let offset = self.end.saturating_sub(pending);
        if data.is_empty() { Vec::new() } else { vec![sse::event(name, &ExecData { data, offset })] }
    }
}

struct CommandStream {
    /// `None` once the stream ended.
    events: Option<ExecStream>,
    home: ExecPlace,
    stdout: OutputEncoder,
    stderr: OutputEncoder,
    /// Kept from event to event: recreated for each event, its look-up would never finish while a command floods its
    /// output.
    access_lost: Pin<Box<dyn Future<Output = Failure> + Send>>,
    /// Completes when the server is about to close the remaining connections.
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl CommandStream {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut run| async move {
            let batch = run.next().await?;
            Some((stream::iter(batch.into_iter().map(Ok)), run))
        })
        .flatten()
    }

    /// The next events, in order; `None` at the end.
    async fn next(&mut self) -> Option<Vec<Event>> {
        let events = self.events.as_mut()?;
        let next = tokio::select! {
            next = events.next() => next,
            failure = &mut self.access_lost => return Some(self.fail(&failure.into())),
            () = &mut self.closing => return Some(self.detach()),
        };
        let (stdout_end, stderr_end) = (events.stdout_offset(), events.stderr_offset());
        match next {
            Some(Ok(ExecEvent::Stdout(bytes))) => Some(self.stdout.push("stdout", &bytes, stdout_end)),
            Some(Ok(ExecEvent::Stderr(bytes))) => Some(self.stderr.push("stderr", &bytes, stderr_end)),
            Some(Ok(ExecEvent::Exit(exit))) => {
                self.events = None;
                let mut last = self.stdout.finish("stdout");
                last.extend(self.stderr.finish("stderr"));
                last.push(sse::event("exit", &exit));
                Some(last)
            }
            Some(Err(error)) => {
                let refusal = self.home.explain(error).await;
                Some(self.fail(&refusal))
            }
            None => Some(self.fail(&Refusal::internal("a command's events ended without its exit"))),
        }
    }

    /// Ends the stream at shutdown. A command in a VM keeps running, and callers can reconnect to it.
    fn detach(&mut self) -> Vec<Event> {
        let message = match self.home {
            ExecPlace::Vm(_) => {
                if let Some(events) = self.events.take() {
                    events.detach();
                }
                "the server is shutting down; the command keeps running: reconnect to it with its id from the header \
                `Skep-Exec-Id` and the last offsets"
            }
            ExecPlace::Server => "the server is shutting down, and the command with it; run it again",
        };
        self.fail(&Refusal::new(ErrorCode::ShuttingDown, message))
    }

    /// Ends the stream with an error event. Bytes of an incomplete character are not sent; a reconnect delivers all of
    /// it.
    fn fail(&mut self, refusal: &Refusal) -> Vec<Event> {
        self.events = None;
        vec![sse::error(refusal, "a command")]
    }
}
