//! Parses `git diff --raw --numstat -z`.

use std::{collections::HashMap, ffi::OsStr, os::unix::ffi::OsStrExt};

use skep_api::{
    git::{ChangeKind, ChangedPath, DiffFile, FilePath},
    path::{encode_path, percent_encoded},
};

/// The entries of a comparison.
#[derive(Debug, Default)]
pub(super) struct RawDiff {
    pub(super) files: Vec<DiffFile>,
    /// Whether git detected a rename from a deleted file to a file in conflict. It then omits the deletion and marks the
    /// deleted path as unmerged. Without rename detection it lists both correctly.
    pub(super) hides_deletion: bool,
}

/// Parses the raw entries and the line counts that follow them. `None` for output that git does not produce.
pub(super) fn parse_with_counts(text: &[u8]) -> Option<RawDiff> {
    let mut fields = text.strip_suffix(b"\0").unwrap_or(text).split(|byte| *byte == 0).peekable();
    let RawDiff { mut files, mut hides_deletion } = RawDiff::default();
    let mut places = HashMap::new();
    if text.is_empty() {
        return Some(RawDiff::default());
    }
    while let Some(head) = fields.next_if(|field| field.starts_with(b":")) {
        let status = head.split(|byte| *byte == b' ').nth(4)?;
        // Only what is renamed or copied has a score.
        hides_deletion |= matches!(status, [b'U', _, ..]);
        let change = change_kind(*status.first()?)?;
        let first = fields.next()?;
        let moved = matches!(change, ChangeKind::Renamed | ChangeKind::Copied);
        let (path, from) = if moved { (fields.next()?, Some(first)) } else { (first, None) };
        // An unmerged file may have two entries: the first one marks it as unmerged, the second one is its change.
        if let Some(file) = places.get(path).and_then(|at: &usize| files.get_mut(*at)) {
            file.change = change;
            continue;
        }
        places.insert(path, files.len());
        let ChangedPath { path, path_encoding, from, .. } = changed_path(path, change, from);
        files.push(DiffFile { path, path_encoding, change, from, additions: 0, deletions: 0, binary: false });
    }
    while let Some(line) = fields.next() {
        let mut columns = line.splitn(3, |byte| *byte == b'\t');
        let (additions, deletions, path) = (columns.next()?, columns.next()?, columns.next()?);
        let path = if path.is_empty() {
            fields.next()?;
            fields.next()?
        } else {
            path
        };
        let Some(file) = places.get(path).and_then(|at| files.get_mut(*at)) else { continue };
        file.binary = additions == b"-";
        file.additions = parse_number(additions).unwrap_or(0);
        file.deletions = parse_number(deletions).unwrap_or(0);
    }
    Some(RawDiff { files, hides_deletion })
}

/// Like [`parse_with_counts`], without the line counts.
pub(super) fn parse_paths(text: &[u8]) -> Option<Vec<ChangedPath>> {
    let diff = parse_with_counts(text)?;
    Some(
        diff.files
            .into_iter()
            .map(|DiffFile { path, path_encoding, change, from, .. }| ChangedPath {
                path,
                path_encoding,
                change,
                from,
            })
            .collect(),
    )
}

/// The status letter of git (git-status(1)).
pub(super) fn change_kind(letter: u8) -> Option<ChangeKind> {
    Some(match letter {
        b'A' => ChangeKind::Added,
        b'M' | b'U' => ChangeKind::Modified,
        b'D' => ChangeKind::Deleted,
        b'R' => ChangeKind::Renamed,
        b'C' => ChangeKind::Copied,
        b'T' => ChangeKind::Typechange,
        _ => return None,
    })
}

pub(super) fn changed_path(path: &[u8], change: ChangeKind, from: Option<&[u8]>) -> ChangedPath {
    let from = from.map(OsStr::from_bytes);
    let path = OsStr::from_bytes(path);
    let plain = path.to_str().is_some() && from.is_none_or(|from| from.to_str().is_some());
    let write = |text: &OsStr| if plain { encode_path(text).0 } else { percent_encoded(text) };
    ChangedPath {
        path: write(path),
        path_encoding: (!plain).then_some(skep_api::path::PathEncoding::Percent),
        change,
        from: from.map(write),
    }
}

pub(super) fn file_path(path: &[u8]) -> FilePath {
    let (path, path_encoding) = encode_path(OsStr::from_bytes(path));
    FilePath { path, path_encoding }
}

pub(super) fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_with_newlines_and_tabs_are_read() {
        let text =
            b":100644 100644 1 2 M\0a\nb\tc\0:000000 100644 0 1 A\0new\0:100644 100644 1 1 R100\0old\0to\0\
                     1\t2\ta\nb\tc\0-\t-\tnew\x000\t0\t\0old\0to\0";
        let files = parse_with_counts(text).unwrap().files;
        assert_eq!(files.len(), 3);
        assert_eq!((files[0].path.as_str(), files[0].additions, files[0].deletions), ("a\nb\tc", 1, 2));
        assert!(files[1].binary);
        assert_eq!((files[2].path.as_str(), files[2].from.as_deref()), ("to", Some("old")));
        assert_eq!(parse_with_counts(b"").unwrap().files, []);
    }

    #[test]
    fn a_file_in_conflict_has_the_change_of_its_second_entry() {
        let text = b":000000 100644 0 0 U\0f\0:100644 000000 1 0 D\0f\0:000000 100644 0 0 U\0g\0\
                     0\t0\tf\x000\t7\tf\x000\t0\tg\0";
        let diff = parse_with_counts(text).unwrap();
        let [f, g] = &diff.files[..] else { panic!("{diff:?}") };
        assert_eq!((f.change, f.deletions, g.change), (ChangeKind::Deleted, 7, ChangeKind::Modified));
        assert!(!diff.hides_deletion);
        let text = b":100644 100644 1 2 U075\0old\0:100644 100644 3 0 M\0f\0";
        assert!(parse_with_counts(text).unwrap().hides_deletion);
    }

    proptest! {
        #[test]
        fn any_output_is_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_with_counts(&text);
        }

        #[test]
        fn every_name_comes_back(name in prop::collection::vec(1u8..=255, 1..40)) {
            let text = [b":100644 100644 1 2 M\0".as_slice(), &name, b"\x003\t4\t", &name, b"\0"].concat();
            let files = parse_with_counts(&text).unwrap().files;
            prop_assert_eq!(files.len(), 1);
            prop_assert_eq!((files[0].additions, files[0].deletions), (3, 4));
            let (path, _) = encode_path(OsStr::from_bytes(&name));
            prop_assert_eq!(&files[0].path, &path);
        }
    }
}
