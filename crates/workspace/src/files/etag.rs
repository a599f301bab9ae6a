//! ETags of files.

use rustix::fs::Stat;

/// The ETag of a file, made of its inode, size, modification time and change time.
///
/// A strong ETag (RFC 9110, section 8.8.3): two states of a file within one tick of the kernel's clock differ in size
/// or in inode, since this API replaces a file by a new one.
pub(super) fn of(stat: &Stat) -> String {
    format!(
        "\"{:x}-{:x}-{:x}-{:x}\"",
        stat.st_ino,
        stat.st_size,
        i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
    )
}
