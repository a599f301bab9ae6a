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
    budget::LONGEST_ANSWER,
    files::{GrepFiles, SearchFiles},
};
use tokio::sync::{Semaphore, oneshot};

use self::pattern::COMPILED_BYTES;
use crate::{Error, Place, Roots, Run, leash::Leash};

/// The time limit of a search. When it is over, the answer is what was found so far.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The most searches at the same time. Each has its own threads.
const MOST_AT_ONCE: usize = 8;
static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MOST_AT_ONCE)));

/// The memory of a search in bytes: the answer and the results so far, and the pattern compiled for both directions.
const MEMORY_BYTES: u64 = (LONGEST_ANSWER + 2 * COMPILED_BYTES) as u64;

impl Run for SearchFiles {
    fn memory_bytes(&self, _: &Place) -> impl Future<Output = u64> + Send {
        ready(MEMORY_BYTES)
    }

    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        while_awaited(place, move |roots, leash| names::search(roots, &self, leash)).await
    }
}

impl Run for GrepFiles {
    fn memory_bytes(&self, _: &Place) -> impl Future<Output = u64> + Send {
        ready(MEMORY_BYTES)
    }

    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        while_awaited(place, move |roots, leash| grep::grep(roots, &self, leash)).await
    }
}

async fn while_awaited<T: Send + 'static>(
    place: &Place,
    work: impl FnOnce(&Roots, &Leash) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    // The semaphore is never closed. A caller that leaves while it waits gets no permit; a running search keeps its
    // permit until it ends.
    let turn = Arc::clone(&TURNS).acquire_owned().await.map_err(|_| Error::Broken)?;
    let place = place.clone();
    let (leash, cut) = Leash::of(TIME_LIMIT);
    let (answer, answered) = oneshot::channel();
    let search = move || {
        let outcome = behind_the_fence(&place, |roots| work(roots, &leash));
        drop(turn);
        // Fails if the caller has left.
        let _ = answer.send(outcome);
    };
    // A new thread, since the fence stays on a thread until it ends.
    std::thread::Builder::new().name("search".to_owned()).spawn(search).map_err(Error::Unfenced)?;
    let searched = answered.await;
    drop(cut);
    searched.map_err(|_| Error::Broken)?
}

fn behind_the_fence<T>(place: &Place, work: impl FnOnce(&Roots) -> Result<T, Error>) -> Result<T, Error> {
    let roots = place.roots()?;
    if let Some(fence) = place.walk_fence() {
        fence(&roots.handles()).map_err(Error::Unfenced)?;
    }
    work(&roots)
}
