//! Creates a repository from the export of another workspace.

use std::{fmt::Write, path::Path};

use skep_api::{
    git::{
        Cloned, EmptyAnswer, Exported, GitCheckTarget, GitImport, GitReach, MAX_EXPORTED_REFS, NETWORK_LIMIT,
    },
    path::encode_path,
};

use super::{boundary, check_hash, send::index_pack, unfinished_clone::UnfinishedClone};
use crate::{
    Content, Error, Place, Run, RunStreamed,
    git::{
        GitError,
        config::ConfigOverrides,
        create::FIRST_BRANCH,
        large_files,
        lock::write_lock,
        program::Git,
        remote::Remote,
        repository::{Repository, check_revision},
        worktree::resolve_new_folder,
    },
    streamed::no_content,
};

pub(super) const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";
/// Git's default name for the source of a clone.
const ORIGIN: &str = "origin";

impl Run for GitCheckTarget {
    async fn run(self, place: &Place) -> Result<EmptyAnswer, Error> {
        resolve_new_folder(place, self.path.as_path()).await?;
        Ok(EmptyAnswer {})
    }
}

impl RunStreamed for GitImport {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(Cloned, Content), Error> {
        check_export(&self.exported)?;
        let start = InitialCheckout::of(&self)?;
        if let Remote::Local(_) = Remote::parse(&self.url)? {
            let reason = "is a path, which has another meaning in the other workspace".to_owned();
            return Err(Error::InvalidValue { field: "url", reason });
        }
        let folder = resolve_new_folder(place, self.path.as_path()).await?;
        let _lock = write_lock(&folder).await?;
        let unfinished = UnfinishedClone::begin(place, &folder);
        let cloned = unfinished.end(import(&self, &start, place, &folder, content).await).await?;
        Ok((cloned, no_content()))
    }
}

/// Refuses malformed exports. Names of references become input lines for git, which validates them further.
pub(super) fn check_export(exported: &Exported) -> Result<(), Error> {
    let refused = |message: &str| Err(GitError::Other { message: message.to_owned() }.into());
    if exported.refs.len() > MAX_EXPORTED_REFS {
        return refused("the source has too many branches and tags");
    }
    boundary::check(&exported.boundary)?;
    for one in &exported.refs {
        check_hash(&one.id)?;
        let is_plain = !one.name.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        if !is_plain || !(one.name.starts_with(HEADS) || one.name.starts_with(TAGS)) {
            return refused("the source has a branch or a tag with a name that git does not allow");
        }
    }
    exported.commit.iter().try_for_each(|commit| check_hash(commit))
}

/// The initial checkout of the clone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InitialCheckout {
    /// A branch and its commit; `None` before the first one.
    Branch(String, Option<String>),
    Commit(String),
}

impl InitialCheckout {
    /// The branch that is checked out, or that a new repository has.
    pub(super) fn first_branch(&self) -> &str {
        match self {
            Self::Branch(name, _) => name,
            Self::Commit(_) => FIRST_BRANCH,
        }
    }

    pub(super) fn of(import: &GitImport) -> Result<Self, Error> {
        let Exported { head, commit, .. } = &import.exported;
        let id = |prefix: &str, name: &str| {
            let mut refs = import.exported.refs.iter();
            refs.find(|one| one.name.strip_prefix(prefix) == Some(name)).map(|one| one.id.clone())
        };
        if let Some(branch) = &import.branch {
            check_revision("branch", branch)?;
            return match (id(HEADS, branch), id(TAGS, branch)) {
                (Some(id), _) => Ok(Self::Branch(branch.clone(), Some(id))),
                (None, Some(id)) => Ok(Self::Commit(id)),
                (None, None) => Err(GitError::UnknownRevision { revision: branch.clone() }.into()),
            };
        }
        Ok(match (head, commit) {
            (Some(head), _) => Self::Branch(head.clone(), id(HEADS, head)),
            (None, Some(commit)) => Self::Commit(commit.clone()),
            (None, None) => Self::Branch(FIRST_BRANCH.to_owned(), None),
        })
    }
}

async fn import(
    import: &GitImport,
    start: &InitialCheckout,
    place: &Place,
    folder: &Path,
    content: Content,
) -> Result<Cloned, Error> {
    init(place, folder, start.first_branch(), is_sha256(&import.exported)).await?;
    let repository = Repository::find(place, Some(&import.path)).await?;
    let ids: Vec<&String> =
        import.exported.refs.iter().map(|one| &one.id).chain(&import.exported.commit).collect();
    if !ids.is_empty() {
        index_pack(&repository, content).await?;
        store_boundary(&repository, &import.exported).await?;
        let mut wanted = String::new();
        for id in ids {
            let _ = writeln!(wanted, "{id}");
        }
        check_complete(&repository, wanted).await?;
    }
    finish(import, start, place, None).await
}

pub(super) async fn store_boundary(repository: &Repository, exported: &Exported) -> Result<(), Error> {
    let boundary = boundary::existing_commits(repository, &exported.boundary).await?;
    boundary::store(repository, &boundary).await
}

