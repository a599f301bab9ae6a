//! Tags that change with a file.

use rustix::fs::Stat;

/// The tag of a file: of its inode and of each of its changes, which the kernel counts by the time of the last one.
///
/// In the form that HTTP has for it (RFC 9110, section 8.8.3), and a strong one: two states of a file within one tick of
/// the kernel's clock differ in size, or were written by a replacement, which has another inode.
pub(super) fn of(stat: &Stat) -> String {
    format!(
        "\"{:x}-{:x}-{:x}-{:x}\"",
        stat.st_ino,
        stat.st_size,
        i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
    )
}
