//! Configures the C library's allocator for large buffers.

/// Buffers of at least this size get a mapping of their own.
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Gives each large buffer a mapping of its own: it grows without being copied and returns to the kernel when it is
/// dropped. By default, once such a buffer was freed, the allocator takes buffers of up to 32 MiB from its heaps
/// (mallopt(3)), and the heaps keep the size of all answers that were ever built at the same time.
pub(crate) fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets a number inside the allocator; no other thread exists yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}
