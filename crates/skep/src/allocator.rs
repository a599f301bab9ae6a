//! How the C library's allocator treats large buffers.

/// Buffers from this size on are mapped each by itself.
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Has large buffers mapped each by itself: they grow without being copied, and are the kernel's again once they are dropped.
/// By itself the allocator takes buffers of up to 32 MiB from its heaps after the first such one was dropped (mallopt(3)), and
/// answers that are built at once then leave heaps that stay as large as all of them together.
pub(crate) fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets a number inside the allocator, before there is another thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}
