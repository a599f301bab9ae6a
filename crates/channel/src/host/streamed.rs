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
    guest::{malformed, to_json},
    magic_split::without_magic,
};
use crate::{
    Content,
    head::{self, HeadError},
};

impl Guest {
    /// Runs an operation with content. The returned content is read from the guest as fast as the caller takes it;
    /// dropping it early cancels the operation.
    ///
    /// # Errors
    /// The guest's error, or a lost connection. [`Error::Timeout`] if for [`Operation::time_limit`] no answer came and
    /// no content was taken.
    pub async fn call_streamed<O: Operation>(
        &self,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        // Only uploads take a permit.
        let _permit = match content {
            // The semaphore is never closed.
            Some(_) => self.uploads().acquire().await.ok(),
            None => None,
        };
        self.call_without_permit(operation, content).await
    }

    /// As [`Self::call_streamed`], without a permit: for content that the guest buffers completely.
    pub(super) async fn call_without_permit<O: Operation>(
        &self,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        let progress = Arc::new(UploadProgress::default());
        let watched = progress.track(content.unwrap_or_else(|| Box::pin(stream::empty())));
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://guest/streams/{}", O::NAME))
            .body(head::join(&to_json(operation)?, watched))
            .map_err(malformed)?;
        let answer = async {
            let body = self.send(request).await?.into_body();
            head::split(body, operation.answer_limit().bytes).await.map_err(|error| match error {
                HeadError::Broken(_) => Error::Ended,
                other => malformed(format!("the answer has no valid head: {other}")),
            })
        };
        let answer = with_progress_timeout(operation.time_limit(), &progress.pieces, answer).await;
        let (answer, content) = answer.map_err(|error| progress.cause(error))?;
        Ok((answer::parse(answer.into(), operation.answer_limit().values).await?, content))
    }
}

/// The progress of the content of a request.
#[derive(Default)]
struct UploadProgress {
    /// The number of chunks taken so far.
    pieces: AtomicU64,
    /// The error that ended the content early, if there was one.
    read_error: OnceLock<String>,
}

impl UploadProgress {
    /// Counts the chunks as they are taken, and splits them so that they contain no marker.
    fn track(self: &Arc<Self>, content: Content) -> Content {
        let progress = Arc::clone(self);
        let watched = content.inspect(move |piece| {
            progress.pieces.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = piece {
                progress.read_error.get_or_init(|| error.to_string());
            }
        });
        Box::pin(watched.flat_map(|piece| match piece {
            Ok(piece) => stream::iter(without_magic(piece)).map(Ok).left_stream(),
            Err(error) => stream::once(std::future::ready(Err(error))).right_stream(),
        }))
    }

    /// The cause of a failed request: an error of our own content takes precedence over what the guest made of it.
    fn cause(&self, error: Error) -> Error {
        match self.read_error.get() {
            Some(reason) => {
                let message = format!("the body was cut short, so nothing was written: {reason}");
                Failure::new(ErrorCode::MalformedBody, message).into()
            }
            None => error,
        }
    }
}

async fn with_progress_timeout<T>(
    limit: Duration,
    progress: &AtomicU64,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut answer = pin!(answer);
    loop {
        let before = progress.load(Ordering::Relaxed);
        match timeout(limit, &mut answer).await {
            Ok(answer) => return answer,
            Err(_) if progress.load(Ordering::Relaxed) != before => {}
            Err(_) => return Err(Error::Timeout(limit)),
        }
    }
}
