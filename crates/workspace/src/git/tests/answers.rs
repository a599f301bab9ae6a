//! Answers of log, branches, status and diff on repositories of each kind.

use std::os::unix::fs::{PermissionsExt, symlink};

use skep_api::{
    ErrorCode,
    git::{ChangeKind, RepositoryStatus},
};

use super::{
    random_changes::{CONTENTS, conflict},
    *,
};

/// The lengths of the lists of a status: staged, modified, untracked, in conflict.
fn lengths(status: &RepositoryStatus) -> [usize; 4] {
    [status.staged.len(), status.modified.len(), status.untracked.len(), status.conflicted.len()]
}

#[test]
fn ordinary_changes_are_listed_and_compared() {
    let fixture = Fixture::new();
    assert!(fixture.answer(fixture.status("")).clean);
    fixture.write("src/main.rs", "fn main() {\n    one();\n    two();\n    three();\n}\n");
    fixture.write("README", "Read me\n");
    fixture.write("target/debug/x", "x");
    fixture.write(".gitignore", "target/\n*.log\n!keep.log\n");
    fixture.write("keep.log", "");
    assert_eq!(lengths(&fixture.answer(fixture.status(""))), [0, 0, 4, 0]);
    fixture.git(&["add", "."]);
    assert_eq!(lengths(&fixture.answer(fixture.status(""))), [4, 0, 0, 0]);
    let staged = GitDiff { staged: true, ..fixture.diff("") };
    assert_eq!(fixture.answer(staged).files.len(), 4);
    fixture.commit("First");
    assert!(fixture.answer(fixture.status("")).clean);
    assert_eq!(fixture.answer(fixture.diff("")).files, []);

    fixture.write("src/main.rs", "fn main() {\n    one();\n    2();\n    three();\n}\n");
    fixture.write("README", "");
    fs::remove_file(fixture.at("keep.log")).unwrap();
    let modified = fixture.answer(fixture.status("src")).modified;
    let changes = modified.iter().map(|file| (&*file.path, file.change)).collect::<Vec<_>>();
    let expected = [
        ("README", ChangeKind::Modified),
        ("keep.log", ChangeKind::Deleted),
        ("src/main.rs", ChangeKind::Modified),
    ];
    assert_eq!(changes, expected);
    let diff = fixture.answer(fixture.diff(""));
    assert_eq!((diff.files.len(), diff.files[2].additions, diff.files[2].deletions), (3, 1, 1));
    assert!(diff.diff.contains("@@ -1,5 +1,5 @@\n"), "{}", diff.diff);
    let one = GitDiff { file: Some("src".to_owned()), context: 1, ..fixture.diff("") };
    let one = fixture.answer(one);
    assert_eq!(one.files.len(), 1);
    assert!(one.diff.contains("@@ -2,3 +2,3 @@"), "{}", one.diff);

    fixture.git(&["commit", "-q", "-a", "-m", "Second"]);
    fixture.git(&["mv", "src/main.rs", "main.rs"]);
    let moved = &fixture.answer(fixture.status("")).staged[0];
    assert_eq!((moved.change, moved.from.as_deref()), (ChangeKind::Renamed, Some("src/main.rs")));
    let between = GitDiff { from: Some("main".to_owned()), to: Some("HEAD".to_owned()), ..fixture.diff("") };
    assert_eq!(fixture.answer(between).files, []);
}

/// A change in the same second as the index, of the same size, and files as old as the index.
#[test]
fn changes_that_metadata_do_not_show_are_found() {
    let fixture = Fixture::new();
    let name = |number: usize| format!("d{}/file{number}", number % 7);
    for number in 0..900 {
        fixture.write(&name(number), format!("line\n{number}\n"));
    }
    fixture.git(&["add", "."]);
    for number in (0..900).step_by(90) {
        fixture.write(&name(number), format!("Line\n{number}\n"));
    }
    assert_eq!(fixture.answer(fixture.status("")).modified.len(), 10);
    let index = fs::File::open(fixture.at(".git/index")).unwrap();
    index.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(fixture.answer(fixture.status("")).modified.len(), 10);
    assert_eq!(fixture.answer(fixture.diff("")).files.len(), 10);
}

