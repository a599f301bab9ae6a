//! How much memory the limits above a group leave.

use std::{fs, path::Path};

use super::hierarchy::value_of_key;

/// The memory that a limit leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHeadroom {
    /// The limit less what is charged. Pages of files do not count as charged: the kernel takes them back.
    pub available_bytes: u64,
    pub limit_bytes: u64,
}

/// The files of one version.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Keys of `memory.stat` for the pages of files, including those of the groups below.
    file_pages: [&'static str; 2],
}

const VERSIONS: [Files; 2] = [
    Files { limit: "memory.max", usage: "memory.current", file_pages: ["inactive_file", "active_file"] },
    Files {
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        file_pages: ["total_inactive_file", "total_active_file"],
    },
];

/// The limit above a group that leaves the least, in either version. `None` if no group above has a limit.
pub(super) fn memory_headroom_above(group: &Path) -> Option<MemoryHeadroom> {
    let above = group.ancestors().skip(1);
    above
        .flat_map(|above| VERSIONS.iter().filter_map(|files| headroom(above, files)))
        .min_by_key(|left| left.available_bytes)
}

fn headroom(group: &Path, files: &Files) -> Option<MemoryHeadroom> {
    let number = |file| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // No limit is "max" in version 2, and a huge number in version 1.
    let limit_bytes = number(files.limit).filter(|limit| *limit < 1 << 60)?;
    let usage = number(files.usage)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let file_pages: u64 = files.file_pages.iter().filter_map(|key| value_of_key(&stat, key)).sum();
    let available_bytes = limit_bytes.saturating_sub(usage.saturating_sub(file_pages));
    Some(MemoryHeadroom { available_bytes, limit_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(group: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(group).unwrap();
        for (name, text) in files {
            fs::write(group.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_limit_that_leaves_the_least_counts_without_the_pages_of_files() {
        let top = tempfile::tempdir().unwrap();
        let (outer, inner) = (top.path().join("outer"), top.path().join("outer/inner"));
        assert_eq!(memory_headroom_above(&inner.join("skep")), None);
        let stat = "anon 1\ninactive_file 300\nactive_file 200\n";
        write(&outer, &[("memory.max", "2000\n"), ("memory.current", "1500\n"), ("memory.stat", stat)]);
        let least = Some(MemoryHeadroom { available_bytes: 1000, limit_bytes: 2000 });
        assert_eq!(memory_headroom_above(&inner.join("skep")), least);
        write(&inner, &[("memory.max", "max\n"), ("memory.current", "1500\n"), ("memory.stat", stat)]);
        assert_eq!(memory_headroom_above(&inner.join("skep")), least, "no limit");
        write(&inner, &[("memory.max", "1500\n")]);
        let least = Some(MemoryHeadroom { available_bytes: 500, limit_bytes: 1500 });
        assert_eq!(memory_headroom_above(&inner.join("skep")), least);
        // The limit of a group is not one of those above it.
        assert_eq!(memory_headroom_above(&inner).unwrap().limit_bytes, 2000);
    }

    #[test]
    fn version_one_counts_the_groups_below() {
        let top = tempfile::tempdir().unwrap();
        let stat = "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n";
        let files =
            [("memory.limit_in_bytes", "200"), ("memory.usage_in_bytes", "150"), ("memory.stat", stat)];
        write(top.path(), &files);
        let left = memory_headroom_above(&top.path().join("skep")).unwrap();
        assert_eq!(left, MemoryHeadroom { available_bytes: 100, limit_bytes: 200 });
    }
}
