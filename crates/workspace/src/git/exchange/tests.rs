//! Tests the steps of exchanges separately. The integration tests cover them together with a remote.

mod clones;
mod shallow;

use std::{collections::BTreeMap, fs, io, path::PathBuf, process::Command};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use skep_api::{
    AbsolutePath, ErrorCode,
    git::{GitExchange, GitFetch, GitJoin, GitNotePush, GitPack, GitReach, GitSend, Person, PullStrategy},
    path::PathEncoding,
};
use tempfile::TempDir;

use super::{send::index_pack, temporary::TemporaryRepository};
use crate::{Content, Error, Place, Run, RunStreamed, streamed::no_content};

/// The date of all commits.
const DATE: &str = "1700000000 +0000";

struct Fixture {
    folder: TempDir,
    place: Place,
}

impl Fixture {
    /// Two repositories, of which the second lacks the last commit of the first.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), folder.path(), BTreeMap::new(), "/nowhere");
        let fixture = Self { folder, place };
        fixture.git(&["init", "-q", "-b", "main", "one"]);
        fixture.commit("First");
        fixture.git(&["clone", "-q", "one", "two"]);
        fixture.commit("Second");
        fixture
    }

    #[track_caller]
    fn git(&self, arguments: &[&str]) -> String {
        let person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let mut git = Command::new("git");
        git.args(person)
            .args(arguments)
            .current_dir(self.folder.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        // Git compares dates where the boundary of a history is missing, and may push then if they differ.
        git.env("GIT_AUTHOR_DATE", DATE).env("GIT_COMMITTER_DATE", DATE);
        let output = git.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn commit(&self, text: &str) {
        self.commit_in("one", "file", text);
    }

    fn commit_in(&self, name: &str, file: &str, text: &str) -> String {
        fs::write(self.folder.path().join(name).join(file), text).unwrap();
        self.git(&["-C", name, "add", "."]);
        self.git(&["-C", name, "commit", "-qm", text]);
        self.head(name)
    }

    fn head(&self, name: &str) -> String {
        self.git(&["-C", name, "rev-parse", "HEAD"])
    }

    fn path(&self, name: &str) -> Option<AbsolutePath> {
        let path = self.folder.path().join(name);
        Some(AbsolutePath::parse("path", path.to_str().unwrap(), PathEncoding::Plain).unwrap())
    }

    async fn pack(&self, commit: &str) -> Vec<Bytes> {
        let pack = GitPack { path: self.path("one"), commit: commit.to_owned() };
        let (_, pack) = pack.run_streamed(no_content(), &self.place).await.unwrap();
        pack.try_collect().await.unwrap()
    }

    fn join(&self, commit: &str) -> GitJoin {
        GitJoin {
            path: self.path("two"),
            remote: "origin".to_owned(),
            branch: "main".to_owned(),
            commit: commit.to_owned(),
            strategy: PullStrategy::FfOnly,
            committer: Person { name: "Ada".to_owned(), email: "ada@example.com".to_owned() },
        }
    }

    /// The temporary repositories that exist now.
    fn temporary_repositories(&self) -> Vec<PathBuf> {
        let names = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_string_lossy().contains("skep-exchange")).collect()
    }
}

fn content(pieces: Vec<Bytes>) -> Content {
    Box::pin(stream::iter(pieces).map(Ok))
}

fn send(url: &str, commit: &str) -> GitSend {
    GitSend {
        url: url.to_owned(),
        here: false,
        branch: "main".to_owned(),
        commit: commit.to_owned(),
        last_seen: None,
        force_with_lease: false,
        boundary: Vec::new(),
        reach: GitReach::default(),
    }
}

fn code<T>(outcome: Result<T, Error>) -> ErrorCode {
    outcome.err().unwrap().code()
}

#[tokio::test]
async fn a_pack_of_one_repository_is_integrated_into_the_other() {
    let fixture = Fixture::new();
    let second = fixture.head("one");
    let pack = fixture.pack(&second).await;
    let (pulled, _) = fixture.join(&second).run_streamed(content(pack), &fixture.place).await.unwrap();
    assert_eq!((pulled.commits, pulled.files_changed, &pulled.to), (1, 1, &second));
    assert_eq!(fixture.git(&["-C", "two", "rev-parse", "origin/main"]), second);
    assert_eq!(fs::read_to_string(fixture.folder.path().join("two/file")).unwrap(), "Second");
    // A second time, without new commits.
    for nothing in [no_content(), content(vec![Bytes::new(), Bytes::new()])] {
        let (pulled, _) = fixture.join(&second).run_streamed(nothing, &fixture.place).await.unwrap();
        assert_eq!(pulled.commits, 0);
    }
    let plan = GitExchange { path: fixture.path("two"), remote: None, branch: None, pushes: true };
    let plan = plan.run(&fixture.place).await.unwrap();
    assert_eq!((plan.remote.as_str(), plan.branch.as_str(), plan.is_local), ("origin", "main", true));
    assert_eq!((plan.commit, plan.last_seen), (Some(second.clone()), Some(second.clone())));
    assert!(plan.has.contains(&second));
    let note = GitNotePush {
        path: fixture.path("two"),
        remote: "origin".to_owned(),
        branch: "main".to_owned(),
        commit: fixture.git(&["-C", "two", "rev-parse", "HEAD~1"]),
        set_upstream: true,
    };
    note.run(&fixture.place).await.unwrap();
    assert_ne!(fixture.git(&["-C", "two", "rev-parse", "origin/main"]), second);
}