/// Git detects a rename from the deleted file to the similar one in conflict, and omits the deletion.
#[test]
fn a_deletion_beside_a_similar_file_in_conflict_is_listed() {
    let fixture = Fixture::new();
    fixture.commit("First");
    fixture.write("b.d", CONTENTS[3]);
    fixture.git(&["add", "b.d"]);
    fs::remove_file(fixture.at("b.d")).unwrap();
    conflict(&fixture, "z/z");
    fixture.write("z/z", CONTENTS[4]);
    let status = fixture.answer(fixture.status(""));
    let [deleted] = &status.modified[..] else { panic!("{status:?}") };
    assert_eq!((deleted.path.as_str(), deleted.change), ("b.d", ChangeKind::Deleted));
    assert_eq!(status.conflicted[0].path, "z/z");
    let diff = fixture.answer(fixture.diff(""));
    let expected = [("b.d", ChangeKind::Deleted, 0, 5), ("z/z", ChangeKind::Modified, 5, 1)];
    let files = diff.files.iter().map(|file| (&*file.path, file.change, file.additions, file.deletions));
    assert_eq!(files.collect::<Vec<_>>(), expected);
    assert!(diff.diff.contains("deleted file mode 100644") && diff.diff.contains("+3\n"), "{}", diff.diff);
}

#[test]
fn modes_links_and_binary_files_are_compared() {
    let fixture = Fixture::new();
    fixture.write("file", "a\0b");
    fixture.write("link", "target");
    fixture.git(&["add", "."]);
    fs::set_permissions(fixture.at("file"), fs::Permissions::from_mode(0o755)).unwrap();
    let diff = fixture.answer(fixture.diff(""));
    assert!(diff.files[0].binary, "{diff:?}");
    assert!(diff.diff.contains("old mode 100644\nnew mode 100755\n"), "{}", diff.diff);
    fixture.write("file", "a\0c");
    let diff = fixture.answer(fixture.diff(""));
    assert!(diff.diff.ends_with("Binary files a/file and b/file differ\n"), "{}", diff.diff);
    fs::remove_file(fixture.at("link")).unwrap();
    symlink("target", fixture.at("link")).unwrap();
    let status = fixture.answer(fixture.status(""));
    assert_eq!(status.modified[1].change, ChangeKind::Typechange);
}

#[test]
fn a_clone_knows_how_far_it_is_from_its_remote() {
    let fixture = Fixture::new();
    for number in 0..4 {
        fixture.commit(&number.to_string());
    }
    fixture.git(&["clone", "-q", ".", "clone"]);
    fixture.commit("theirs");
    let inside = |arguments: &[&str]| fixture.git(&[&["-C", "clone"], arguments].concat());
    inside(&["commit", "-q", "--allow-empty", "-m", "ours"]);
    inside(&["commit", "-q", "--allow-empty", "-m", "ours too"]);
    inside(&["fetch", "-q"]);
    inside(&["branch", "-q", "--track", "gone", "origin/main"]);
    inside(&["config", "branch.gone.merge", "refs/heads/never"]);
    inside(&["worktree", "add", "-q", "../beside", "-b", "beside"]);
    let branches = fixture.answer(fixture.branches("clone"));
    let named = |name: &str| branches.branches.iter().find(|one| one.name == name).unwrap();
    let main = named("main");
    assert_eq!((main.upstream.as_deref(), main.ahead, main.behind), (Some("origin/main"), Some(2), Some(1)));
    assert_eq!((named("gone").upstream.as_deref(), named("gone").ahead), (Some("origin/never"), None));
    assert!(named("origin/main").remote);
    let status = fixture.answer(fixture.status("clone"));
    let distance = (status.branch.as_deref(), status.upstream.as_deref(), status.ahead, status.behind);
    assert_eq!(distance, (Some("main"), Some("origin/main"), Some(2), Some(1)));
    assert_eq!(fixture.answer(fixture.branches("beside")).current.as_deref(), Some("beside"));
    assert_eq!(fixture.answer(fixture.log("beside")).commits.len(), 6);
    // The short name of a remote branch that is also a tag.
    inside(&["tag", "origin/main"]);
    let branches = fixture.answer(fixture.branches("clone"));
    assert_eq!(branches.branches.iter().filter(|one| one.remote).count(), 1);
}

#[test]
fn an_empty_repository_has_no_commits_and_a_branch() {
    let fixture = Fixture::new();
    assert_eq!(fixture.answer(fixture.log("")).commits, []);
    assert_eq!(fixture.answer(fixture.branches("")).current.as_deref(), Some("main"));
    let of_branch = GitLog { revision: Some("main".to_owned()), ..fixture.log("") };
    assert_eq!(fixture.try_answer(of_branch).unwrap_err().code(), ErrorCode::UnknownRevision);
}

