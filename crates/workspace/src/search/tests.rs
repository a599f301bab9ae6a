//! Searches on a place of its own.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

use rustix::fs::{CWD, Mode, mkfifoat};
use skep_api::{
    AbsolutePath, ErrorCode,
    files::{FileType, PatternSyntax},
    path::PathEncoding,
};
use tempfile::TempDir;

use super::*;

struct Ground {
    folder: TempDir,
    place: Place,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("root/src/main.rs", "fn main() {\n    let needle = 1;\n}\n"),
            ("root/src/deep/lib.rs", "one\nneedle\nthree\nneedle again\nfive\n"),
            ("root/.hidden/file.rs", "needle"),
            ("root/target/out.rs", "nothing"),
            ("root/.gitignore", "target/\n"),
            ("root/binary", "needle\0needle"),
            ("outside/secret.rs", "needle"),
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        symlink("../outside", folder.path().join("root/out")).unwrap();
        mkfifoat(CWD, folder.path().join("root/fifo.rs"), Mode::RUSR | Mode::WUSR).unwrap();
        let root = folder.path().join("root");
        let place = Place::new(root.clone(), root, BTreeMap::new(), "/nowhere");
        Self { folder, place }
    }

    fn path(&self, name: &str) -> AbsolutePath {
        let path = self.folder.path().join("root").join(name);
        AbsolutePath::parse("path", path.to_str().unwrap(), PathEncoding::Plain).unwrap()
    }

    fn searching(&self, pattern: &str) -> SearchFiles {
        SearchFiles {
            path: self.path(""),
            pattern: pattern.to_owned(),
            syntax: PatternSyntax::Auto,
            r#type: None,
            hidden: true,
            gitignore: false,
            limit: 1_000,
        }
    }

    fn grepping(&self, pattern: &str) -> GrepFiles {
        GrepFiles { path: self.path(""), pattern: pattern.to_owned(), glob: None, context: 0, limit: 1_000 }
    }

    /// What is found, below the root.
    async fn names(&self, search: SearchFiles) -> Vec<String> {
        let found = search.run(&self.place).await.unwrap();
        assert!(!found.truncated);
        let root = self.folder.path().join("root");
        let below = |path: &str| path.strip_prefix(root.to_str().unwrap()).unwrap()[1..].to_owned();
        found.matches.iter().map(|found| below(&found.path)).collect()
    }
}

#[tokio::test]
async fn names_are_found_and_no_link_is_followed() {
    let ground = Ground::new();
    let all = [".hidden/file.rs", "fifo.rs", "src/deep/lib.rs", "src/main.rs", "target/out.rs"];
    assert_eq!(ground.names(ground.searching("*.rs")).await, all);
    let files = SearchFiles { r#type: Some(FileType::File), ..ground.searching("*.rs") };
    assert_eq!(
        ground.names(files).await,
        [".hidden/file.rs", "src/deep/lib.rs", "src/main.rs", "target/out.rs"]
    );
    let seen = SearchFiles { hidden: false, ..ground.searching("*.rs") };
    assert_eq!(ground.names(seen).await, ["fifo.rs", "src/deep/lib.rs", "src/main.rs", "target/out.rs"]);
    let tracked = SearchFiles { gitignore: true, ..ground.searching("^(src|target)/.*rs$") };
    assert_eq!(ground.names(tracked).await, ["src/deep/lib.rs", "src/main.rs"]);
    assert_eq!(ground.names(ground.searching("src/*")).await, ["src/deep", "src/main.rs"]);
    assert_eq!(ground.names(ground.searching("secret*")).await, [""; 0]);
    let link = ground.names(ground.searching("out")).await;
    assert_eq!(link, ["out"]);
}

#[tokio::test]
async fn no_more_is_found_than_was_asked_for() {
    let ground = Ground::new();
    let found = SearchFiles { limit: 2, ..ground.searching("*.rs") }.run(&ground.place).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (2, true));
    let found = SearchFiles { limit: 5, ..ground.searching("*.rs") }.run(&ground.place).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (5, false));
    let lines = GrepFiles { limit: 1, ..ground.grepping("needle") }.run(&ground.place).await.unwrap();
    assert_eq!((lines.matches.len(), lines.truncated), (1, true));
}

