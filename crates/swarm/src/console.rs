//! The last part of a VM's serial log.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use skep_api::swarm::Console;
use tokio::{io::AsyncReadExt, net::UnixStream};

/// Size limit per VM, in bytes.
const MAX_LOG_BYTES: usize = 256 << 10;

/// The log of one VM.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConsoleLog(Arc<Mutex<LogBuffer>>);

#[derive(Debug, Default)]
struct LogBuffer {
    bytes: VecDeque<u8>,
    truncated: bool,
}

impl ConsoleLog {
    /// Reads until the VMM is gone. Must run for every VM: a guest blocks when its console is not read.
    pub(crate) async fn follow(self, mut stream: UnixStream) {
        let mut block = vec![0; 16 << 10];
        while let Ok(read @ 1..) = stream.read(&mut block).await {
            self.append(&block[..read]);
        }
    }

    /// The current log. Invalid UTF-8 is replaced.
    pub(crate) fn read(&self) -> Console {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let console = String::from_utf8_lossy(kept.bytes.make_contiguous()).into_owned();
        Console { console, truncated: kept.truncated }
    }

    /// The last bytes of the current log. Invalid UTF-8 is replaced.
    pub(crate) fn tail(&self, bytes: usize) -> String {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kept.bytes.make_contiguous();
        String::from_utf8_lossy(&all[all.len().saturating_sub(bytes)..]).into_owned()
    }

    fn append(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes.extend(bytes);
        let over = kept.bytes.len().saturating_sub(MAX_LOG_BYTES);
        if over > 0 {
            kept.bytes.drain(..over);
            kept.truncated = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_kept() {
        let log = ConsoleLog::default();
        log.append(b"first");
        assert_eq!(log.read(), Console { console: "first".to_owned(), truncated: false });
        log.append(&vec![b'x'; MAX_LOG_BYTES]);
        log.append(b"last");
        let read = log.read();
        assert_eq!(read.console.len(), MAX_LOG_BYTES);
        assert!(read.truncated && read.console.ends_with("xlast"));
        assert_eq!((log.tail(5), log.tail(0)), ("xlast".to_owned(), String::new()));
        assert_eq!(log.tail(usize::MAX).len(), MAX_LOG_BYTES);
    }
}
