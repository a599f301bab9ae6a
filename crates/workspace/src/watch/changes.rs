//! Translates inotify events into the changes that are reported to the caller.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::inotify::ReadFlags;
use skep_api::{
    path::{encoded, told},
    streams::{ChangeType, FileChange},
};

use super::tree::{Event, Tree};
use crate::files::is_temporary;

/// The changes of one batch of events.
pub(super) struct Changes<'a> {
    tree: &'a mut Tree,
    told: Vec<FileChange>,
}

impl<'a> Changes<'a> {
    /// Translates a batch of events.
    pub(super) fn of(tree: &'a mut Tree, events: Vec<Event>) -> io::Result<Vec<FileChange>> {
        let mut changes = Self { tree, told: Vec::new() };
        let mut events: Vec<Option<Event>> = events.into_iter().map(Some).collect();
        for at in 0..events.len() {
            let Some(event) = events[at].take() else { continue };
            if event.flags.contains(ReadFlags::MOVED_FROM) {
                let is_other = |other: &&mut Option<Event>| {
                    other.as_ref().is_some_and(|other| {
                        other.cookie == event.cookie && other.flags.contains(ReadFlags::MOVED_TO)
                    })
                };
                let other = events[at..].iter_mut().find(is_other).and_then(Option::take);
                changes.left(&event, other)?;
            } else {
                changes.happened(&event)?;
            }
            if changes.tree.gone {
                break;
            }
        }
        if !changes.tree.gone && changes.tree.is_removed() {
            changes.end();
        }
        Ok(changes.told)
    }

    fn happened(&mut self, event: &Event) -> io::Result<()> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.tell(ChangeType::Overflow, Path::new(""), None);
            // Watches folders again that may have been created while events were lost.
            return self.tree.add(PathBuf::new(), None);
        }
        if event.name.is_empty() {
            self.of_itself(event);
            return Ok(());
        }
        if event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            return self.came(event);
        }
        let Some(way) = self.way(event) else { return Ok(()) };
        if event.flags.contains(ReadFlags::DELETE) {
            self.tree.unlearn(event.folder, &event.name);
            self.tell(ChangeType::Deleted, &way, None);
        } else if event.flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            self.tell(ChangeType::Modified, &way, None);
        }
        Ok(())
    }

    /// Handles an event about a watched folder itself.
    fn of_itself(&mut self, event: &Event) {
        let left = event.flags.intersects(ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT);
        if event.folder == self.tree.top_watch && left {
            self.end();
        } else if event.flags.contains(ReadFlags::IGNORED) {
            self.tree.forget(event.folder);
        }
    }

    /// The watched top folder was removed.
    fn end(&mut self) {
        self.tell(ChangeType::Deleted, Path::new(""), None);
        self.tree.gone = true;
    }

    /// Handles a created name, or one that was moved into the tree.
    fn came(&mut self, event: &Event) -> io::Result<()> {
        let Some(way) = self.way(event) else { return Ok(()) };
        let is_new = self.tree.learn(event.folder, &event.name);
        let replaced = event.flags.contains(ReadFlags::MOVED_TO);
        match (is_new, replaced) {
            (true, _) => self.tell(ChangeType::Created, &way, None),
            (false, true) => self.tell(ChangeType::Modified, &way, None),
            // Already reported when its folder was scanned.
            (false, false) => {}
        }
        if event.flags.contains(ReadFlags::ISDIR) {
            let mut found = Vec::new();
            self.tree.add(way, Some(&mut found))?;
            for way in found.iter().filter(|way| !way.file_name().is_some_and(is_temporary)) {
                self.tell(ChangeType::Created, way, None);
            }
        }
        Ok(())
    }

    /// Handles a name that was moved away. `other` is the matching event if the target is in the tree as well.
    fn left(&mut self, event: &Event, other: Option<Event>) -> io::Result<()> {
        let from = self.way(event);
        self.tree.unlearn(event.folder, &event.name);
        let to = other.as_ref().and_then(|other| self.way(other));
        match (from, to, other) {
            (Some(from), Some(to), Some(other)) => {
                self.tree.learn(other.folder, &other.name);
                if event.flags.contains(ReadFlags::ISDIR) {
                    self.tree.rename(&from, &to);
                }
                self.tell(ChangeType::Renamed, &to, Some(&from));
            }
            (Some(from), ..) => {
                if event.flags.contains(ReadFlags::ISDIR) {
                    self.tree.remove(&from);
                }
                self.tell(ChangeType::Deleted, &from, None);
            }
            // A temporary file was renamed to its final name.
            (None, Some(_), Some(other)) => self.came(&other)?,
            _ => {}
        }
        Ok(())
    }

    /// The path of an event relative to the top. `None` for temporary files.
    fn way(&self, event: &Event) -> Option<PathBuf> {
        if is_temporary(&event.name) {
            return None;
        }
        Some(self.tree.way(event.folder)?.join(&event.name))
    }

    fn tell(&mut self, kind: ChangeType, way: &Path, from: Option<&Path>) {
        let whole = |way: &Path| {
            if way.as_os_str().is_empty() { self.tree.path.clone() } else { self.tree.path.join(way) }
        };
        let (path, from) = (whole(way), from.map(whole));
        let all = [Some(&path), from.as_ref()];
        let path_encoding = all.into_iter().flatten().find_map(|path| told(path.as_os_str()).1);
        let text = |path: &PathBuf| match path_encoding {
            Some(_) => encoded(path.as_os_str()),
            None => told(path.as_os_str()).0,
        };
        let change =
            FileChange { r#type: kind, path: text(&path), from: from.as_ref().map(text), path_encoding };
        let repeats = |last: &FileChange| {
            kind == ChangeType::Modified
                && matches!(last.r#type, ChangeType::Modified | ChangeType::Created)
                && last.path == change.path
        };
        if !self.told.last().is_some_and(repeats) {
            self.told.push(change);
        }
    }
}
