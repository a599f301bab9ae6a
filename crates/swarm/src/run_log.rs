//! The log of a command that works on a ticket: what it prints, written to the store as it comes.

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

/// How long output waits for more before it is written.
const GATHERED_FOR: Duration = Duration::from_millis(250);
/// How much of it waits, in bytes.
const GATHERED_BYTES: usize = 256 << 10;
/// What one command may write on average, in bytes per second. One that prints more waits, as for any pipe that is full.
const RATE: f64 = 2.0 * 1024.0 * 1024.0;
/// The pause before the store is asked again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Writes at once of all logs: what others ask of the store waits for no more than these.
static WRITES: Semaphore = Semaphore::const_new(2);

/// The log of one VM.
pub(crate) struct RunLog {
    store: Arc<dyn Store>,
    vm: VmId,
    gathered: Vec<u8>,
    position: LogPosition,
    /// When what was gathered is written.
    due: Option<Instant>,
}

impl RunLog {
    /// The log, where an earlier server may have begun it.
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

    /// Writes what the command prints until it ends. What came is written, also where its events break off.
    ///
    /// # Errors
    /// The guest's own words, its end, or its silence.
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
                    // The offsets are a guest's word, and the store's numbers have a sign.
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

    /// Writes what was gathered. Where the store does not take it, it is lost: the command must not wait for a disk that is full.
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