/// Commits that no current git writes by itself.
#[test]
fn odd_commits_are_read() {
    let fixture = Fixture::new();
    fixture.commit("First");
    let tree = fixture.git(&["write-tree"]);
    let person = "A <a@b> 1700000001 +0000";
    let head =
        |author: &str, committer: &str| format!("tree {tree}\nauthor {author}\ncommitter {committer}\n");
    let text = |more: &str| (head(person, person) + more).into_bytes();
    for (content, subject, body, name) in [
        (text("gpgsig -----BEGIN\n \n author x\n\nSigned\n"), "Signed", "", "A"),
        (
            text("mergetag object x\n type commit\n\n\n \t\nLine\nmore\r\n\n\nbody \n\n"),
            "Line more",
            "body",
            "A",
        ),
        ([&text("\n")[..], b"\xff\xfe line\n\nb\xff\n"].concat(), "\u{fffd}\u{fffd} line", "b\u{fffd}", "A"),
        ([&text("encoding latin1\n\n")[..], b"caf\xe9\n"].concat(), "café", "", "A"),
        (text(""), "", "", "A"),
        ((head("<a@b> 1 +0000", person) + "\nNobody\n").into_bytes(), "Nobody", "", ""),
        ((head(person, "A <a@b>") + "\nNo time\n").into_bytes(), "No time", "", "A"),
    ] {
        fs::write(fixture.at("raw"), &content).unwrap();
        let id = fixture.git(&["hash-object", "-w", "-t", "commit", "--literally", "raw"]);
        let log = fixture.answer(GitLog { revision: Some(id.clone()), ..fixture.log("") });
        let commit = &log.commits[0];
        let read = (&*commit.id, &*commit.subject, &*commit.body, &*commit.author.name);
        assert_eq!(read, (&*id, subject, body, name));
        assert!([1, 1_700_000_001].contains(&commit.author.date.as_second()), "{commit:?}");
    }
}

#[test]
fn each_kind_of_repository_is_read() {
    let fixture = Fixture::new();
    for number in 0..3 {
        fixture.write("file", format!("line {number}\nsame\n"));
        fixture.git(&["add", "."]);
        fixture.commit(&number.to_string());
    }
    let commits = |name: &str| fixture.answer(fixture.log(name)).commits.len();
    fixture.git(&["tag", "-a", "-m", "Tag", "first", "HEAD~2"]);
    let since = GitDiff { from: Some("first".to_owned()), to: Some("main".to_owned()), ..fixture.diff("") };
    assert_eq!(fixture.answer(since).files[0].additions, 1);
    fixture.git(&["clone", "-q", ".", "clone"]);
    fixture.git(&["worktree", "add", "-q", "beside", "-b", "beside"]);
    fixture.write("beside/file", "other\n");
    assert_eq!(fixture.answer(fixture.status("beside")).modified.len(), 1);
    assert_eq!(fixture.answer(fixture.diff("beside")).files.len(), 1);
    fixture.git(&["clone", "-q", "--bare", "clone", "bare.git"]);
    assert_eq!(commits("bare.git"), 3);
    assert_eq!(fixture.answer(fixture.branches("bare.git")).current.as_deref(), Some("main"));
    let of_bare = fixture.try_answer(fixture.status("bare.git")).unwrap_err();
    assert_eq!(of_bare.code(), ErrorCode::BareRepository);
    fixture.git(&["-C", "clone", "checkout", "-q", "--detach"]);
    fixture.git(&["-C", "clone", "pack-refs", "--all"]);
    fixture.git(&["-C", "clone", "gc", "-q"]);
    let detached = fixture.answer(fixture.status("clone"));
    assert_eq!((detached.detached, detached.branch, commits("clone")), (true, None, 3));
    let url = format!("file://{}", fixture.at("clone").display());
    fixture.git(&["clone", "-q", "--depth", "1", "--branch", "main", &url, "shallow"]);
    assert!(fixture.answer(fixture.status("shallow")).clean);
    assert_eq!(commits("shallow"), 1);
    fixture.git(&["clone", "-q", "--shared", ".", "shared"]);
    assert_eq!(commits("shared"), 3);
    // A commit that stands for another one.
    fixture.git(&["replace", "HEAD", "HEAD~2"]);
    assert_eq!(commits(""), 1);
}

