//! Reports the changes in a work tree.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use skep_api::{
    budget::Budget,
    git::{ChangeKind, ChangedPath, GitStatus, RepositoryStatus},
    path::encode_path,
};

use super::{
    ObjectId, Reader,
    attributes::Attributes,
    branches::upstream_ref,
    content_check::without_unchanged,
    folder::Folder,
    ignore_rules::IgnoreRules,
    index::Index,
    read,
    refs::Head,
    small_file::read_small_file,
    tree_diff::FileChange,
    worktree::{FileState, walk_work_tree},
};
use crate::{
    Place,
    git::raw_diff::{changed_path, file_path},
    roots::FinalLink,
};

/// The file type in the mode of a regular file.
const REGULAR_FILE: u32 = 0o10;

/// The upstream of a branch and the distance to it.
#[derive(Default)]
struct Tracking {
    upstream: Option<String>,
    ahead: Option<u64>,
    behind: Option<u64>,
}

pub(in crate::git) async fn status(request: &GitStatus, place: &Place) -> Option<RepositoryStatus> {
    let path = request.path.clone();
    let mut status = read(place, Some(&path), compute_status).await?;
    (status.path, status.path_encoding) = encode_path(path.as_path().as_os_str());
    Some(status)
}

pub(super) fn compute_status(reader: &mut Reader<'_>) -> Option<RepositoryStatus> {
    reader.uses_default_comparison()?;
    let top = reader.open_top_folder()?;
    let index = reader.index()?;
    let (branch, head) = match reader.head()? {
        Head::Branch(name, head) => (Some(name), head),
        Head::Detached(head) => (None, Some(head)),
    };
    let Tracking { upstream, ahead, behind } = reader.tracking(branch.as_deref(), head)?;
    let tree = match &head {
        Some(head) => Some(reader.commit_tree(head)?),
        None => None,
    };
    let mut budget = Budget::default();
    let staged = staged_changes(reader.diff_index(tree, &index)?, &mut budget)?;
    let rules = reader.exclude_rules()?;
    let found = walk_work_tree(&top, &index, Some(rules), &reader.cancellation)?;
    let modified = unstaged_changes(reader, &top, &index, found.tracked, &mut budget)?;
    let fitting = |path: &[u8]| budget.take_if_fits(file_path(path));
    let conflicted: Vec<_> = index.conflicted().map_while(fitting).collect();
    let untracked: Vec<_> =
        found.untracked.iter().map_while(|path| budget.take_if_fits(file_path(path))).collect();
    let clean = [staged.len(), modified.len(), untracked.len(), conflicted.len()] == [0; 4];
    Some(RepositoryStatus {
        path: String::new(),
        path_encoding: None,
        detached: branch.is_none(),
        branch,
        head: head.map(|head| head.to_string()),
        upstream,
        ahead,
        behind,
        staged,
        modified,
        untracked,
        conflicted,
        clean,
        truncated: budget.is_exhausted(),
    })
}

/// The staged changes, with renames detected. `None` if git would have to compare contents for similarity.
fn staged_changes(pairs: Vec<FileChange>, budget: &mut Budget) -> Option<Vec<ChangedPath>> {
    let moved = exact_renames(&pairs)?;
    let left: HashSet<_> = moved.values().copied().collect();
    let changed = |pair: &FileChange| {
        let path = pair.path.as_slice();
        match moved.get(path) {
            Some(from) if pair.old.is_none() => Some(changed_path(path, ChangeKind::Renamed, Some(from))),
            _ if pair.new.is_none() && left.contains(path) => None,
            _ => Some(changed_path(
                path,
                kind_of_change(pair.old.map(|old| old.mode), pair.new.map(|new| new.mode)),
                None,
            )),
        }
    };
    Some(pairs.iter().filter_map(changed).map_while(|changed| budget.take_if_fits(changed)).collect())
}

/// The kind of a change between these modes.
pub(super) fn kind_of_change(old: Option<u32>, new: Option<u32>) -> ChangeKind {
    // The upper bits distinguish files from links.
    match (old, new) {
        (None, _) => ChangeKind::Added,
        (_, None) => ChangeKind::Deleted,
        (Some(old), Some(new)) if old >> 12 == new >> 12 => ChangeKind::Modified,
        _ => ChangeKind::Typechange,
    }
}

/// Exact renames: old paths by new paths. `None` if a content has several old or new paths, or if files without an
/// equal content are left on both sides, for which git would search similar ones.
fn exact_renames(pairs: &[FileChange]) -> Option<HashMap<&[u8], &[u8]>> {
    let gone: Vec<_> = pairs
        .iter()
        .filter_map(|pair| pair.old.filter(|_| pair.new.is_none()).map(|old| (old, &*pair.path)))
        .collect();
    let new: Vec<_> = pairs
        .iter()
        .filter_map(|pair| pair.new.filter(|_| pair.old.is_none()).map(|new| (new, &*pair.path)))
        .collect();
    if gone.is_empty() || new.is_empty() {
        return Some(HashMap::new());
    }
    let before: HashMap<ObjectId, _> =
        gone.iter().map(|(side, path)| (side.id, (side.mode, *path))).collect();
    let after: HashSet<ObjectId> = new.iter().map(|(side, _)| side.id).collect();
    if before.len() < gone.len() || after.len() < new.len() {
        return None;
    }
    let mut moved = HashMap::new();
    for (side, path) in &new {
        if let Some((mode, from)) = before.get(&side.id) {
            let files = side.mode >> 12 == REGULAR_FILE && mode >> 12 == REGULAR_FILE;
            moved.insert(*path, *from).is_none().then_some(()).filter(|()| files)?;
        }
    }
    (moved.len() == gone.len() || moved.len() == new.len()).then_some(moved)
}

