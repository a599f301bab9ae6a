//! Exchanges of shallow repositories with a remote that has the complete history.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
};

use skep_api::git::{EmptyAnswer, ExchangePlan, Fetched, Pulled, Sent};

use super::*;
use crate::git::exchange::boundary;

/// Number of random histories.
const ROUNDS: usize = 4;

/// A fixture whose repository `one` has four commits, and an HTTP server of repositories.
struct Remote {
    fixture: Fixture,
    process: Child,
    url: String,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Remote {
    /// `x.git` is a complete copy of `one`, `short` has only its last commit.
    fn new() -> Self {
        let fixture = Fixture::new();
        fixture.commit("Third");
        fixture.commit("Fourth");
        fixture.git(&["clone", "-q", "--bare", "one", "x.git"]);
        fixture.git(&["-C", "one", "remote", "add", "origin", "../x.git"]);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/binary/git/remote.py");
        let mut python = Command::new("python3");
        let mut process =
            python.arg(script).arg(fixture.folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let remote = Self { fixture, process, url: format!("http://127.0.0.1:{}/x.git", port.trim()) };
        remote.git(&["clone", "-q", "--depth=1", &remote.url, "short"]);
        remote
    }

    #[track_caller]
    fn git(&self, arguments: &[&str]) -> String {
        self.fixture.git(arguments)
    }

    /// Adds another user's commit to the main branch of the remote.
    fn push_from_elsewhere(&self, file: &str, text: &str) -> String {
        let commit = self.fixture.commit_in("one", file, text);
        self.git(&["-C", "one", "push", "-q", "origin", "main"]);
        commit
    }

    /// Whether a repository has an object.
    fn has(&self, name: &str, object: &str) -> bool {
        let mut git = Command::new("git");
        git.args(["-C", name, "cat-file", "-e", object]).current_dir(self.fixture.folder.path());
        git.output().unwrap().status.success()
    }

    /// Checks that the repository is complete and not shallow.
    #[track_caller]
    fn assert_complete(&self, name: &str) {
        self.git(&["-C", name, "fsck", "--connectivity-only", "--no-dangling"]);
        assert_eq!(self.git(&["-C", name, "rev-parse", "--is-shallow-repository"]), "false");
    }

    async fn plan(&self, name: &str, pushes: bool) -> Result<ExchangePlan, Error> {
        let (path, branch) = (self.fixture.path(name), Some("main".to_owned()));
        GitExchange { path, remote: None, branch, pushes }.run(&self.fixture.place).await
    }

    /// Runs all steps of a push; `boundary` replaces the true boundary in the plan.
    async fn push(&self, name: &str, to: &str, boundary: Option<&[&str]>) -> Result<Sent, Error> {
        let (plan, place) = (self.plan(name, true).await?, &self.fixture.place);
        let commit = plan.commit.unwrap();
        let pack = GitPack { path: self.fixture.path(name), commit: commit.clone() };
        let (EmptyAnswer {}, pack) = pack.run_streamed(no_content(), place).await?;
        let send = GitSend {
            branch: to.to_owned(),
            last_seen: plan.last_seen,
            boundary: boundary.map_or(plan.boundary, owned),
            reach: anywhere(),
            ..send(&plan.url, &commit)
        };
        Ok(send.run_streamed(pack, place).await?.0)
    }

    async fn fetch(&self, name: &str, boundary: Option<&[&str]>) -> Result<(Fetched, Content), Error> {
        let plan = self.plan(name, false).await?;
        let (has, boundary) = (plan.has, boundary.map_or(plan.boundary, owned));
        let fetch =
            GitFetch { url: plan.url, here: false, branch: plan.branch, has, boundary, reach: anywhere() };
        fetch.run_streamed(no_content(), &self.fixture.place).await
    }

    async fn pull(&self, name: &str, boundary: Option<&[&str]>) -> Result<Pulled, Error> {
        let (fetched, pack) = self.fetch(name, boundary).await?;
        let join = GitJoin {
            path: self.fixture.path(name),
            strategy: PullStrategy::Merge,
            ..self.fixture.join(&fetched.commit)
        };
        Ok(join.run_streamed(pack, &self.fixture.place).await?.0)
    }
}

fn owned(boundary: &[&str]) -> Vec<String> {
    boundary.iter().map(|&hash| hash.to_owned()).collect()
}

fn anywhere() -> GitReach {
    GitReach { anywhere: true, ..GitReach::default() }
}

#[tokio::test]
async fn a_shallow_clone_pushes_what_its_remote_completes() {
    let remote = Remote::new();
    let fourth = remote.fixture.head("one");
    assert_eq!(remote.plan("short", true).await.unwrap().boundary, [fourth.as_str()]);
    // The boundary commit as well.
    assert!(remote.push("short", "same", None).await.unwrap().created);
    let ours = remote.fixture.commit_in("short", "ours", "Ours");
    let sent = remote.push("short", "main", None).await.unwrap();
    assert_eq!((sent.from, sent.created), (Some(fourth), false));
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), ours);
    assert_eq!(remote.git(&["-C", "x.git", "rev-list", "--count", "main"]), "5");
    remote.assert_complete("x.git");
    // The remote's main branch advances, and another branch is pushed on top of its earlier commit.
    remote.git(&["-C", "one", "pull", "-q", "origin", "main"]);
    remote.push_from_elsewhere("theirs", "Theirs");
    remote.fixture.commit_in("short", "ours", "Ours again");
    assert_eq!(code(remote.push("short", "main", None).await), ErrorCode::PushRejected);
    assert!(remote.push("short", "topic", None).await.unwrap().created);
    assert_eq!(remote.git(&["-C", "x.git", "rev-list", "--count", "topic"]), "6");
    remote.assert_complete("x.git");
}

