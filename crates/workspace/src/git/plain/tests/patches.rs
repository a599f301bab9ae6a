//! Compares patches with those of git.

use std::cell::Cell;

use proptest::test_runner::TestRunner;

use super::*;

/// Random texts and edits, with repeated lines.
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

/// All patches are the same as git's, and enough are written.
#[test]
fn patches_are_what_git_writes() {
    let (asked, told) = (Cell::new(0), Cell::new(0));
    let folder = tempfile::tempdir().unwrap();
    let config = ProptestConfig { cases: 400, max_shrink_iters: 2_000, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&(texts(), 1..5_usize), |((old, new), context)| {
        if old == new {
            return Ok(());
        }
        asked.set(asked.get() + 1);
        let file = |content, byte| patch::File {
            side: staged::Side { mode: 0o100_644, id: Id::of([byte; 20]) },
            short: "1".to_owned(),
            content,
        };
        let compared = patch::Compared {
            path: b"new",
            old: Some(file(old.as_bytes(), 1)),
            new: Some(file(new.as_bytes(), 2)),
            nothing: "0",
        };
        let mut patch = Vec::new();
        let Some(counts) = compared.write(context, &mut patch) else { return Ok(()) };
        told.set(told.get() + 1);
        fs::write(folder.path().join("old"), &old).unwrap();
        fs::write(folder.path().join("new"), &new).unwrap();
        let mut git = Command::new("git");
        git.args(["diff", "--no-index", "--no-color", &format!("-U{context}"), "old", "new"]);
        let said = git.current_dir(&folder).env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
        let body = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.find("\n@@ ").map(|at| text[at..].to_owned())
        };
        prop_assert_eq!(body(&patch), body(&said.stdout));
        let signs = |sign: &str| {
            body(&patch).unwrap_or_default().lines().filter(|line| line.starts_with(sign)).count()
        };
        prop_assert_eq!((counts.additions, counts.deletions), (signs("+") as u64, signs("-") as u64));
        Ok(())
    });
    outcome.unwrap();
    assert!(3 * told.get() > asked.get(), "{} of {}", told.get(), asked.get());
}
