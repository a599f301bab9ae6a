//! The list of items to copy.

use std::path::{Component, Path, PathBuf};

use skep_api::path::LinkTarget;

/// A file, a folder or a link to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Relative to the source; empty for the source itself.
    pub below: PathBuf,
    /// Permission bits, without setuid, setgid and sticky.
    pub mode: u32,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File {
        size_bytes: u64,
    },
    /// A symbolic link, which is copied and never followed.
    Link {
        target: LinkTarget,
    },
}

/// All items; each folder before its content.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub items: Vec<Item>,
    /// Devices, sockets and FIFOs, which are not copied.
    pub left_out: Vec<PathBuf>,
}

impl Plan {
    pub(super) fn add_file(&mut self, below: &Path, mode: u32, size_bytes: u64) {
        // No setuid: a file from a VM must not become a program that runs as the user who copied it.
        self.items.push(Item { below: below.into(), mode: mode & 0o777, kind: Kind::File { size_bytes } });
    }

    pub(super) fn add_folder(&mut self, below: &Path, mode: u32) {
        // The copying user has to be able to write into the folder.
        self.items.push(Item { below: below.into(), mode: mode & 0o777 | 0o700, kind: Kind::Folder });
    }

    pub(super) fn add_link(&mut self, below: &Path, target: LinkTarget) {
        self.items.push(Item { below: below.into(), mode: 0o777, kind: Kind::Link { target } });
    }

    pub(super) fn size_bytes(&self) -> u64 {
        let sizes = self.items.iter().map(|item| match item.kind {
            Kind::Folder | Kind::Link { .. } => 0,
            Kind::File { size_bytes } => size_bytes,
        });
        sizes.sum()
    }
}

/// Whether the path is a single normal component, and so cannot lead out of its folder.
pub(super) fn is_name(name: &Path) -> bool {
    let mut components = name.components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_components() {
        for name in ["notes.md", "...", " ", "-rf"] {
            assert!(is_name(Path::new(name)), "{name}");
        }
        for name in ["", ".", "..", "/", "/etc", "a/b", "../a", "a/", "a/..", "./a"] {
            assert!(!is_name(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn setuid_and_setgid_are_removed() {
        let mut plan = Plan::default();
        plan.add_file(Path::new("ping"), 0o4755, 7);
        plan.add_folder(Path::new("tmp"), 0o1555);
        assert_eq!(plan.items[0].mode, 0o755);
        assert_eq!(plan.items[1].mode, 0o755);
        assert_eq!(plan.size_bytes(), 7);
    }
}