#[tokio::test]
async fn lines_are_found_with_those_around_them() {
    let ground = Ground::new();
    let grep = GrepFiles { glob: Some("src/**/*.rs".to_owned()), context: 1, ..ground.grepping("needle") };
    let found = grep.run(&ground.place).await.unwrap();
    assert!(!found.truncated);
    let told: Vec<_> = found
        .matches
        .iter()
        .map(|found| (found.line, found.column, &*found.text, found.before.join("|"), found.after.join("|")))
        .collect();
    let text = |text: &str| text.to_owned();
    assert_eq!(
        told,
        [
            (2, 1, "needle", text("one"), text("three")),
            (4, 1, "needle again", text("three"), text("five")),
            (2, 9, "    let needle = 1;", text("fn main() {"), text("}")),
        ]
    );
}

#[tokio::test]
async fn a_grep_reads_files_alone_and_nothing_outside() {
    let ground = Ground::new();
    let found = ground.grepping("needle").run(&ground.place).await.unwrap();
    let files: std::collections::BTreeSet<_> =
        found.matches.iter().map(|found| found.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(files.into_iter().collect::<Vec<_>>(), ["file.rs", "lib.rs", "main.rs"]);
    let one = GrepFiles { path: ground.path("src/main.rs"), ..ground.grepping("needle") };
    assert_eq!(one.run(&ground.place).await.unwrap().matches.len(), 1);
    for (path, code) in [
        ("fifo.rs", ErrorCode::NotAFile),
        ("out", ErrorCode::PathOutsideRoots),
        ("out/secret.rs", ErrorCode::PathOutsideRoots),
        ("nothing", ErrorCode::UnknownPath),
    ] {
        let grep = GrepFiles { path: ground.path(path), ..ground.grepping("needle") };
        assert_eq!(grep.run(&ground.place).await.unwrap_err().code(), code, "{path}");
    }
    let wrong = ground.grepping("(").run(&ground.place).await.unwrap_err();
    assert_eq!(wrong.code(), ErrorCode::InvalidPattern);
}

#[tokio::test]
async fn a_search_that_nobody_waits_for_ends() {
    let ground = Ground::new();
    for folder in 0..300 {
        let folder = ground.folder.path().join(format!("root/many/{folder}"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..20 {
            fs::write(folder.join(file.to_string()), "").unwrap();
        }
    }
    let (cut, waiting) = Leash::of(TIME_LIMIT);
    drop(waiting);
    let (late, _waiting) = Leash::of(Duration::ZERO);
    let roots = ground.place.roots().unwrap();
    for leash in [cut, late] {
        let found = names::search(&roots, &ground.searching("*"), &leash).unwrap();
        assert!(found.truncated && found.matches.is_empty(), "{} were found", found.matches.len());
    }
}

/// The library opens them before anybody else sees them, and a FIFO would hold the search for ever.
#[tokio::test]
async fn rules_that_are_no_file_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["open", "shut"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("file"), "x").unwrap();
    }
    let fifo = folder.path().join("shut/.gitignore");
    mkfifoat(CWD, fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let place = Place::new(folder.path(), folder.path(), BTreeMap::new(), "/nowhere");
    let search = |gitignore| SearchFiles {
        path: AbsolutePath::parse("path", folder.path().to_str().unwrap(), PathEncoding::Plain).unwrap(),
        pattern: "file".to_owned(),
        syntax: PatternSyntax::Glob,
        r#type: None,
        hidden: true,
        gitignore,
        limit: 10,
    };
    assert_eq!(search(false).run(&place).await.unwrap().matches.len(), 2);
    assert_eq!(search(true).run(&place).await.unwrap().matches.len(), 1);
}

#[tokio::test]
async fn a_glob_that_is_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new(folder.path(), folder.path(), BTreeMap::new(), "/nowhere");
    let search = SearchFiles {
        path: AbsolutePath::parse("path", folder.path().to_str().unwrap(), PathEncoding::Plain).unwrap(),
        pattern: format!(
            "{{{}}}",
            (0..2_000).map(|number| format!("{number}{}", "?".repeat(1_000))).collect::<Vec<_>>().join(",")
        ),
        syntax: PatternSyntax::Glob,
        r#type: None,
        hidden: true,
        gitignore: false,
        limit: 10,
    };
    assert_eq!(search.run(&place).await.unwrap_err().code(), ErrorCode::InvalidPattern);
}
