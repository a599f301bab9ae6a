//! Searches in a temporary workspace.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, sync::mpsc};

use rustix::fs::{CWD, Mode, mkfifoat};
use skep_api::{
    AbsolutePath, ErrorCode,
    files::{FileType, PatternSyntax},
    path::PathEncoding,
};
use tempfile::TempDir;

use super::*;
use crate::held_work::HeldWork;

struct Fixture {
    folder: TempDir,
    place: Place,
}

impl Fixture {
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

    /// The paths of the matches, relative to the root.
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
    let fixture = Fixture::new();
    let all = [".hidden/file.rs", "fifo.rs", "src/deep/lib.rs", "src/main.rs", "target/out.rs"];
    assert_eq!(fixture.names(fixture.searching("*.rs")).await, all);
    let files = SearchFiles { r#type: Some(FileType::File), ..fixture.searching("*.rs") };
    assert_eq!(
        fixture.names(files).await,
        [".hidden/file.rs", "src/deep/lib.rs", "src/main.rs", "target/out.rs"]
    );
    let seen = SearchFiles { hidden: false, ..fixture.searching("*.rs") };
    assert_eq!(fixture.names(seen).await, ["fifo.rs", "src/deep/lib.rs", "src/main.rs", "target/out.rs"]);
    let tracked = SearchFiles { gitignore: true, ..fixture.searching("^(src|target)/.*rs$") };
    assert_eq!(fixture.names(tracked).await, ["src/deep/lib.rs", "src/main.rs"]);
    assert_eq!(fixture.names(fixture.searching("src/*")).await, ["src/deep", "src/main.rs"]);
    assert_eq!(fixture.names(fixture.searching("secret*")).await, [""; 0]);
    let link = fixture.names(fixture.searching("out")).await;
    assert_eq!(link, ["out"]);
}

#[tokio::test]
async fn no_more_is_found_than_was_asked_for() {
    let fixture = Fixture::new();
    let found = SearchFiles { limit: 2, ..fixture.searching("*.rs") }.run(&fixture.place).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (2, true));
    let found = SearchFiles { limit: 5, ..fixture.searching("*.rs") }.run(&fixture.place).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (5, false));
    let lines = GrepFiles { limit: 1, ..fixture.grepping("needle") }.run(&fixture.place).await.unwrap();
    assert_eq!((lines.matches.len(), lines.truncated), (1, true));
}

#[tokio::test]
async fn lines_are_found_with_those_around_them() {
    let fixture = Fixture::new();
    let grep = GrepFiles { glob: Some("src/**/*.rs".to_owned()), context: 1, ..fixture.grepping("needle") };
    let found = grep.run(&fixture.place).await.unwrap();
    assert!(!found.truncated);
    let matches: Vec<_> = found
        .matches
        .iter()
        .map(|found| (found.line, found.column, &*found.text, found.before.join("|"), found.after.join("|")))
        .collect();
    let text = |text: &str| text.to_owned();
    assert_eq!(
        matches,
        [
            (2, 1, "needle", text("one"), text("three")),
            (4, 1, "needle again", text("three"), text("five")),
            (2, 9, "    let needle = 1;", text("fn main() {"), text("}")),
        ]
    );
}

#[tokio::test]
async fn the_column_of_a_match_counts_the_bytes_before_it() {
    let fixture = Fixture::new();
    // Two letters of two bytes each, a tab, and a byte that is no UTF-8.
    fs::write(
        fixture.folder.path().join("root/columns"),
        b"needle\n\xc3\xbc\xc3\xa4 needle\n\tneedle\n\xffneedle\n",
    )
    .unwrap();
    let grep = GrepFiles { path: fixture.path("columns"), ..fixture.grepping("needle") };
    let found = grep.run(&fixture.place).await.unwrap();
    let columns: Vec<_> = found.matches.iter().map(|found| (found.line, found.column)).collect();
    assert_eq!(columns, [(1, 1), (2, 6), (3, 2), (4, 2)]);
}

