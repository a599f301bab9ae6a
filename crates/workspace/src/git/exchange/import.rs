//! Creates a repository from the export of another workspace.

use std::{
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use skep_api::{
    git::{Cloned, Exported, GitCheckTarget, GitImport, MOST_EXPORTED_REFS, Noted},
    path::told,
};

use super::{boundary, check_hash, send::take_in};
use crate::{
    Content, Error, Place, Run, RunStreamed,
    git::{
        Refused,
        lock::turn,
        make::FIRST_BRANCH,
        program::Git,
        remote::Remote,
        repository::{Repository, check_revision},
        settings::Settings,
        worktree::new_folder,
    },
    streamed::no_content,
};

const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";
/// Git's default name for the source of a clone.
const ORIGIN: &str = "origin";

impl Run for GitCheckTarget {
    async fn run(self, place: &Place) -> Result<Noted, Error> {
        new_folder(place, self.path.as_path()).await?;
        Ok(Noted {})
    }
}

impl RunStreamed for GitImport {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(Cloned, Content), Error> {
        check(&self.exported)?;
        let start = Start::of(&self)?;
        if let Remote::Local(_) = Remote::parse(&self.url)? {
            let reason = "is a path, which has another meaning in the other workspace".to_owned();
            return Err(Error::InvalidValue { field: "url", reason });
        }
        let folder = new_folder(place, self.path.as_path()).await?;
        let _turn = turn(&folder).await?;
        let unfinished = Unfinished::begin(&folder);
        match import(&self, &start, place, &folder, content).await {
            Ok(cloned) => {
                unfinished.keep();
                Ok((cloned, no_content()))
            }
            Err(error) => {
                unfinished.remove().await;
                Err(error)
            }
        }
    }
}

/// Refuses malformed exports. Names of references become input lines for git, which validates them further.
pub(super) fn check(exported: &Exported) -> Result<(), Error> {
    let refused = |words: &str| Err(Refused::Other { words: words.to_owned() }.into());
    if exported.refs.len() > MOST_EXPORTED_REFS {
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
enum Start {
    /// A branch and its commit; `None` before the first one.
    Branch(String, Option<String>),
    Commit(String),
}

impl Start {
    fn of(import: &GitImport) -> Result<Self, Error> {
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
                (None, None) => Err(Refused::UnknownRevision { revision: branch.clone() }.into()),
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
    start: &Start,
    place: &Place,
    folder: &Path,
    content: Content,
) -> Result<Cloned, Error> {
    init(import, start, place, folder).await?;
    let repository = Repository::find(place, Some(&import.path)).await?;
    let ids: Vec<&String> =
        import.exported.refs.iter().map(|one| &one.id).chain(&import.exported.commit).collect();
    if !ids.is_empty() {
        take_in(&repository, content).await?;
        let boundary = boundary::there(&repository, &import.exported.boundary).await?;
        boundary::note(&repository, &boundary).await?;
        let mut wanted = String::new();
        for id in ids {
            let _ = writeln!(wanted, "{id}");
        }
        whole(&repository, wanted).await?;
        let update = repository.git().args(["update-ref", "--stdin"]).stdin(updates(import, start));
        repository.done(update).await?;
    }
    configure(import, start, &repository).await?;
    // The operator's filters fetch from the remote, which is configured only now.
    let repository = Repository::find(place, Some(&import.path)).await?.fed(&import.reach).await?;
    check_out(start, &repository).await?;
    let (branch, head) = tokio::try_join!(repository.branch_now(), repository.head())?;
    let (path, path_encoding) = told(import.path.as_path().as_os_str());
    Ok(Cloned { path, path_encoding, branch, head })
}

/// Refuses an incomplete pack: all objects of these revisions, one per line, must be present. Objects that references
/// reach are not checked again.
pub(super) async fn whole(repository: &Repository, wanted: String) -> Result<(), Error> {
    let git = repository.reading().args(["rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"]);
    let said = git.stdin(wanted).run().await?;
    if said.done() { Ok(()) } else { Err(Refused::BrokenOff { words: said.words() }.into()) }
}

async fn init(import: &GitImport, start: &Start, place: &Place, folder: &Path) -> Result<(), Error> {
    let first = match start {
        Start::Branch(name, _) => name,
        Start::Commit(_) => FIRST_BRANCH,
    };
    let is_long = import.exported.refs.first().is_some_and(|one| one.id.len() == 64);
    let format = if is_long { "--object-format=sha256" } else { "--object-format=sha1" };
    let branch = format!("--initial-branch={first}");
    let git = Git::new(place, Path::new("/"), &Settings::default());
    let git = git.args(["init", "--quiet", "--template=", format, &branch, "--"]).args([folder]);
    let said = git.run().await?;
    if said.done() { Ok(()) } else { Err(Refused::by_words(said.words()).into()) }
}

/// The input of `git update-ref --stdin`. Branches become remote-tracking branches.
fn updates(import: &GitImport, start: &Start) -> String {
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
    if let Start::Branch(name, Some(id)) = start {
        let _ = writeln!(text, "create {HEADS}{name} {id}");
    }
    text
}

/// Configures the remote, its current branch, and the upstream of the checked-out branch.
async fn configure(import: &GitImport, start: &Start, repository: &Repository) -> Result<(), Error> {
    let remote = repository.git().args(["remote", "add", "--", ORIGIN, &import.url]);
    repository.done(remote).await?;
    let has =
        |branch: &str| import.exported.refs.iter().any(|one| one.name.strip_prefix(HEADS) == Some(branch));
    if let Some(head) = import.exported.head.as_deref().filter(|head| has(head)) {
        let (name, to) = (format!("refs/remotes/{ORIGIN}/HEAD"), format!("refs/remotes/{ORIGIN}/{head}"));
        repository.done(repository.git().args(["symbolic-ref", &name, &to])).await?;
    }
    if let Start::Branch(name, _) = start {
        for (key, value) in [("remote", ORIGIN.to_owned()), ("merge", format!("{HEADS}{name}"))] {
            let key = format!("branch.{name}.{key}");
            repository.done(repository.git().args(["config", "--local", &key, &value])).await?;
        }
    }
    Ok(())
}

async fn check_out(start: &Start, repository: &Repository) -> Result<(), Error> {
    let git = match start {
        Start::Branch(_, None) => return Ok(()),
        Start::Branch(_, Some(_)) => {
            repository.git().args(["reset", "--quiet", "--hard", "--no-recurse-submodules"])
        }
        Start::Commit(id) => {
            repository.git().args(["checkout", "--quiet", "--no-recurse-submodules", "--detach", id, "--"])
        }
    };
    repository.done(git).await?;
    Ok(())
}

/// Removes an unfinished clone when it is dropped, unless [`Self::keep`] was called.
struct Unfinished {
    folder: Option<PathBuf>,
    existed: bool,
}

impl Unfinished {
    fn begin(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()), existed: fs::symlink_metadata(folder).is_ok() }
    }

    fn keep(mut self) {
        self.folder = None;
    }

    async fn remove(mut self) {
        let (folder, existed) = (self.folder.take(), self.existed);
        // Errors are ignored: the caller reports the one that led here.
        let _ = tokio::task::spawn_blocking(move || folder.map(|folder| clear(&folder, existed))).await;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let (Some(folder), existed) = (self.folder.take(), self.existed) else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || clear(&folder, existed))),
            Err(_) => clear(&folder, existed),
        }
    }
}

/// Removes the folder, or only its content if the folder existed before. Retries, because a git that is ending may
/// still create files.
fn clear(folder: &Path, existed: bool) {
    for _ in 0..ATTEMPTS {
        let removed = if existed { remove_entries(folder) } else { fs::remove_dir_all(folder) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => return,
        }
    }
    tracing::warn!(folder = %folder.display(), "the files of an unfinished clone could not be removed");
}

/// Together longer than the grace period of a git that is ending.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(100);

fn remove_entries(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
