//! One direction of a connection: its bytes are counted and read at the rate of the VM.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{ReadHalf, WriteHalf},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep_until,
};

use crate::vms::Direction;

/// The buffer of a direction at first, in bytes.
const SMALL_BYTES: usize = 8 << 10;
/// The buffer of a direction that has filled the small one several times.
const LARGE_BYTES: usize = 128 << 10;
/// How many full small buffers show that a direction moves many bytes.
const FULL_READS: u32 = 16;
/// Limit of large buffers of all VMs, 32 MiB. Directions beyond it keep their small ones.
pub(crate) const MAX_LARGE: usize = 256;
/// Those of one VM, which could keep them full for any time by a host that does not read.
pub(crate) const MAX_LARGE_OF_VM: usize = 32;

pub(crate) type LargeBuffers<'a> = [&'a Arc<Semaphore>; 2];

/// Moves bytes from one end to the other.
pub(crate) struct Transfer<'a> {
    pub(crate) from: ReadHalf<'a>,
    pub(crate) to: WriteHalf<'a>,
    /// Of all connections of a VM.
    pub(crate) direction: &'a Direction,
    /// Bytes of this connection, in both directions.
    pub(crate) moved: &'a AtomicU64,
    /// Permits of large buffers: of the VM and of all.
    pub(crate) large: LargeBuffers<'a>,
}

impl Transfer<'_> {
    /// Copies until the one end finishes, and finishes the other one.
    pub(crate) async fn run(mut self) -> io::Result<()> {
        let mut buffer = Buffer::default();
        loop {
            let read = self.from.read(&mut buffer.bytes).await?;
            if read == 0 {
                return self.to.shutdown().await;
            }
            self.direction.total.fetch_add(read as u64, Ordering::Relaxed);
            self.moved.fetch_add(read as u64, Ordering::Relaxed);
            let next = self.direction.rate.count(read as u64);
            let (filled, _) = buffer.bytes.split_at(read);
            self.to.write_all(filled).await?;
            buffer.adapt(read, self.large);
            if let Some(next) = next {
                sleep_until(next).await;
            }
        }
    }
}

/// The buffer of a direction. It is large only while it is filled.
struct Buffer {
    bytes: Box<[u8]>,
    full_reads: u32,
    /// Of a large buffer.
    permits: Option<[OwnedSemaphorePermit; 2]>,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { bytes: buffer(SMALL_BYTES), full_reads: 0, permits: None }
    }
}

impl Buffer {
    /// Takes the size for the next read, by the number of bytes of the last one.
    fn adapt(&mut self, read: usize, large: LargeBuffers<'_>) {
        if self.permits.is_some() {
            if read <= SMALL_BYTES {
                *self = Self::default();
            }
            return;
        }
        self.full_reads = if read == SMALL_BYTES { self.full_reads + 1 } else { 0 };
        if self.full_reads >= FULL_READS
            && let Some(permits) = permits(large)
        {
            *self = Self { bytes: buffer(LARGE_BYTES), full_reads: 0, permits: Some(permits) };
        }
    }
}

/// The permits of a large buffer. `None` at a limit.
fn permits([of_vm, of_all]: LargeBuffers<'_>) -> Option<[OwnedSemaphorePermit; 2]> {
    let permit = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_owned().ok();
    Some([permit(of_vm)?, permit(of_all)?])
}

fn buffer(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads that fill the buffer until it grows, or would have.
    fn fill(buffer: &mut Buffer, large: LargeBuffers<'_>) {
        (0..FULL_READS).for_each(|_| buffer.adapt(buffer.bytes.len(), large));
    }

    #[test]
    fn a_buffer_is_large_while_it_is_filled_and_below_the_limits() {
        let (of_vm, of_other, of_all) =
            (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(2)));
        let large = [&of_vm, &of_all];
        let mut first = Buffer::default();
        (1..FULL_READS).for_each(|_| first.adapt(SMALL_BYTES, large));
        first.adapt(SMALL_BYTES - 1, large);
        first.adapt(SMALL_BYTES, large);
        assert_eq!(first.bytes.len(), SMALL_BYTES, "a read between did not fill it");
        fill(&mut first, large);
        assert_eq!(first.bytes.len(), LARGE_BYTES);
        let (mut second, mut other) = (Buffer::default(), Buffer::default());
        fill(&mut second, large);
        assert_eq!(second.bytes.len(), SMALL_BYTES, "the limit of the VM");
        fill(&mut other, [&of_other, &of_all]);
        assert_eq!(other.bytes.len(), LARGE_BYTES, "the control: another VM");
        let mut third = Buffer::default();
        fill(&mut third, [&Arc::new(Semaphore::new(1)), &of_all]);
        assert_eq!(third.bytes.len(), SMALL_BYTES, "the limit of all VMs");
        first.adapt(SMALL_BYTES, large);
        assert_eq!(
            (first.bytes.len(), of_vm.available_permits(), of_all.available_permits()),
            (SMALL_BYTES, 1, 1)
        );
        fill(&mut second, large);
        assert_eq!(second.bytes.len(), LARGE_BYTES);
    }
}