fn unstaged_changes(
    reader: &Reader<'_>,
    top: &Folder,
    index: &Index,
    known: Vec<(usize, FileState)>,
    budget: &mut Budget,
) -> Option<Vec<ChangedPath>> {
    let changed = without_unchanged(reader, top, index, known)?.into_iter().map(|(place, now)| {
        let entry = index.entry(place);
        let change = match now {
            FileState::Deleted => ChangeKind::Deleted,
            FileState::Changed(mode) => kind_of_change(Some(entry.mode()), Some(mode)),
            FileState::Uncertain => ChangeKind::Modified,
        };
        changed_path(entry.path, change, None)
    });
    Some(changed.map_while(|changed| budget.take_if_fits(changed)).collect())
}

impl Reader<'_> {
    /// Opens the top folder of the work tree.
    pub(super) fn open_top_folder(&self) -> Option<Arc<Folder>> {
        let path = self.repository.top_folder.as_ref()?;
        // A git directory with another name inside the work tree would count as untracked files.
        let git_dir = &self.repository.git_dir;
        if git_dir.starts_with(path) && *git_dir != path.join(".git") {
            return None;
        }
        let found = self.roots.find(path, FinalLink::NoFollow).ok().filter(|found| found.is_directory())?;
        Some(Arc::new(Folder::of(found.open_for_reading().ok()?)))
    }

    /// The patterns of `info/exclude`, which apply to the whole work tree.
    fn exclude_rules(&self) -> Option<Arc<IgnoreRules>> {
        let text = read_small_file(self.roots, &self.repository.common_dir.join("info/exclude"))?;
        Some(Arc::new(IgnoreRules::parse(&text, 0, None)?))
    }

    pub(super) fn attributes<'t>(&self, top: &'t Folder, index: &'t Index) -> Option<Attributes<'t>> {
        Attributes::new(
            top,
            index,
            &read_small_file(self.roots, &self.repository.common_dir.join("info/attributes"))?,
        )
    }

    /// The upstream of the current branch and the distance to it.
    fn tracking(&mut self, branch: Option<&str>, head: Option<ObjectId>) -> Option<Tracking> {
        let Some(branch) = branch else {
            // Git might then report the branch that was checked out before.
            let none = !self.repository.config.iter().any(|own| own.key.starts_with(b"branch."));
            return none.then_some(Tracking::default());
        };
        let Some(whole) = upstream_ref(&self.repository.config, branch)? else {
            return Some(Tracking::default());
        };
        let counts = match (head, self.resolve_ref(&whole)?) {
            (Some(ours), Some(theirs)) => Some(self.ahead_behind(ours, theirs)?),
            _ => None,
        };
        let (ahead, behind) = counts.unzip();
        Some(Tracking { upstream: Some(self.short_upstream(&whole)?.to_owned()), ahead, behind })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tree_diff::FileVersion, *};

    fn pair(path: &str, old: Option<u8>, new: Option<u8>) -> FileChange {
        let side = |byte: u8| FileVersion { mode: 0o100_644, id: ObjectId::from_bytes([byte; 20]) };
        FileChange { path: path.into(), old: old.map(side), new: new.map(side) }
    }

    #[test]
    fn only_unambiguous_renames_are_detected() {
        let changes = |pairs: &[FileChange]| {
            staged_changes(pairs.to_vec(), &mut Budget::default())
                .map(|all| all.into_iter().map(|one| (one.path, one.change, one.from)).collect::<Vec<_>>())
        };
        let renamed = |from: &str, to: &str| (to.to_owned(), ChangeKind::Renamed, Some(from.to_owned()));
        assert_eq!(
            changes(&[pair("a", Some(1), None), pair("b", None, Some(1))]).unwrap(),
            [renamed("a", "b")]
        );
        let more = [pair("a", Some(1), None), pair("b", None, Some(1)), pair("c", None, Some(2))];
        assert_eq!(changes(&more).unwrap()[1].1, ChangeKind::Added);
        assert_eq!(changes(&[pair("a", Some(1), None), pair("b", Some(2), Some(1))]).unwrap().len(), 2);
        for unsure in [
            &[pair("a", Some(1), None), pair("b", None, Some(2))][..],
            &[pair("a", Some(1), None), pair("b", None, Some(1)), pair("c", None, Some(1))],
            &[pair("a", Some(1), None), pair("b", Some(1), None), pair("c", None, Some(1))],
            &[
                pair("a", Some(1), None),
                pair("b", None, Some(1)),
                pair("c", Some(2), None),
                pair("d", None, Some(3)),
            ],
        ] {
            assert!(changes(unsure).is_none(), "{unsure:?}");
        }
    }
}
