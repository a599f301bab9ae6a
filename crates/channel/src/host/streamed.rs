//! Operations whose request or answer is followed by a stream of bytes.

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use http::{Method, Request};
use skep_api::{ErrorCode, Failure, Operation};
use tokio::time::timeout;

use super::{
    Error, Guest, answer,
    guest::{malformed, tell},
    pieces::without_magic,
};
use crate::{
    Content,
    head::{self, Headless},
};

impl Guest {
    /// Runs an operation with content. The returned content is read from the guest as fast as the caller takes it;
    /// dropping it early cancels the operation.
    ///
    /// # Errors
    /// The guest's error, or a lost connection. [`Error::Silent`] if for [`Operation::time_limit`] no answer came and
    /// no content was taken.
    pub async fn call_streamed<O: Operation>(
        &self,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        // Only uploads take a permit.
        let _room = match content {
            // The semaphore is never closed.
            Some(_) => self.uploads().acquire().await.ok(),
            None => None,
        };
        self.call_with(operation, content).await
    }

    /// As [`Self::call_streamed`], without a permit: for content that the guest buffers completely.
    pub(super) async fn call_with<O: Operation>(
        &self,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        let sent = Arc::new(Sent::default());
        let watched = sent.watch(content.unwrap_or_else(|| Box::pin(stream::empty())));
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://guest/streams/{}", O::NAME))
            .body(head::join(&tell(operation)?, watched))
            .map_err(malformed)?;
        let answer = async {
            let body = self.send(request).await?.into_body();
            head::split(body, operation.answer_limit().bytes).await.map_err(|error| match error {
                Headless::Broken(_) => Error::Ended,
                other => malformed(format!("the answer has no valid head: {other}")),
            })
        };
        let answer = while_it_moves(operation.time_limit(), &sent.pieces, answer).await;
        let (answer, content) = answer.map_err(|error| sent.cause(error))?;
        Ok((answer::parse(answer.into(), operation.answer_limit().values).await?, content))
    }
}

/// The progress of the content of a request.
#[derive(Default)]
struct Sent {
    /// The number of chunks taken so far.
    pieces: AtomicU64,
    /// The error that ended the content early, if there was one.
    broken: OnceLock<String>,
}

impl Sent {
    /// Counts the chunks as they are taken, and splits them so that they contain no marker.
    fn watch(self: &Arc<Self>, content: Content) -> Content {
        let sent = Arc::clone(self);
        let watched = content.inspect(move |piece| {
            sent.pieces.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = piece {
                sent.broken.get_or_init(|| error.to_string());
            }
        });
        Box::pin(watched.flat_map(|piece| match piece {
            Ok(piece) => stream::iter(without_magic(piece)).map(Ok).left_stream(),
            Err(error) => stream::once(std::future::ready(Err(error))).right_stream(),
        }))
    }

    /// The cause of a failed request: an error of our own content takes precedence over what the guest made of it.
    fn cause(&self, error: Error) -> Error {
        match self.broken.get() {
            Some(reason) => {
                let message = format!("the body was cut short, so nothing was written: {reason}");
                Failure::new(ErrorCode::MalformedBody, message).into()
            }
            None => error,
        }
    }
}

async fn while_it_moves<T>(
    limit: Duration,
    moved: &AtomicU64,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut answer = pin!(answer);
    loop {
        let before = moved.load(Ordering::Relaxed);
        match timeout(limit, &mut answer).await {
            Ok(answer) => return answer,
            Err(_) if moved.load(Ordering::Relaxed) != before => {}
            Err(_) => return Err(Error::Silent(limit)),
        }
    }
}