/// Sets the references and the configuration of a clone whose objects are there, and checks it out. Fetches from the remote get
/// `only_branch`; `None` for all branches.
pub(super) async fn finish(
    import: &GitImport,
    start: &InitialCheckout,
    place: &Place,
    only_branch: Option<&str>,
) -> Result<Cloned, Error> {
    let repository = Repository::find(place, Some(&import.path)).await?;
    let update = repository.git().timeout(NETWORK_LIMIT).args(["update-ref", "--stdin"]);
    let update = update.stdin(update_commands(import, start));
    repository.run_checked(update).await?;
    // As a clone of git leaves them: a file for each would take longer to read.
    repository.run_checked(repository.git().args(["pack-refs", "--all"])).await?;
    configure(import, start, &repository, only_branch).await?;
    // The remote is configured only now.
    let repository = Repository::find(place, Some(&import.path)).await?;
    check_out(start, &repository, &import.reach).await?;
    let (branch, head) = tokio::try_join!(repository.branch_now(), repository.head())?;
    let (path, path_encoding) = encode_path(import.path.as_path().as_os_str());
    Ok(Cloned { path, path_encoding, branch, head })
}

/// Refuses an incomplete pack: all objects of these revisions, one per line, must be present. Objects that references
/// reach are not checked again.
pub(super) async fn check_complete(repository: &Repository, wanted: String) -> Result<(), Error> {
    let git =
        repository.read_only_git().args(["rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"]);
    let output = git.stdin(wanted).run().await?;
    if output.is_success() {
        Ok(())
    } else {
        Err(GitError::IncompleteTransfer { message: output.message() }.into())
    }
}

fn is_sha256(exported: &Exported) -> bool {
    exported.refs.first().is_some_and(|one| one.id.len() == 64)
}

pub(super) async fn init(
    place: &Place,
    folder: &Path,
    first_branch: &str,
    is_sha256: bool,
) -> Result<(), Error> {
    let format = if is_sha256 { "--object-format=sha256" } else { "--object-format=sha1" };
    let branch = format!("--initial-branch={first_branch}");
    let git = Git::new(place, Path::new("/"), &ConfigOverrides::default());
    let git = git.args(["init", "--quiet", "--template=", format, &branch, "--"]).args([folder]);
    let output = git.run().await?;
    if output.is_success() { Ok(()) } else { Err(GitError::from_message(output.message()).into()) }
}

/// The input of `git update-ref --stdin`. Branches become remote-tracking branches.
fn update_commands(import: &GitImport, start: &InitialCheckout) -> String {
    let mut text = String::new();
    for one in &import.exported.refs {
        let name = match one.name.strip_prefix(HEADS) {
            // It would collide with the symbolic reference to the remote's current branch.
            Some("HEAD") => continue,
            Some(branch) => format!("refs/remotes/{ORIGIN}/{branch}"),
            None => one.name.clone(),
        };
        let _ = writeln!(text, "create {name} {}", one.id);
    }
    if let InitialCheckout::Branch(name, Some(id)) = start {
        let _ = writeln!(text, "create {HEADS}{name} {id}");
    }
    text
}

/// Configures the remote, its current branch, and the upstream of the checked-out branch.
async fn configure(
    import: &GitImport,
    start: &InitialCheckout,
    repository: &Repository,
    only_branch: Option<&str>,
) -> Result<(), Error> {
    let only_branch = only_branch.map(|branch| format!("--track={branch}"));
    let remote = repository.git().args(["remote", "add"]).args(only_branch);
    repository.run_checked(remote.args(["--", ORIGIN, &import.url])).await?;
    let has =
        |branch: &str| import.exported.refs.iter().any(|one| one.name.strip_prefix(HEADS) == Some(branch));
    if let Some(head) = import.exported.head.as_deref().filter(|head| has(head)) {
        let (name, to) = (format!("refs/remotes/{ORIGIN}/HEAD"), format!("refs/remotes/{ORIGIN}/{head}"));
        repository.run_checked(repository.git().args(["symbolic-ref", &name, &to])).await?;
    }
    if let InitialCheckout::Branch(name, _) = start {
        for (key, value) in [("remote", ORIGIN.to_owned()), ("merge", format!("{HEADS}{name}"))] {
            let key = format!("branch.{name}.{key}");
            repository.run_checked(repository.git().args(["config", "--local", &key, &value])).await?;
        }
    }
    Ok(())
}

async fn check_out(start: &InitialCheckout, repository: &Repository, reach: &GitReach) -> Result<(), Error> {
    let (git, commit) = match start {
        InitialCheckout::Branch(_, None) => return Ok(()),
        InitialCheckout::Branch(_, Some(id)) => {
            (repository.git().args(["reset", "--quiet", "--hard", "--no-recurse-submodules"]), id)
        }
        InitialCheckout::Commit(id) => {
            let checkout = ["checkout", "--quiet", "--no-recurse-submodules", "--detach", id, "--"];
            (repository.git().args(checkout), id)
        }
    };
    let checkout = repository.run_checked(git.timeout(NETWORK_LIMIT));
    large_files::check_out(repository, commit, reach, checkout).await?;
    Ok(())
}