/// Settings of the repository that decide what counts as a change.
#[test]
fn settings_and_attributes_of_the_repository_hold() {
    let fixture = Fixture::new();
    fixture.write("file", "text\n");
    fixture.write("other", "text\n");
    fixture.write("third", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    let modified = |fixture: &Fixture| fixture.answer(fixture.status("")).modified.len();
    fs::set_permissions(fixture.at("file"), fs::Permissions::from_mode(0o755)).unwrap();
    fixture.write("other", "text\r\n");
    assert_eq!(modified(&fixture), 2);
    fixture.git(&["config", "core.filemode", "false"]);
    assert_eq!(modified(&fixture), 1);
    assert_eq!(fixture.answer(fixture.diff("")).files.len(), 1);
    fixture.write(".git/info/attributes", "other text\n");
    assert_eq!(fixture.answer(fixture.diff("")).files, []);
    fixture.write("other", "text\n");
    fixture.write("third", "more\n");
    fixture.git(&["update-index", "--assume-unchanged", "third"]);
    assert_eq!(modified(&fixture), 0);
    fixture.write("new", "");
    fixture.git(&["add", "-N", "new"]);
    let status = fixture.answer(fixture.status(""));
    assert_eq!((&*status.modified[0].path, status.modified[0].change), ("new", ChangeKind::Added));
    let submodule = "160000,1111111111111111111111111111111111111111,sub";
    fixture.git(&["update-index", "--add", "--cacheinfo", submodule]);
    assert_eq!(fixture.answer(fixture.status("")).staged[0].path, "sub");
}

#[test]
fn the_lock_of_a_writer_does_not_disturb_reads_and_stays() {
    let fixture = Fixture::new();
    fixture.write("file", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    let lock = fixture.at(".git/index.lock");
    fs::write(&lock, "of a writer").unwrap();
    // Its timestamp no longer matches the index, which git would update.
    fixture.write("file", "text\n");
    assert!(fixture.answer(fixture.status("")).clean);
    assert_eq!(fixture.answer(fixture.diff("")).files, []);
    assert_eq!(fixture.answer(fixture.log("")).commits.len(), 1);
    assert_eq!(fixture.answer(fixture.branches("")).branches.len(), 1);
    assert_eq!(fs::read(&lock).unwrap(), b"of a writer");
    assert!(!fixture.try_git(0, &["add", "."]).status.success(), "the control");
}

/// `git diff` stores new timestamps in the index, and holds its lock meanwhile.
#[test]
fn a_diff_leaves_the_index_unchanged_and_unlocked() {
    let fixture = Fixture::new();
    fixture.write("file", "text\n");
    fixture.git(&["add", "."]);
    let first = fixture.commit("First");
    for name in ["other", "linked"] {
        let folder = fixture.at(name).display().to_string();
        fixture.git(&["worktree", "add", "-q", "--detach", &folder]);
    }
    let linked = fixture.at(".git/worktrees/linked/index");
    fs::rename(&linked, fixture.at("i")).unwrap();
    std::os::unix::fs::symlink(fixture.at("i"), &linked).unwrap();
    for (folder, index) in [("", ".git/index"), ("other", ".git/worktrees/other/index"), ("linked", "i")] {
        let file = fs::File::options().write(true).open(fixture.at(folder).join("file")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let before = fs::read(fixture.at(index)).unwrap();
        for from in [None, Some(first.clone())] {
            let diff = fixture.answer(GitDiff { from, ..fixture.diff(folder) });
            assert_eq!((diff.files, diff.diff.as_str()), (vec![], ""));
            assert_eq!(fs::read(fixture.at(index)).unwrap(), before, "{index}");
        }
        fixture.git(&["-C", &fixture.at(folder).display().to_string(), "diff"]);
        assert_ne!(fs::read(fixture.at(index)).unwrap(), before, "the control of {index}");
    }
}

#[test]
fn the_error_of_a_diff_has_the_reason_and_a_short_path() {
    let fixture = Fixture::new();
    fixture.write(".git/index", "");
    let message = fixture.try_answer(fixture.diff("")).unwrap_err().to_string();
    assert!(message.contains("index file smaller than expected"), "{message}");
    assert!(!message.contains("/./"), "{message}");
}

/// A file may have another owner only where the test is root.
mod root {
    use super::*;

    #[test]
    fn a_repository_of_another_owner_is_read() {
        let fixture = Fixture::new();
        fixture.write("file", "text\n");
        fixture.git(&["add", "."]);
        fixture.commit("First");
        fixture.write("file", "other\n");
        let chown = Command::new("chown").args(["-R", "12345"]).arg(fixture.at("")).status().unwrap();
        assert!(chown.success());
        let refused = fixture.try_git(0, &["status"]).stderr;
        assert!(String::from_utf8_lossy(&refused).contains("dubious ownership"), "the control");
        assert_eq!(lengths(&fixture.answer(fixture.status(""))), [0, 1, 0, 0]);
        assert_eq!(fixture.answer(fixture.diff("")).files.len(), 1);
        assert_eq!(fixture.answer(fixture.log("")).commits.len(), 1);
        assert_eq!(fixture.answer(fixture.branches("")).branches.len(), 1);
    }
}