#[tokio::test]
async fn a_remote_that_lacks_the_rest_refuses_in_its_own_words() {
    let remote = Remote::new();
    remote.git(&["init", "-q", "--bare", "-b", "main", "empty.git"]);
    remote.git(&["-C", "short", "remote", "set-url", "origin", &remote.url.replace("x.git", "empty.git")]);
    let refused = remote.push("short", "main", None).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::PushRejected);
    assert!(refused.to_string().contains("shallow update not allowed"), "{refused}");
    assert_eq!(remote.git(&["-C", "empty.git", "for-each-ref"]), "");
    remote.git(&["-C", "empty.git", "fsck"]);
}

#[tokio::test]
async fn a_shallow_clone_pulls_what_is_new_and_nothing_below() {
    let remote = Remote::new();
    let third = remote.git(&["-C", "one", "rev-parse", "main~1"]);
    remote.push_from_elsewhere("theirs", "Theirs");
    let to = remote.push_from_elsewhere("theirs", "Theirs again");
    let pulled = remote.pull("short", None).await.unwrap();
    assert_eq!((&pulled.to, pulled.commits, pulled.files_changed), (&to, 2, 1));
    remote.git(&["-C", "short", "fsck"]);
    assert!(!remote.has("short", &third));
    // With a local commit, which is pushed afterwards.
    remote.fixture.commit_in("short", "ours", "Ours");
    let theirs = remote.push_from_elsewhere("theirs", "Theirs once more");
    let merged = remote.pull("short", None).await.unwrap().to;
    assert_ne!(merged, theirs);
    remote.push("short", "main", None).await.unwrap();
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), merged);
    remote.assert_complete("x.git");
}

