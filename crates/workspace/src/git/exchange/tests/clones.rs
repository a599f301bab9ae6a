//! Clones between workspaces: exports and imports.

use bytes::Bytes;
use futures_util::TryStreamExt;
use skep_api::git::{ExportSource, Exported, ExportedRef, GitExport, GitImport, GitReach};

use super::*;

const ELSEWHERE: &str = "skep://server/srv/one";

async fn export(
    ground: &Ground,
    name: &str,
    branch: Option<&str>,
    depth: Option<u32>,
) -> Result<(Exported, Vec<Bytes>), Error> {
    let source = ExportSource::Path(ground.path(name).unwrap());
    let export = GitExport {
        source,
        branch: branch.map(str::to_owned),
        depth,
        has: Vec::new(),
        has_boundary: Vec::new(),
    };
    let (exported, pack) = export.run_streamed(no_content(), &ground.place).await?;
    Ok((exported, pack.try_collect().await.unwrap()))
}

fn import(ground: &Ground, name: &str, exported: Exported, branch: Option<&str>) -> GitImport {
    GitImport {
        path: ground.path(name).unwrap(),
        url: ELSEWHERE.to_owned(),
        branch: branch.map(str::to_owned),
        exported,
        reach: GitReach::default(),
    }
}

/// Repositories with branches and tags, bare, with a detached `HEAD`, and empty.
fn sources(ground: &Ground) {
    ground.git(&["-C", "one", "branch", "topic", "HEAD~1"]);
    ground.git(&["-C", "one", "tag", "light"]);
    ground.git(&["-C", "one", "tag", "-a", "-m", "Noted", "noted", "HEAD~1"]);
    ground.git(&["clone", "-q", "--bare", "one", "bare.git"]);
    ground.git(&["-C", "one", "checkout", "-q", "topic"]);
    ground.git(&["clone", "-q", "one", "detached"]);
    ground.git(&["-C", "detached", "checkout", "-q", "--detach"]);
    ground.git(&["init", "-q", "-b", "trunk", "empty"]);
}

/// The clone has the same references, config and files as one by `git clone`.
#[tokio::test]
async fn a_clone_in_parts_is_the_clone_that_git_makes() {
    let ground = Ground::new();
    sources(&ground);
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
        let (exported, pack) = export(&ground, name, branch, depth).await.unwrap();
        let import = import(&ground, &ours, exported, branch);
        let (cloned, _) = import.run_streamed(content(pack), &ground.place).await.unwrap();
        let source = ground.folder.path().join(name).display().to_string();
        let mut words = vec!["clone", "-q", "--no-local"];
        let (branch, depth) =
            (branch.map(|name| format!("--branch={name}")), depth.map(|depth| format!("--depth={depth}")));
        words.extend(branch.as_deref().into_iter().chain(depth.as_deref()));
        words.extend([source.as_str(), &plain]);
        ground.git(&words);
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
            let said = |folder: &str| ground.git(&[&["-C", folder], look].concat());
            if look[0] == "rev-parse" && name == "empty" {
                continue;
            }
            assert_eq!(said(&ours), said(&plain), "{name} {branch:?}: {look:?}");
        }
        ground.git(&["-C", &ours, "fsck", "--strict"]);
        assert_eq!(cloned.head.is_none(), name == "empty");
        assert_eq!(ground.git(&["-C", &ours, "config", "remote.origin.url"]), ELSEWHERE);
    }
    let depth = ground.git(&["-C", "ours-3", "rev-list", "--count", "HEAD"]);
    assert_eq!(depth, "1");
}

/// The source may be hostile, and so may be its export.
#[tokio::test]
async fn what_cannot_become_a_repository_leaves_nothing() {
    let ground = Ground::new();
    let (exported, pack) = export(&ground, "one", None, None).await.unwrap();
    let whole = pack.concat();
    let one = |name: &str, id: &str| Exported {
        head: None,
        commit: None,
        refs: vec![ExportedRef { name: name.to_owned(), id: id.to_owned() }],
        boundary: Vec::new(),
    };
    let id = exported.refs[0].id.clone();
    let nowhere = "1".repeat(40);
    std::fs::create_dir(ground.folder.path().join("was-empty")).unwrap();
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
            let import = import(&ground, target, exported.clone(), None);
            let made = import.run_streamed(content(vec![Bytes::from(pack)]), &ground.place).await;
            assert_eq!(code(made.map(|_| ())), ErrorCode::GitRefused, "{exported:?}");
            let left = std::fs::read_dir(ground.folder.path().join(target)).map(Iterator::count);
            assert_eq!(left.ok(), (target == "was-empty").then_some(0), "{exported:?}");
        }
    }
    // Positive control, then a target that exists.
    let import_it = || import(&ground, "new", exported.clone(), None);
    let made = import_it().run_streamed(content(vec![Bytes::from(whole.clone())]), &ground.place).await;
    assert!(made.is_ok());
    let again = import_it().run_streamed(content(vec![Bytes::from(whole)]), &ground.place).await;
    assert_eq!(code(again.map(|_| ())), ErrorCode::AlreadyExists);
    assert_eq!(
        code(export(&ground, "one", Some("nothing"), None).await.map(|_| ())),
        ErrorCode::UnknownRevision
    );
    assert_eq!(code(export(&ground, "nothing", None, None).await.map(|_| ())), ErrorCode::UnknownPath);
}

/// A URL must not lead to a path on the server.
#[tokio::test]
async fn only_a_remote_is_exported_by_url() {
    let ground = Ground::new();
    let one = ground.folder.path().join("one").display().to_string();
    for url in [one.as_str(), "one", "file:///etc", "ext::sh -c id", "skep://server/etc", "--upload-pack=id"]
    {
        let source = ExportSource::Url { url: url.to_owned(), reach: GitReach::default() };
        let export =
            GitExport { source, branch: None, depth: None, has: Vec::new(), has_boundary: Vec::new() };
        let exported = export.run_streamed(no_content(), &ground.place).await;
        assert_eq!(code(exported.map(|_| ())), ErrorCode::RemoteForbidden, "{url}");
    }
}
