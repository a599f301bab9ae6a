//! Searching below a folder: for names, and for lines. By the libraries of ripgrep, on all processors.

mod grep;
mod names;
mod pattern;
mod walk;

#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use skep_api::files::{GrepFiles, SearchFiles};

use crate::{Error, Place, Roots, Run};

/// How long a search may take. What it found until then is the answer.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// When a search ends at the latest: at its time, or when nobody waits for it any more.
#[derive(Debug, Clone)]
struct Leash {
    cut: Arc<AtomicBool>,
    deadline: Instant,
}

/// Ends a search when it is dropped.
struct CutOnDrop(Arc<AtomicBool>);

impl Leash {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) || Instant::now() > self.deadline
    }
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Run for SearchFiles {
    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        while_awaited(place, move |roots, leash| names::search(roots, &self, leash)).await
    }
}

impl Run for GrepFiles {
    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        while_awaited(place, move |roots, leash| grep::grep(roots, &self, leash)).await
    }
}

async fn while_awaited<T: Send + 'static>(
    place: &Place,
    work: impl FnOnce(&Roots, &Leash) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let place = place.clone();
    let cut = CutOnDrop(Arc::default());
    let leash = Leash { cut: Arc::clone(&cut.0), deadline: Instant::now() + TIME_LIMIT };
    let searched = tokio::task::spawn_blocking(move || work(&*place.roots()?, &leash)).await;
    drop(cut);
    searched.map_err(|_| Error::Broken)?
}