#[tokio::test]
async fn a_grep_reads_files_alone_and_nothing_outside() {
    let fixture = Fixture::new();
    let found = fixture.grepping("needle").run(&fixture.place).await.unwrap();
    let files: std::collections::BTreeSet<_> =
        found.matches.iter().map(|found| found.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(files.into_iter().collect::<Vec<_>>(), ["file.rs", "lib.rs", "main.rs"]);
    let one = GrepFiles { path: fixture.path("src/main.rs"), ..fixture.grepping("needle") };
    assert_eq!(one.run(&fixture.place).await.unwrap().matches.len(), 1);
    for (path, code) in [
        ("fifo.rs", ErrorCode::NotAFile),
        ("out", ErrorCode::PathOutsideRoots),
        ("out/secret.rs", ErrorCode::PathOutsideRoots),
        ("nothing", ErrorCode::UnknownPath),
    ] {
        let grep = GrepFiles { path: fixture.path(path), ..fixture.grepping("needle") };
        assert_eq!(grep.run(&fixture.place).await.unwrap_err().code(), code, "{path}");
    }
    let wrong = fixture.grepping("(").run(&fixture.place).await.unwrap_err();
    assert_eq!(wrong.code(), ErrorCode::InvalidPattern);
}

#[tokio::test]
async fn a_search_ends_when_it_is_cancelled() {
    let fixture = Fixture::new();
    for folder in 0..300 {
        let folder = fixture.folder.path().join(format!("root/many/{folder}"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..20 {
            fs::write(folder.join(file.to_string()), "").unwrap();
        }
    }
    let (cancelled, waiting) = Cancellation::with_time_limit(TIME_LIMIT);
    drop(waiting);
    let (late, _waiting) = Cancellation::with_time_limit(Duration::ZERO);
    let roots = fixture.place.roots().unwrap();
    for cancellation in [cancelled, late] {
        let found = names::search(&roots, &fixture.searching("*"), &cancellation).unwrap();
        assert!(found.truncated && found.matches.is_empty(), "{} were found", found.matches.len());
    }
}

fn searching(folder: &TempDir, pattern: &str, gitignore: bool) -> SearchFiles {
    SearchFiles {
        path: AbsolutePath::parse("path", folder.path().to_str().unwrap(), PathEncoding::Plain).unwrap(),
        pattern: pattern.to_owned(),
        syntax: PatternSyntax::Glob,
        r#type: None,
        hidden: true,
        gitignore,
        limit: 10_000,
    }
}

async fn found(folder: &TempDir, search: SearchFiles) -> Vec<String> {
    let place = Place::new(folder.path(), folder.path(), BTreeMap::new(), "/nowhere");
    let start = format!("{}/", folder.path().display());
    let found = search.run(&place).await.unwrap().matches;
    found.into_iter().map(|found| found.path.strip_prefix(&start).unwrap().to_owned()).collect()
}

/// Opening a FIFO would block the search, and a link may lead anywhere.
#[tokio::test]
async fn ignore_files_that_are_not_regular_files_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["open", "fifo", "link"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("file"), "x").unwrap();
    }
    fs::write(folder.path().join("open/.gitignore"), "file\n").unwrap();
    mkfifoat(CWD, folder.path().join("fifo/.gitignore"), Mode::RUSR | Mode::WUSR).unwrap();
    symlink("../open/.gitignore", folder.path().join("link/.gitignore")).unwrap();
    assert_eq!(found(&folder, searching(&folder, "file", false)).await.len(), 3);
    assert_eq!(found(&folder, searching(&folder, "file", true)).await, ["fifo/file", "link/file"]);
}

#[tokio::test]
async fn rules_count_from_the_nearest_folder_and_by_their_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        (".gitignore", "*.o\n/top\n!kept.o\nbuild/\n"),
        (".git/info/exclude", "excluded\n"),
        ("a.o", ""),
        ("kept.o", ""),
        ("top", ""),
        ("excluded", ""),
        ("build/x", ""),
        ("deep/.gitignore", "!a.o\n/own\n"),
        ("deep/.ignore", "ruled\n"),
        ("deep/a.o", ""),
        ("deep/top", ""),
        ("deep/own", ""),
        ("deep/ruled", ""),
        ("deep/er/own", ""),
        ("deep/er/b.o", ""),
        ("deep/er/excluded", ""),
        ("deep/er/build", ""),
    ] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let search = SearchFiles { hidden: false, ..searching(&folder, "*", true) };
    let kept = ["deep", "deep/a.o", "deep/er", "deep/er/build", "deep/er/own", "deep/top", "kept.o"];
    assert_eq!(found(&folder, search).await, kept);
}

#[tokio::test]
async fn rules_of_any_size_take_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    fs::create_dir_all(folder.path().join("huge/below")).unwrap();
    fs::create_dir_all(folder.path().join("many")).unwrap();
    fs::create_dir_all(folder.path().join("line")).unwrap();
    fs::File::create(folder.path().join("huge/.gitignore")).unwrap().set_len(1 << 30).unwrap();
    fs::File::create(folder.path().join("line/.git")).unwrap().set_len(1 << 30).unwrap();
    write("huge/below/.gitignore", "*.o\n");
    write("many/.gitignore", &"*x*.o\n".repeat(10_000));
    for name in ["huge/a.o", "huge/below/a.o", "many/x.o", "line/a.o"] {
        write(name, "");
    }
    let found = found(&folder, searching(&folder, "*.o", true)).await;
    assert_eq!(found, ["huge/a.o", "line/a.o", "many/x.o"]);
}

