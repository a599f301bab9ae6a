//! Writes the output of a command that works on a ticket to the store while it runs.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use skep_api::{
    VmId,
    exec::{ExecEvent, ExecExit},
};
use skep_channel::Error;
use skep_store::{AppendLog, LogPosition, Store};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};

use crate::{command::LIMIT, vm::VmHandle};

/// How long output is buffered before it is written.
const GATHERED_FOR: Duration = Duration::from_millis(250);
/// How much output is buffered, in bytes.
const GATHERED_BYTES: usize = 256 << 10;
/// Average rate limit per command, in bytes per second. A command that prints more blocks, as on a full pipe.
const RATE: f64 = 2.0 * 1024.0 * 1024.0;
/// Back-off between attempts at the store. Doubles up to `MAX_BACKOFF`.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Concurrent writes of all logs, so that they do not delay other requests to the store.
static WRITES: Semaphore = Semaphore::const_new(2);

pub(crate) struct RunLog {
    store: Arc<dyn Store>,
    vm: VmId,
    gathered: Vec<u8>,
    position: LogPosition,
    /// When the buffer is written at the latest.
    due: Option<Instant>,
}

impl RunLog {
    /// Continues the log after the part that an earlier server wrote.
    pub(crate) async fn resume(store: &Arc<dyn Store>, vm: VmId) -> Self {
        let mut pause = FIRST_PAUSE;
        let position = loop {
            match store.log_position(vm).await {
                Ok(position) => break position,
                Err(error) => tracing::warn!(%vm, %error, "the log of VM {vm} was not read: {error}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        Self { store: Arc::clone(store), vm, gathered: Vec::new(), position, due: None }
    }

    /// Writes the output until the command ends. If the events break off, the output so far is written.
    ///
    /// # Errors
    /// The guest refused, ended, or did not answer.
    pub(crate) async fn follow(&mut self, vm: &VmHandle, exec_id: &str) -> Result<ExecExit, Error> {
        let exit = self.gather(vm, exec_id).await;
        self.write().await;
        exit
    }

    async fn gather(&mut self, vm: &VmHandle, exec_id: &str) -> Result<ExecExit, Error> {
        let LogPosition { stdout, stderr } = self.position;
        let mut events = vm.guest.attach(exec_id, stdout, stderr, LIMIT).await?.outliving();
        loop {
            let next = match self.due {
                None => Ok(events.next().await),
                Some(due) => timeout_at(due, events.next()).await,
            };
            match next {
                Err(_) => self.write().await,
                Ok(Some(Ok(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes)))) => {
                    self.gathered.extend_from_slice(&bytes);
                    // The guest is not trusted, and the store's integers are signed.
                    let most = i64::MAX.unsigned_abs();
                    self.position = LogPosition {
                        stdout: events.stdout_offset().min(most),
                        stderr: events.stderr_offset().min(most),
                    };
                    self.due.get_or_insert_with(|| Instant::now() + GATHERED_FOR);
                    if self.gathered.len() >= GATHERED_BYTES {
                        self.write().await;
                    }
                }
                Ok(Some(Ok(ExecEvent::Exit(exit)))) => return Ok(exit),
                Ok(Some(Err(error))) => return Err(error),
                Ok(None) => {
                    return Err(Error::Malformed("the events of a command ended before its exit".to_owned()));
                }
            }
        }
    }

    /// Writes the buffer. If the store fails, the output is lost: the command must not wait for a full disk.
    async fn write(&mut self) {
        self.due = None;
        if self.gathered.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.gathered);
        let (vm, length, begun) = (self.vm, bytes.len(), Instant::now());
        let append = AppendLog { vm, bytes, position: self.position };
        let written = {
            let _permit = WRITES.acquire().await;
            self.store.append_log(append).await
        };
        if let Err(error) = written {
            tracing::warn!(%vm, %error, "{length} bytes of the log of VM {vm} are lost: {error}");
        }
        #[expect(clippy::cast_precision_loss, reason = "a few hundred KiB")]
        let least = Duration::from_secs_f64(length as f64 / RATE);
        sleep(least.saturating_sub(begun.elapsed())).await;
    }
}