/// A truncated, missing or wrong pack leaves the branch unchanged and no files behind.
#[tokio::test]
async fn an_incomplete_pack_changes_nothing() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.head("two"), fixture.head("one"));
    let whole = fixture.pack(&second).await.concat();
    let of_first = fixture.pack(&first).await;
    let broken: Content = Box::pin(stream::iter([
        Ok(Bytes::copy_from_slice(&whole[..whole.len() / 2])),
        Err(io::Error::other("the VM ended")),
    ]));
    for pack in [
        broken,
        content(vec![Bytes::copy_from_slice(&whole[..whole.len() - 1])]),
        content(vec![Bytes::from_static(b"no pack at all")]),
        content(of_first),
        no_content(),
    ] {
        let joined = fixture.join(&second).run_streamed(pack, &fixture.place).await;
        assert_eq!(code(joined.map(|_| ())), ErrorCode::GitRefused);
        assert_eq!(fixture.head("two"), first);
    }
    let half = content(vec![Bytes::copy_from_slice(&whole[..whole.len() / 2])]);
    let sent = send("https://git.invalid/x", &second).run_streamed(half, &fixture.place).await;
    assert_eq!(code(sent.map(|_| ())), ErrorCode::GitRefused);
    while !fixture.temporary_repositories().is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Input from a VM is not trusted.
#[tokio::test]
async fn input_from_a_vm_reaches_no_local_path() {
    let fixture = Fixture::new();
    let second = fixture.head("one");
    let one = fixture.folder.path().join("one").display().to_string();
    for url in
        [one.as_str(), "/etc", "../one", "file:///etc", "ext::sh -c id", "--upload-pack=id", "git://x/y"]
    {
        let sent = send(url, &second).run_streamed(no_content(), &fixture.place).await;
        assert_eq!(code(sent.map(|_| ())), ErrorCode::RemoteForbidden, "{url}");
        let fetch = GitFetch {
            url: url.to_owned(),
            here: false,
            branch: "main".to_owned(),
            has: Vec::new(),
            boundary: Vec::new(),
            reach: GitReach::default(),
        };
        let fetched = fetch.run_streamed(no_content(), &fixture.place).await;
        assert_eq!(code(fetched.map(|_| ())), ErrorCode::RemoteForbidden, "{url}");
    }
    for odd in ["--all", "HEAD", "", "main\nrefs"] {
        let sent = send("https://git.invalid/x", odd).run_streamed(no_content(), &fixture.place).await;
        assert_eq!(code(sent.map(|_| ())), ErrorCode::InvalidValue, "{odd:?}");
        let pack = GitPack { path: fixture.path("one"), commit: odd.to_owned() };
        assert_eq!(
            code(pack.run_streamed(no_content(), &fixture.place).await.map(|_| ())),
            ErrorCode::InvalidValue
        );
        let lease = GitSend { last_seen: Some("x".to_owned()), ..send("https://git.invalid/x", &second) };
        let sent = lease.run_streamed(content(fixture.pack(&second).await), &fixture.place).await;
        assert_eq!(code(sent.map(|_| ())), ErrorCode::InvalidValue);
        let branch = GitSend { branch: format!("-{odd}"), ..send("https://git.invalid/x", &second) };
        let sent = branch.run_streamed(no_content(), &fixture.place).await;
        assert_eq!(code(sent.map(|_| ())), ErrorCode::InvalidValue);
        let note = GitNotePush {
            path: fixture.path("two"),
            remote: format!("-{odd}"),
            branch: "main".to_owned(),
            commit: second.clone(),
            set_upstream: false,
        };
        assert_eq!(code(note.run(&fixture.place).await), ErrorCode::InvalidValue);
    }
}

#[tokio::test]
async fn only_the_objects_of_a_temporary_repository_are_in_the_roots() {
    let fixture = Fixture::new();
    let second = fixture.head("one");
    let private = tempfile::tempdir().unwrap();
    let folders = || fs::read_dir(private.path()).unwrap().map(|entry| entry.unwrap().path());
    let place = fixture.place.clone().with_private_folder(private.path());
    let temporary = TemporaryRepository::create(&place).await.unwrap();
    index_pack(&temporary.repository, content(fixture.pack(&second).await)).await.unwrap();
    let known = [second];
    assert_eq!(temporary.existing_commits(&known).await.unwrap(), known);
    temporary.set_boundary(&known).await.unwrap();
    let git_dir = folders().next().unwrap().join("git");
    for file in ["config", "HEAD", "shallow"] {
        assert!(git_dir.join(file).is_file(), "{file}");
    }
    let [objects] = &fixture.temporary_repositories()[..] else { panic!("not one folder") };
    let mut names: Vec<_> = fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["info", "pack"]);
    drop(temporary);
    while folders().next().is_some() || !fixture.temporary_repositories().is_empty() {
        tokio::task::yield_now().await;
    }
}
