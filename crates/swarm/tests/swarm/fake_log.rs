//! A fake log of commands that work on tickets. A write ends when the test allows it.

use std::{sync::Mutex, time::Instant};

use skep_store::AppendLog;
use tokio::sync::Semaphore;

pub(crate) struct FakeLog {
    writes: Mutex<Vec<LogWrite>>,
    /// The number of further writes that may end.
    pub(crate) allowed: Semaphore,
}

/// A write to the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWrite {
    pub(crate) bytes: usize,
    pub(crate) begun: Instant,
    pub(crate) ended: bool,
}

impl Default for FakeLog {
    fn default() -> Self {
        Self { writes: Mutex::default(), allowed: Semaphore::new(0) }
    }
}

impl FakeLog {
    /// The writes in the order in which they began.
    pub(crate) fn writes(&self) -> Vec<LogWrite> {
        self.writes.lock().unwrap().clone()
    }

    /// The number of writes that have begun and have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.writes.lock().unwrap().iter().filter(|write| !write.ended).count()
    }

    pub(crate) async fn append(&self, append: &AppendLog) {
        let number = {
            let mut writes = self.writes.lock().unwrap();
            writes.push(LogWrite { bytes: append.bytes.len(), begun: Instant::now(), ended: false });
            writes.len() - 1
        };
        self.allowed.acquire().await.unwrap().forget();
        self.writes.lock().unwrap()[number].ended = true;
    }
}