#[tokio::test]
async fn a_branch_that_left_below_the_boundary_comes_whole() {
    let remote = Remote::new();
    remote.git(&["clone", "-q", "--depth=2", &remote.url, "longer"]);
    let below = ["main~3", "main~2"].map(|below| remote.git(&["-C", "one", "rev-parse", below]));
    remote.git(&["-C", "one", "checkout", "-qb", "side", "main~2"]);
    let side = remote.fixture.commit_in("one", "side", "Side");
    remote.git(&["-C", "one", "checkout", "-q", "main"]);
    remote.git(&["-C", "one", "merge", "-q", "--no-edit", "side"]);
    let merge = remote.push_from_elsewhere("theirs", "Theirs");
    for name in ["short", "longer"] {
        assert_eq!(remote.pull(name, None).await.unwrap().to, merge);
        remote.git(&["-C", name, "fsck"]);
        assert_eq!(remote.git(&["-C", name, "rev-parse", "--is-shallow-repository"]), "true");
        assert!(below.iter().chain([&side]).all(|commit| remote.has(name, commit)), "{name}");
    }
    remote.fixture.commit_in("short", "ours", "Ours");
    remote.push("short", "main", None).await.unwrap();
    remote.assert_complete("x.git");
    // An orphan branch contains no known commits.
    remote.git(&["-C", "one", "checkout", "-q", "--orphan", "other"]);
    let other = remote.fixture.commit_in("one", "other", "Other");
    remote.git(&["-C", "one", "push", "-qf", "origin", "other:main"]);
    let refused = remote.pull("short", None).await.unwrap_err();
    assert!(refused.to_string().contains("unrelated histories"), "{refused}");
    assert_eq!(remote.git(&["-C", "short", "rev-parse", "origin/main"]), other);
    remote.git(&["-C", "short", "fsck"]);
}

#[tokio::test]
async fn a_clone_that_got_all_of_its_history_is_as_any_other() {
    let remote = Remote::new();
    remote.git(&["-C", "short", "fetch", "-q", "--unshallow"]);
    assert!(remote.plan("short", true).await.unwrap().boundary.is_empty());
    remote.git(&["init", "-q", "--bare", "-b", "main", "empty.git"]);
    remote.git(&["-C", "short", "remote", "set-url", "origin", &remote.url.replace("x.git", "empty.git")]);
    assert!(remote.push("short", "main", None).await.unwrap().created);
    assert_eq!(remote.git(&["-C", "empty.git", "rev-list", "--count", "main"]), "4");
    remote.git(&["-C", "empty.git", "fsck"]);
}

/// The boundary that a VM sends is not trusted.
#[tokio::test]
async fn an_invalid_boundary_breaks_no_history() {
    let remote = Remote::new();
    let fourth = remote.fixture.head("one");
    let (nothing, tree) = ("0123".repeat(10), remote.git(&["-C", "short", "rev-parse", "HEAD^{tree}"]));
    let many: Vec<&str> = vec![&fourth; boundary::MAX_COMMITS + 1];
    for odd in [&["HEAD"][..], &[""], &["-x"], &[&fourth, "main\n"], &many] {
        for refused in [
            remote.push("short", "main", Some(odd)).await.err(),
            remote.fetch("short", Some(odd)).await.err(),
        ] {
            assert_eq!(refused.unwrap().code(), ErrorCode::GitRefused, "{:?}", odd.first());
        }
    }
    let (nothing, tree) = (nothing.as_str(), tree.as_str());
    let ours = remote.fixture.commit_in("short", "ours", "Ours");
    // No valid boundary: then the pack is incomplete.
    for untrue in [&[][..], &[nothing], &[tree], &[&ours]] {
        assert!(remote.push("short", "main", Some(untrue)).await.is_err(), "{untrue:?}");
        assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), fourth);
    }
    remote.assert_complete("x.git");
    // A boundary in the middle of the new history: commits below it would be missing.
    for to in ["main", "topic"] {
        assert_eq!(code(remote.push("short", to, Some(&[&ours, &fourth])).await), ErrorCode::PushRejected);
    }
    assert_eq!(remote.git(&["-C", "x.git", "for-each-ref", "--format=%(objectname)"]), fourth);
    // Additional unknown hashes beside the true boundary do no harm.
    remote.push("short", "main", Some(&[&fourth, nothing, tree])).await.unwrap();
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), ours);
    remote.assert_complete("x.git");
}

