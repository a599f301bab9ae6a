//! Searching below a folder for file names and for lines, with the libraries of ripgrep, on several threads.

mod grep;
mod ignored;
mod names;
mod open;
mod pattern;
mod walk;

#[cfg(test)]
mod tests;

use std::{
    future::{Future, ready},
    sync::{Arc, LazyLock},
    time::Duration,
};

use skep_api::{
    budget::MAX_ANSWER_BYTES,
    files::{GrepFiles, SearchFiles},
};
use tokio::sync::{Semaphore, oneshot};

use self::pattern::COMPILED_BYTES;
use crate::{Error, Place, Roots, Run, cancellation::Cancellation};

/// The time limit of a search. When it is over, the answer is what was found so far.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The most searches at the same time. Each has its own threads.
const MAX_SEARCHES: usize = 8;
static PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_SEARCHES)));

/// The memory of a search in bytes: the answer and the results so far, and the pattern compiled for both directions.
const MEMORY_BYTES: u64 = (MAX_ANSWER_BYTES + 2 * COMPILED_BYTES) as u64;

impl Run for SearchFiles {
    fn memory_bytes(&self, _: &Place) -> impl Future<Output = u64> + Send {
        ready(MEMORY_BYTES)
    }

    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        run_cancellable(place, move |roots, cancellation| names::search(roots, &self, cancellation)).await
    }
}

impl Run for GrepFiles {
    fn memory_bytes(&self, _: &Place) -> impl Future<Output = u64> + Send {
        ready(MEMORY_BYTES)
    }

    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        run_cancellable(place, move |roots, cancellation| grep::grep(roots, &self, cancellation)).await
    }
}

async fn run_cancellable<T: Send + 'static>(
    place: &Place,
    work: impl FnOnce(&Roots, &Cancellation) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    // The semaphore is never closed. A caller that leaves while it waits gets no permit; a running search keeps its
    // permit until it ends.
    let permit = Arc::clone(&PERMITS).acquire_owned().await.map_err(|_| Error::WorkerFailed)?;
    let place = place.clone();
    let (cancellation, cancel_guard) = Cancellation::with_time_limit(TIME_LIMIT);
    let (answer, answered) = oneshot::channel();
    let search = move || {
        let outcome = run_fenced(&place, |roots| work(roots, &cancellation));
        drop(permit);
        // Fails if the caller has left.
        let _ = answer.send(outcome);
    };
    // A new thread, since the fence stays on a thread until it ends.
    std::thread::Builder::new().name("search".to_owned()).spawn(search).map_err(Error::NotConfined)?;
    let searched = answered.await;
    drop(cancel_guard);
    searched.map_err(|_| Error::WorkerFailed)?
}

fn run_fenced<T>(place: &Place, work: impl FnOnce(&Roots) -> Result<T, Error>) -> Result<T, Error> {
    let roots = place.roots()?;
    if let Some(fence) = place.walk_fence() {
        fence(&roots.handles()).map_err(Error::NotConfined)?;
    }
    work(&roots)
}
