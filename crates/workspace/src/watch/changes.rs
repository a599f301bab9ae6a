//! Translates inotify events into the changes that are reported to the caller.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::inotify::ReadFlags;
use skep_api::{
    path::{encode_path, percent_encoded},
    streams::{ChangeType, FileChange},
};

use super::tree::{Event, Tree};
use crate::files::is_temporary;

/// The changes of one batch of events.
pub(super) struct Changes<'a> {
    tree: &'a mut Tree,
    reported: Vec<FileChange>,
}

impl<'a> Changes<'a> {
    /// Translates a batch of events.
    pub(super) fn translate(tree: &'a mut Tree, events: Vec<Event>) -> io::Result<Vec<FileChange>> {
        let mut changes = Self { tree, reported: Vec::new() };
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
                changes.handle_moved_away(&event, other)?;
            } else {
                changes.handle_event(&event)?;
            }
            if changes.tree.gone {
                break;
            }
        }
        if !changes.tree.gone && changes.tree.is_removed() {
            changes.end_of_tree();
        }
        Ok(changes.reported)
    }

    fn handle_event(&mut self, event: &Event) -> io::Result<()> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.report(ChangeType::Overflow, Path::new(""), None);
            // Watches folders again that may have been created while events were lost.
            return self.tree.add(PathBuf::new(), None);
        }
        if event.name.is_empty() {
            self.handle_self_event(event);
            return Ok(());
        }
        if event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            return self.handle_created(event);
        }
        let Some(relative) = self.relative_path(event) else { return Ok(()) };
        if event.flags.contains(ReadFlags::DELETE) {
            self.tree.forget_name(event.folder, &event.name);
            self.report(ChangeType::Deleted, &relative, None);
        } else if event.flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            self.report(ChangeType::Modified, &relative, None);
        }
        Ok(())
    }

    /// Handles an event about a watched folder itself.
    fn handle_self_event(&mut self, event: &Event) {
        let left = event.flags.intersects(ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT);
        if event.folder == self.tree.top_watch && left {
            self.end_of_tree();
        } else if event.flags.contains(ReadFlags::IGNORED) {
            self.tree.forget_folder(event.folder);
        }
    }

    /// The watched top folder was removed.
    fn end_of_tree(&mut self) {
        self.report(ChangeType::Deleted, Path::new(""), None);
        self.tree.gone = true;
    }

    /// Handles a created name, or one that was moved into the tree.
    fn handle_created(&mut self, event: &Event) -> io::Result<()> {
        let Some(relative) = self.relative_path(event) else { return Ok(()) };
        let is_new = self.tree.remember(event.folder, &event.name);
        let replaced = event.flags.contains(ReadFlags::MOVED_TO);
        match (is_new, replaced) {
            (true, _) => self.report(ChangeType::Created, &relative, None),
            (false, true) => self.report(ChangeType::Modified, &relative, None),
            // Already reported when its folder was scanned.
            (false, false) => {}
        }
        if event.flags.contains(ReadFlags::ISDIR) {
            let mut found = Vec::new();
            self.tree.add(relative, Some(&mut found))?;
            for relative in found.iter().filter(|way| !way.file_name().is_some_and(is_temporary)) {
                self.report(ChangeType::Created, relative, None);
            }
        }
        Ok(())
    }

    /// Handles a name that was moved away. `other` is the matching event if the target is in the tree as well.
    fn handle_moved_away(&mut self, event: &Event, other: Option<Event>) -> io::Result<()> {
        let from = self.relative_path(event);
        self.tree.forget_name(event.folder, &event.name);
        let to = other.as_ref().and_then(|other| self.relative_path(other));
        match (from, to, other) {
            (Some(from), Some(to), Some(other)) => {
                self.tree.remember(other.folder, &other.name);
                if event.flags.contains(ReadFlags::ISDIR) {
                    self.tree.rename(&from, &to);
                }
                self.report(ChangeType::Renamed, &to, Some(&from));
            }
            (Some(from), ..) => {
                if event.flags.contains(ReadFlags::ISDIR) {
                    self.tree.remove(&from);
                }
                self.report(ChangeType::Deleted, &from, None);
            }
            // A temporary file was renamed to its final name.
            (None, Some(_), Some(other)) => self.handle_created(&other)?,
            _ => {}
        }
        Ok(())
    }

    /// The path of an event relative to the top. `None` for temporary files.
    fn relative_path(&self, event: &Event) -> Option<PathBuf> {
        if is_temporary(&event.name) {
            return None;
        }
        Some(self.tree.relative_path(event.folder)?.join(&event.name))
    }

    fn report(&mut self, kind: ChangeType, relative: &Path, from: Option<&Path>) {
        let absolute = |relative: &Path| {
            if relative.as_os_str().is_empty() {
                self.tree.path.clone()
            } else {
                self.tree.path.join(relative)
            }
        };
        let (path, from) = (absolute(relative), from.map(absolute));
        let all = [Some(&path), from.as_ref()];
        let path_encoding = all.into_iter().flatten().find_map(|path| encode_path(path.as_os_str()).1);
        let text = |path: &PathBuf| match path_encoding {
            Some(_) => percent_encoded(path.as_os_str()),
            None => encode_path(path.as_os_str()).0,
        };
        let change =
            FileChange { r#type: kind, path: text(&path), from: from.as_ref().map(text), path_encoding };
        let repeats = |last: &FileChange| {
            kind == ChangeType::Modified
                && matches!(last.r#type, ChangeType::Modified | ChangeType::Created)
                && last.path == change.path
        };
        if !self.reported.last().is_some_and(repeats) {
            self.reported.push(change);
        }
    }
}