#[tokio::test]
async fn a_false_boundary_harms_only_its_sender() {
    let remote = Remote::new();
    let fourth = remote.fixture.head("one");
    remote.push_from_elsewhere("theirs", "Theirs");
    let middle = remote.push_from_elsewhere("theirs", "Theirs, in the middle");
    let last = remote.push_from_elsewhere("theirs", "Theirs again");
    // A boundary that the repository does not have.
    let refused = remote.pull("short", Some(&[&middle])).await;
    assert_eq!(code(refused), ErrorCode::GitRefused);
    assert_eq!(
        (remote.fixture.head("short"), remote.git(&["-C", "short", "rev-parse", "origin/main"])),
        (fourth.clone(), fourth)
    );
    assert_eq!(remote.pull("short", Some(&[&"0123".repeat(10)])).await.unwrap().to, last);
    // Files that git rejects too.
    let file = remote.fixture.folder.path().join("short/.git/shallow");
    for text in ["no hash\n".to_owned(), format!("{last}\n").repeat(boundary::MAX_COMMITS + 1)] {
        fs::write(&file, text).unwrap();
        let refused = remote.plan("short", true).await.unwrap_err();
        assert!(refused.to_string().contains("file `shallow`"), "{refused}");
    }
}

/// For random histories, clone and remote are complete after a pull and a push.
#[tokio::test]
async fn a_shallow_clone_of_any_history_goes_on_with_it() {
    let remote = Remote::new();
    for seed in 0..ROUNDS {
        let (mut dice, x) = (Random(seed), format!("{seed}.git"));
        let commits = remote.random_history(&x, &mut dice);
        let (url, depth) = (remote.url.replace("x.git", &x), format!("--depth={}", 1 + dice.below(4)));
        let name = format!("clone-{seed}");
        let main = |at: usize| remote.git(&["-C", &x, "update-ref", "refs/heads/main", &commits[at]]);
        main(commits.len() / 2);
        remote.git(&["clone", "-q", &depth, &url, &name]);
        main(commits.len() - 1);
        let pulled = remote.pull(&name, None).await.unwrap();
        assert_eq!(Some(&pulled.to), commits.last(), "{seed} {depth}");
        remote.git(&["-C", &name, "fsck"]);
        let ours = remote.fixture.commit_in(&name, "ours", "Ours");
        remote.push(&name, "main", None).await.unwrap();
        assert_eq!(remote.git(&["-C", &x, "rev-parse", "main"]), ours, "{seed} {depth}");
        remote.assert_complete(&x);
    }
}

/// A deterministic random number generator.
struct Random(usize);

impl Random {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = (self.0 * 1_103_515_245 + 12_345) % (1 << 31);
        (self.0 >> 8) % sides
    }
}

impl Remote {
    /// Creates a repository with a main branch and side branches that fork and merge at random, with dates in random
    /// order. Returns the commits of the main branch, oldest first.
    fn random_history(&self, name: &str, dice: &mut Random) -> Vec<String> {
        self.git(&["init", "-q", "--bare", "-b", "main", name]);
        let stream = self.fixture.folder.path().join("stream");
        fs::write(&stream, random_commits(24, dice)).unwrap();
        let mut git = Command::new("git");
        git.args(["-C", name, "fast-import", "--quiet", "--force"]).current_dir(self.fixture.folder.path());
        assert!(git.stdin(fs::File::open(stream).unwrap()).status().unwrap().success());
        let output = self.git(&["-C", name, "rev-list", "--first-parent", "--reverse", "main"]);
        output.lines().map(str::to_owned).collect()
    }
}

/// Input for git-fast-import(1) with this number of commits.
fn random_commits(count: usize, dice: &mut Random) -> String {
    let (mut lines, mut tip) = (Vec::new(), None);
    for mark in 1..=count {
        let (goes_on, any) = (mark == 1 || dice.below(2) == 0, 1 + dice.below(mark.max(2) - 1));
        let time = 1_700_000_000 + dice.below(100_000);
        lines.push(format!("commit refs/heads/{}", if goes_on { "main" } else { "side" }));
        lines.push(format!("mark :{mark}\ncommitter Ada <ada@example.com> {time} +0000\ndata 1\nx"));
        let from = if goes_on { tip } else { Some(any) };
        lines.extend(from.map(|from| format!("from :{from}")));
        if goes_on && from.is_some_and(|from| from != any) && dice.below(3) > 0 {
            lines.push(format!("merge :{any}"));
        }
        let text = mark.to_string();
        lines.push(format!("M 100644 inline {}\ndata {}\n{text}", dice.below(6), text.len()));
        tip = if goes_on { Some(mark) } else { tip };
    }
    lines.join("\n") + "\n"
}