#[tokio::test]
async fn more_folders_with_rules_than_are_kept_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..100 {
        let below = folder.path().join(format!("{number}"));
        fs::create_dir(&below).unwrap();
        fs::write(below.join(".gitignore"), "*.o\n").unwrap();
        for name in ["a.o", "b.c", "c.o"] {
            fs::write(below.join(name), "").unwrap();
        }
    }
    assert_eq!(found(&folder, searching(&folder, "*.[co]", true)).await.len(), 100);
}

#[tokio::test]
async fn lines_shared_by_many_matches_are_stored_once_and_the_answer_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("needle {}\n", "x".repeat(2_000));
    fs::write(folder.path().join("file"), line.repeat(10_000)).unwrap();
    let place = Place::new(folder.path(), folder.path(), BTreeMap::new(), "/nowhere");
    let path = AbsolutePath::parse("path", folder.path().to_str().unwrap(), PathEncoding::Plain).unwrap();
    let grep = GrepFiles { path, pattern: "needle".to_owned(), glob: None, context: 100, limit: 10_000 };
    let found = grep.run(&place).await.unwrap();
    assert!(found.truncated);
    let json = serde_json::to_vec(&found).unwrap().len();
    assert!(json <= skep_api::budget::MAX_ANSWER_BYTES && json > 8 << 20, "{json}");
    let mentions: usize = found.matches.iter().map(|found| 1 + found.before.len() + found.after.len()).sum();
    let texts: std::collections::HashSet<_> = found
        .matches
        .iter()
        .flat_map(|found| found.before.iter().chain(&found.after).chain([&found.text]))
        .map(|text| text.as_ptr())
        .collect();
    assert!(texts.len() * 10 < mentions, "{} texts for {mentions} mentions", texts.len());
}

#[tokio::test]
async fn a_line_that_is_too_long_is_skipped_and_reported() {
    let fixture = Fixture::new();
    fs::write(fixture.folder.path().join("root/line"), vec![b'x'; 20 << 20]).unwrap();
    let one = GrepFiles { path: fixture.path("line"), ..fixture.grepping("y") };
    let found = one.run(&fixture.place).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (0, true));
    let found = fixture.grepping("needle").run(&fixture.place).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (4, true), "the other files are searched");
}

/// A search keeps its permit until its thread ends, even if the caller has left.
#[tokio::test]
async fn abandoned_searches_keep_their_permits() {
    use futures_util::FutureExt;

    let fixture = Fixture::new();
    let (release, held) = HeldWork::new();
    let (alive, ended) = mpsc::channel::<()>();
    for _ in 0..60 {
        let (held, alive) = (held.clone(), alive.clone());
        let mut search = Box::pin(run_cancellable(&fixture.place, move |_, _| {
            held.begin_and_wait();
            drop(alive);
            Ok(())
        }));
        assert!((&mut search).now_or_never().is_none());
    }
    drop((release, alive));
    let _ = ended.recv();
    let begun = held.begun();
    assert!(begun <= MAX_SEARCHES, "{begun} threads searched for nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_waits_begins_when_another_ends() {
    let fixture = Fixture::new();
    let (release, held) = HeldWork::new();
    let search = |_| {
        let (place, held) = (fixture.place.clone(), held.clone());
        tokio::spawn(async move {
            let work = move |_: &Roots, _: &Cancellation| {
                held.begin_and_wait();
                Ok(())
            };
            run_cancellable(&place, work).await
        })
    };
    let searches: Vec<_> = (0..MAX_SEARCHES + 2).map(search).collect();
    for ended in 0..3 {
        let count = async || held.begun() == MAX_SEARCHES + ended;
        skep_harness::eventually("another search", count).await;
        release.send(()).unwrap();
    }
    drop(release);
    for search in searches {
        search.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_glob_that_is_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new(folder.path(), folder.path(), BTreeMap::new(), "/nowhere");
    let search = SearchFiles {
        path: AbsolutePath::parse("path", folder.path().to_str().unwrap(), PathEncoding::Plain).unwrap(),
        pattern: format!(
            "{{{}}}",
            (0..400).map(|number| format!("{number}{}", "?".repeat(1_000))).collect::<Vec<_>>().join(",")
        ),
        syntax: PatternSyntax::Glob,
        r#type: None,
        hidden: true,
        gitignore: false,
        limit: 10,
    };
    assert_eq!(search.run(&place).await.unwrap_err().code(), ErrorCode::InvalidPattern);
}
