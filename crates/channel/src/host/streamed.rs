//! Operations with bytes behind the request, or behind the answer.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use http::{Method, Request};
use skep_api::Operation;
use tokio::time::timeout;

use super::{
    Error, Guest,
    guest::{malformed, tell},
};
use crate::{
    Content,
    head::{self, Headless},
};

/// The longest answer ahead of bytes, in bytes.
const HEAD_BYTES: usize = 64 << 10;

impl Guest {
    /// Does an operation in the guest with bytes behind its request, where there are any. The bytes behind its answer
    /// come as fast as they are taken; dropped before their end, they end the operation there.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence: an answer is late where for [`Operation::time_limit`] neither it
    /// came nor any of the bytes was taken.
    pub async fn call_streamed<O: Operation>(
        &self,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        // Others than uploads wait for nobody.
        let _room = match content {
            // Nobody closes it.
            Some(_) => self.uploads().acquire().await.ok(),
            None => None,
        };
        let moved = Arc::new(AtomicU64::new(0));
        let counted = counted(content.unwrap_or_else(|| Box::pin(stream::empty())), &moved);
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://guest/streams/{}", O::NAME))
            .body(head::join(&tell(operation)?, counted))
            .map_err(malformed)?;
        let answer = async {
            let body = self.send(request).await?.into_body();
            head::split(body, HEAD_BYTES).await.map_err(|error| match error {
                Headless::Broken(_) => Error::Ended,
                other => malformed(format!("an answer that is none: {other}")),
            })
        };
        let (answer, content) = while_it_moves(operation.time_limit(), &moved, answer).await?;
        Ok((serde_json::from_slice(&answer).map_err(malformed)?, content))
    }
}

/// The same bytes, counted as they are taken.
fn counted(content: Content, moved: &Arc<AtomicU64>) -> Content {
    let moved = Arc::clone(moved);
    Box::pin(content.inspect(move |_| {
        moved.fetch_add(1, Ordering::Relaxed);
    }))
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
