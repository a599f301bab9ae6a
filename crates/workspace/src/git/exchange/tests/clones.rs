//! Clones between workspaces: exports and imports.

use bytes::Bytes;
use futures_util::TryStreamExt;
use skep_api::git::{ExportSource, Exported, ExportedRef, GitExport, GitImport, GitReach, MAX_EXPORTED_REFS};

use super::*;
use crate::git::exchange::import::check_export;

const ELSEWHERE: &str = "skep://server/srv/one";

async fn export(
    fixture: &Fixture,
    name: &str,
    branch: Option<&str>,
    depth: Option<u32>,
) -> Result<(Exported, Vec<Bytes>), Error> {
    let source = ExportSource::Path(fixture.path(name).unwrap());
    let export = GitExport {
        source,
        branch: branch.map(str::to_owned),
        depth,
        has: Vec::new(),
        has_boundary: Vec::new(),
    };
    let (exported, pack) = export.run_streamed(no_content(), &fixture.place).await?;
    Ok((exported, pack.try_collect().await.unwrap()))
}

fn import(fixture: &Fixture, name: &str, exported: Exported, branch: Option<&str>) -> GitImport {
    GitImport {
        path: fixture.path(name).unwrap(),
        url: ELSEWHERE.to_owned(),
        branch: branch.map(str::to_owned),
        exported,
        reach: GitReach::default(),
    }
}

/// Repositories with branches and tags, bare, with a detached `HEAD`, and empty.
fn sources(fixture: &Fixture) {
    fixture.git(&["-C", "one", "branch", "topic", "HEAD~1"]);
    fixture.git(&["-C", "one", "tag", "light"]);
    fixture.git(&["-C", "one", "tag", "-a", "-m", "Noted", "noted", "HEAD~1"]);
    fixture.git(&["clone", "-q", "--bare", "one", "bare.git"]);
    fixture.git(&["-C", "one", "checkout", "-q", "topic"]);
    fixture.git(&["clone", "-q", "one", "detached"]);
    fixture.git(&["-C", "detached", "checkout", "-q", "--detach"]);
    fixture.git(&["init", "-q", "-b", "trunk", "empty"]);
}

/// The clone has the same references, config and files as one by `git clone`.
#[tokio::test]
async fn a_clone_in_steps_equals_a_clone_by_git() {
    let fixture = Fixture::new();
    sources(&fixture);
    let cases = [
        ("one", None, None),
        ("one", Some("main"), None),
        ("one", Some("noted"), None),
        ("one", Some("main"), Some(1)),
        ("bare.git", None, None),
        ("detached", None, None),
        ("empty", None, None),
    ];
    for (number, (name, branch, depth)) in cases.into_iter().enumerate() {
        let (ours, plain) = (format!("ours-{number}"), format!("plain-{number}"));
        let (exported, pack) = export(&fixture, name, branch, depth).await.unwrap();
        let import = import(&fixture, &ours, exported, branch);
        let (cloned, _) = import.run_streamed(content(pack), &fixture.place).await.unwrap();
        let source = fixture.folder.path().join(name).display().to_string();
        let mut arguments = vec!["clone", "-q", "--no-local"];
        let (branch, depth) =
            (branch.map(|name| format!("--branch={name}")), depth.map(|depth| format!("--depth={depth}")));
        arguments.extend(branch.as_deref().into_iter().chain(depth.as_deref()));
        arguments.extend([source.as_str(), &plain]);
        fixture.git(&arguments);
        for look in [
            &["for-each-ref", "--format=%(refname) %(objectname) %(symref)"][..],
            &["rev-parse", "--symbolic-full-name", "HEAD"],
            &["config", "--get-regexp", "^(branch|remote).*(merge|remote|fetch)$"],
            &["status", "--porcelain"],
            &["ls-files", "-s"],
        ] {
            // With a depth, git's own clone has only one branch.
            if depth.is_some() && look[0] != "status" && look[0] != "ls-files" {
                continue;
            }
            let output = |folder: &str| fixture.git(&[&["-C", folder], look].concat());
            if look[0] == "rev-parse" && name == "empty" {
                continue;
            }
            assert_eq!(output(&ours), output(&plain), "{name} {branch:?}: {look:?}");
        }
        fixture.git(&["-C", &ours, "fsck", "--strict"]);
        assert_eq!(cloned.head.is_none(), name == "empty");
        assert_eq!(fixture.git(&["-C", &ours, "config", "remote.origin.url"]), ELSEWHERE);
    }
    let depth = fixture.git(&["-C", "ours-3", "rev-list", "--count", "HEAD"]);
    assert_eq!(depth, "1");
}

