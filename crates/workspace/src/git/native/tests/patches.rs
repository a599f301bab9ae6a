//! Patches of random texts, applied by git.

use std::cell::Cell;

use proptest::test_runner::TestRunner;

use super::*;

/// Texts and what became of them: some lines stand more than once.
fn texts() -> impl Strategy<Value = (String, String)> {
    let line = || prop_oneof![2 => "[a-e]", 3 => "[ \\t]{0,2}[a-z_$]{1,12}( [a-zé]{1,90})?", 1 => "\\}?"];
    let edit = (any::<prop::sample::Index>(), 0..3_usize, prop::collection::vec(line(), 0..4));
    let ends = (any::<bool>(), any::<bool>());
    (prop::collection::vec(line(), 0..60), prop::collection::vec(edit, 0..5), ends).prop_map(
        |(old, edits, ends)| {
            let mut new = old.clone();
            for (place, gone, more) in edits {
                let at = place.index(new.len() + 1);
                let end = (at + gone).min(new.len());
                new.splice(at..end, more);
            }
            let text = |lines: &[String], end: bool| {
                lines.join("\n") + if end && !lines.is_empty() { "\n" } else { "" }
            };
            (text(&old, ends.0), text(&new, ends.1))
        },
    )
}

/// Git's own `apply` makes the new text of the old one by the patch, and the counts are those of the patch's lines.
#[test]
fn patches_apply_and_count_their_lines() {
    let (written, as_git) = (Cell::new(0), Cell::new(0));
    let folder = tempfile::tempdir().unwrap();
    let config = ProptestConfig { cases: 240, max_shrink_iters: 2_000, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&(texts(), 0..5_usize), |((old, new), context)| {
        if old == new {
            return Ok(());
        }
        let file = |content, byte| patch::PatchSide {
            side: tree_diff::FileVersion { mode: 0o100_644, id: ObjectId::from_bytes([byte; 20]) },
            short_id: "1".to_owned(),
            content,
        };
        let compared = patch::FilePatch {
            path: b"new",
            old: Some(file(old.as_bytes(), 1)),
            new: Some(file(new.as_bytes(), 2)),
            zero_id: "0",
        };
        let mut patch = Vec::new();
        let Some(counts) = compared.write(context, &mut patch) else { return Ok(()) };
        written.set(written.get() + 1);
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(arguments).current_dir(&folder).env_clear().env("PATH", "/usr/bin:/bin");
            git.output().unwrap()
        };
        let body = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.find("\n@@ ").map(|at| text[at..].to_owned())
        };
        fs::write(folder.path().join("old"), &old).unwrap();
        fs::write(folder.path().join("new"), &new).unwrap();
        let by_git = git(&["diff", "--no-index", "--no-color", &format!("-U{context}"), "old", "new"]).stdout;
        as_git.set(as_git.get() + usize::from(body(&patch) == body(&by_git)));
        let signs = |sign: &str| {
            body(&patch).unwrap_or_default().lines().filter(|line| line.starts_with(sign)).count()
        };
        prop_assert_eq!((counts.additions, counts.deletions), (signs("+") as u64, signs("-") as u64));
        fs::rename(folder.path().join("old"), folder.path().join("new")).unwrap();
        fs::write(folder.path().join("patch"), &patch).unwrap();
        let unidiff: &[&str] = if context == 0 { &["--unidiff-zero"] } else { &[] };
        let applied = git(&[&["apply"], unidiff, &["patch"]].concat());
        prop_assert!(applied.status.success(), "{:?}\n{}", applied, String::from_utf8_lossy(&patch));
        if context > 0 || (has_whole_lines(&old) && has_whole_lines(&new)) {
            prop_assert_eq!(fs::read_to_string(folder.path().join("new")).unwrap(), new);
        }
        Ok(())
    });
    outcome.unwrap();
    // Git's choice where there are several is nearly always the same.
    assert!(10 * as_git.get() > 9 * written.get(), "{} of {}", as_git.get(), written.get());
}

/// Whether the last line has a line feed. Without context, git applies its own patches wrongly where it has none: of two
/// lines that differ only in that, it removes the first.
fn has_whole_lines(text: &str) -> bool {
    text.is_empty() || text.ends_with('\n')
}