/// The source may be hostile, and so may be its export.
#[tokio::test]
async fn a_failed_import_leaves_no_files() {
    let fixture = Fixture::new();
    let (exported, pack) = export(&fixture, "one", None, None).await.unwrap();
    let whole = pack.concat();
    let one = |name: &str, id: &str| Exported {
        head: None,
        commit: None,
        refs: vec![ExportedRef { name: name.to_owned(), id: id.to_owned() }],
        boundary: Vec::new(),
    };
    let id = exported.refs[0].id.clone();
    let nowhere = "1".repeat(40);
    std::fs::create_dir(fixture.folder.path().join("was-empty")).unwrap();
    for target in ["new", "was-empty"] {
        for (exported, pack) in [
            (one("refs/heads/../../config", &id), whole.clone()),
            (one("refs/heads/a b", &id), whole.clone()),
            (one("refs/heads/a\ncreate refs/x 1", &id), whole.clone()),
            (one("refs/hooks/x", &id), whole.clone()),
            (one("HEAD", &id), whole.clone()),
            (one("refs/heads/main", &nowhere), whole.clone()),
            (Exported { head: Some("-x y".to_owned()), ..exported.clone() }, whole.clone()),
            (exported.clone(), whole[..whole.len() / 2].to_vec()),
            (exported.clone(), Vec::new()),
        ] {
            let import = import(&fixture, target, exported.clone(), None);
            let made = import.run_streamed(content(vec![Bytes::from(pack)]), &fixture.place).await;
            assert_eq!(code(made.map(|_| ())), ErrorCode::GitRefused, "{exported:?}");
            let left = std::fs::read_dir(fixture.folder.path().join(target)).map(Iterator::count);
            assert_eq!(left.ok(), (target == "was-empty").then_some(0), "{exported:?}");
        }
    }
    // Positive control, then a target that exists.
    let import_it = || import(&fixture, "new", exported.clone(), None);
    let made = import_it().run_streamed(content(vec![Bytes::from(whole.clone())]), &fixture.place).await;
    assert!(made.is_ok());
    let again = import_it().run_streamed(content(vec![Bytes::from(whole)]), &fixture.place).await;
    assert_eq!(code(again.map(|_| ())), ErrorCode::AlreadyExists);
    assert_eq!(
        code(export(&fixture, "one", Some("nothing"), None).await.map(|_| ())),
        ErrorCode::UnknownRevision
    );
    assert_eq!(code(export(&fixture, "nothing", None, None).await.map(|_| ())), ErrorCode::UnknownPath);
}

#[test]
fn the_number_of_exported_references_is_limited() {
    let with = |count: usize| {
        let one = |number| ExportedRef { name: format!("refs/heads/b{number}"), id: "1".repeat(40) };
        Exported { head: None, commit: None, refs: (0..count).map(one).collect(), boundary: Vec::new() }
    };
    check_export(&with(MAX_EXPORTED_REFS)).unwrap();
    let refused = check_export(&with(MAX_EXPORTED_REFS + 1)).unwrap_err();
    assert!(refused.to_string().contains("too many branches and tags"), "{refused}");
}

/// A URL must not lead to a path on the server.
#[tokio::test]
async fn only_a_remote_is_exported_by_url() {
    let fixture = Fixture::new();
    let one = fixture.folder.path().join("one").display().to_string();
    for url in [one.as_str(), "one", "file:///etc", "ext::sh -c id", "skep://server/etc", "--upload-pack=id"]
    {
        let source = ExportSource::Url { url: url.to_owned(), reach: GitReach::default() };
        let export =
            GitExport { source, branch: None, depth: None, has: Vec::new(), has_boundary: Vec::new() };
        let exported = export.run_streamed(no_content(), &fixture.place).await;
        assert_eq!(code(exported.map(|_| ())), ErrorCode::RemoteForbidden, "{url}");
    }
}
