//! Finding a repository below the roots, with all that belongs to it.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use skep_api::{AbsolutePath, git::LOCAL_LIMIT};

use super::{
    Refused,
    program::{Git, Said},
    settings::{Own, Settings, listed, plain, value},
};
use crate::{
    Error, Place, Roots,
    roots::{Found, Last},
};

/// Submodules within submodules that are looked at.
const DEEPEST: usize = 8;
/// The longest file of a repository that is read here.
const LONGEST_FILE: u64 = 64 << 10;
/// What a repository has that may be a link.
const ENTRIES: [&str; 9] =
    ["HEAD", "config", "index", "logs", "objects", "objects/info", "objects/pack", "refs", "packed-refs"];

/// A repository that lies below the roots, whole.
#[derive(Debug, Clone)]
pub(super) struct Repository {
    /// Where it is, and behind which fence its gits work.
    pub(super) place: Place,
    /// As the caller named it.
    pub(super) asked: PathBuf,
    /// Its files; `None` of a bare one.
    pub(super) top: Option<PathBuf>,
    /// What belongs to this work tree alone.
    pub(super) git_dir: PathBuf,
    /// What belongs to all its work trees.
    pub(super) common_dir: PathBuf,
    /// The current branch when it was found, where it was read without git.
    pub(super) branch: Option<String>,
    /// What it is configured to.
    pub(super) own: Vec<Own>,
    /// What holds instead.
    pub(super) settings: Settings,
}

/// Where it lies.
#[derive(Debug, Clone)]
struct Lies {
    top: Option<PathBuf>,
    git_dir: PathBuf,
    common_dir: PathBuf,
    /// Its settings, where they can be read without git.
    own: Option<Vec<Own>>,
    /// Its branch, where it can be read without git.
    branch: Option<String>,
}

impl Repository {
    /// The repository that a path lies in, or the one that a place has.
    ///
    /// # Errors
    /// [`Refused::NoRepository`], [`Refused::NameOne`], [`Refused::Hostile`], and those of paths.
    pub(super) async fn find(place: &Place, path: Option<&AbsolutePath>) -> Result<Self, Error> {
        let (at, path) = (place.clone(), path.cloned());
        let found = tokio::task::spawn_blocking(move || {
            let roots = at.roots()?;
            match path {
                Some(path) => around(&roots, path.as_path()).map(|lies| (path.as_path().to_owned(), lies)),
                None => only(&roots),
            }
        });
        let (asked, lies) = found.await.map_err(|_| Error::Broken)??;
        Self::open(place, asked, lies).await
    }

    async fn open(place: &Place, asked: PathBuf, lies: Lies) -> Result<Self, Error> {
        let Lies { top, git_dir, common_dir, own, branch } = lies;
        let settings = Settings::default();
        let mut repository =
            Self { place: place.clone(), asked, top, git_dir, common_dir, own: Vec::new(), branch, settings };
        repository.own = match own {
            Some(own) => own,
            None => repository.listed().await?,
        };
        repository.settings.overrule(&repository.own)?;
        let main = repository.git_dir == repository.common_dir;
        if main && value(&repository.own, b"core.bare").is_some_and(is_true) {
            repository.top = None;
        }
        Ok(repository)
    }

    /// Its settings, as git reads them.
    async fn listed(&self) -> Result<Vec<Own>, Error> {
        let said = self.git().args(["config", "--list", "-z", "--no-includes"]).run().await?;
        if !said.done() {
            return Err(Refused::Other { words: said.words() }.into());
        }
        // What was set here comes back too, behind all others.
        let mut own = listed(&said.out);
        own.truncate(own.len().saturating_sub(self.settings.len()));
        Ok(own)
    }

    /// A git that works here.
    pub(super) fn git(&self) -> Git {
        let git = Git::new(&self.place, self.top.as_deref().unwrap_or(&self.git_dir), &self.settings);
        let git = git.env("GIT_DIR", &self.git_dir).within(LOCAL_LIMIT);
        match &self.top {
            Some(top) => git.env("GIT_WORK_TREE", top),
            None => git.env("GIT_IMPLICIT_WORK_TREE", "0"),
        }
    }

    /// A git that only reads: it waits for no lock, and leaves none.
    pub(super) fn reading(&self) -> Git {
        self.git().env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// What git said, where it did what it should.
    ///
    /// # Errors
    /// Git's own words.
    pub(super) async fn done(&self, git: Git) -> Result<Said, Error> {
        let said = git.run().await?;
        if said.done() { Ok(said) } else { Err(Refused::by_words(said.words()).into()) }
    }

    /// Its files.
    ///
    /// # Errors
    /// [`Refused::Bare`].
    pub(super) fn work_tree(&self) -> Result<&Path, Error> {
        self.top.as_deref().ok_or_else(|| Refused::Bare { path: self.asked.display().to_string() }.into())
    }

    /// The hash of a revision; `kind` is `commit` or `tree`.
    ///
    /// # Errors
    /// [`Refused::UnknownRevision`], and `invalid_value` for what is none.
    pub(super) async fn resolve(
        &self,
        field: &'static str,
        revision: &str,
        kind: &str,
    ) -> Result<String, Error> {
        check_revision(field, revision)?;
        let named = format!("{revision}^{{{kind}}}");
        let git = self.reading().args(["rev-parse", "--verify", "--quiet", "--end-of-options", &named]);
        let said = git.run().await?;
        let unknown = || Refused::UnknownRevision { revision: revision.to_owned() }.into();
        if said.done() && is_hash(&said.line()) { Ok(said.line()) } else { Err(unknown()) }
    }

    /// The current commit.
    pub(super) async fn head(&self) -> Result<Option<String>, Error> {
        let git = self.reading().args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]);
        let said = git.run().await?;
        Ok(Some(said.line()).filter(|hash| said.done() && is_hash(hash)))
    }

    /// The current branch, also before its first commit.
    pub(super) async fn branch(&self) -> Result<Option<String>, Error> {
        if let Some(branch) = &self.branch {
            return Ok(Some(branch.clone()));
        }
        self.branch_now().await
    }

    /// The same after it may have changed.
    pub(super) async fn branch_now(&self) -> Result<Option<String>, Error> {
        let said = self.reading().args(["symbolic-ref", "--quiet", "HEAD"]).run().await?;
        let line = said.line();
        Ok(line.strip_prefix("refs/heads/").filter(|_| said.done()).map(str::to_owned))
    }

    /// The same repository, whose submodules start no program either when git looks into them.
    ///
    /// # Errors
    /// [`Refused::Hostile`].
    pub(super) async fn with_submodules(mut self, place: &Place) -> Result<Self, Error> {
        let mut ahead = vec![(self.clone(), 0)];
        while let Some((outer, depth)) = ahead.pop() {
            for path in outer.submodules().await? {
                let (place, path) = (place.clone(), outer.work_tree()?.join(path));
                let looked = tokio::task::spawn_blocking(move || at(&*place.roots()?, &path));
                let Some(lies) = looked.await.map_err(|_| Error::Broken)?? else { continue };
                let inner = Self::open(&self.place, self.asked.clone(), lies).await?;
                self.settings.overrule(&inner.own)?;
                if depth == DEEPEST {
                    let what = "submodules".to_owned();
                    return Err(Refused::Hostile { what, why: "lie in each other too deep" }.into());
                }
                ahead.push((inner, depth + 1));
            }
        }
        Ok(self)
    }

    async fn submodules(&self) -> Result<Vec<PathBuf>, Error> {
        if self.top.is_none() {
            return Ok(Vec::new());
        }
        let said = self.done(self.reading().args(["ls-files", "--stage", "-z"])).await?;
        let entries = said.out.split(|byte| *byte == 0).filter(|entry| entry.starts_with(b"160000 "));
        Ok(entries
            .filter_map(|entry| entry.iter().position(|byte| *byte == b'\t').map(|at| &entry[at + 1..]))
            .map(|path| PathBuf::from(OsStr::from_bytes(path)))
            .collect())
    }
}

/// Refuses what no revision is, and what git would take for an option.
pub(super) fn check_revision(field: &'static str, revision: &str) -> Result<(), Error> {
    let reason = if revision.is_empty() {
        "is empty; name a branch, a tag or a commit".to_owned()
    } else if revision.starts_with('-') {
        format!("is `{revision}`, which begins with `-` as options do; no branch, tag or commit does")
    } else if revision.contains(['\0', '\n']) || revision.len() > 1_000 {
        "is no revision; name a branch, a tag or a commit".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::InvalidValue { field, reason })
}

pub(super) fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_true(value: &[u8]) -> bool {
    [&b"true"[..], b"yes", b"on", b"1"].iter().any(|word| word.eq_ignore_ascii_case(value))
}

/// The repository that a path lies in: at it, or above it below the roots.
fn around(roots: &Roots, path: &Path) -> Result<Lies, Error> {
    let found = roots.find(path, Last::Follow)?;
    if !found.is_directory() {
        return Err(Error::NotAFolder { path: path.display().to_string() });
    }
    let mut folder = real(&found, path)?;
    loop {
        if let Some(lies) = at(roots, &folder)? {
            return Ok(lies);
        }
        let above = folder.parent().map(Path::to_owned);
        match above.filter(|above| roots.find(above, Last::Follow).is_ok()) {
            Some(above) => folder = above,
            None => return Err(Refused::NoRepository { path: path.display().to_string() }.into()),
        }
    }
}

/// The root that is a repository, else the only one directly below.
fn only(roots: &Roots) -> Result<(PathBuf, Lies), Error> {
    let mut candidates = Vec::new();
    for root in roots.paths() {
        if let Some(lies) = at(roots, root)? {
            return Ok((root.to_owned(), lies));
        }
        let found = roots.find(root, Last::Follow)?;
        let names = std::fs::read_dir(found.own_name()).map_err(|error| Error::of_path(root, &error))?;
        for name in names.flatten().take(10_000) {
            let path = root.join(name.file_name());
            let is_folder = roots.find(&path, Last::Keep).is_ok_and(|found| found.is_directory());
            if is_folder && let Ok(Some(lies)) = at(roots, &path) {
                candidates.push((path, lies));
            }
        }
    }
    candidates.sort_by(|one, other| one.0.cmp(&other.0));
    let names: Vec<_> = candidates.iter().take(20).map(|(path, _)| path.display().to_string()).collect();
    match (candidates.pop(), names.len()) {
        (Some(only), 1) => Ok(only),
        (None, _) => Err(Refused::NameOne { found: "no repository lies in the roots".to_owned() }.into()),
        _ => {
            let found = format!("there are several repositories in the roots: {}", names.join(", "));
            Err(Refused::NameOne { found }.into())
        }
    }
}

/// The repository at this very folder, where there is one. Everything that it consists of lies below the roots.
fn at(roots: &Roots, folder: &Path) -> Result<Option<Lies>, Error> {
    let dot = folder.join(".git");
    let (top, git_dir) = match roots.find(&dot, Last::Follow) {
        Ok(found) if found.is_directory() => (Some(folder.to_owned()), real(&found, &dot)?),
        Ok(found) => match pointer(&found, b"gitdir: ", &dot)? {
            Some(to) => {
                let to = folder.join(to);
                (Some(folder.to_owned()), real(&inside(roots, &to, "file `.git`")?, &to)?)
            }
            None => return Ok(None),
        },
        Err(Error::OutsideRoots { .. }) => return Err(outside("`.git`")),
        Err(_) => {
            let has = |name: &str| roots.find(&folder.join(name), Last::Follow).is_ok();
            if !["HEAD", "objects", "refs"].iter().all(|name| has(name)) {
                return Ok(None);
            }
            (None, folder.to_owned())
        }
    };
    let shared = git_dir.join("commondir");
    let common_dir = match roots.find(&shared, Last::Follow) {
        Ok(found) => {
            let to = pointer(&found, b"", &shared)?.unwrap_or_else(|| PathBuf::from("."));
            let to = git_dir.join(to);
            real(&inside(roots, &to, "file `commondir`")?, &to)?
        }
        Err(Error::UnknownPath { .. }) => git_dir.clone(),
        Err(_) => return Err(outside("file `commondir`")),
    };
    if roots.find(&git_dir.join("HEAD"), Last::Keep).is_err() {
        return Ok(None);
    }
    for folder in [&git_dir, &common_dir] {
        check_entries(roots, folder)?;
    }
    check_alternates(roots, &common_dir)?;
    let own = plain_settings(roots, &git_dir, &common_dir);
    let branch = plain_branch(roots, &git_dir);
    Ok(Some(Lies { top, git_dir, common_dir, own, branch }))
}

/// The settings of a repository, where one plain file has them all.
fn plain_settings(roots: &Roots, git_dir: &Path, common_dir: &Path) -> Option<Vec<Own>> {
    // Git reads it besides only where a setting says so; that is left to git.
    if !matches!(roots.find(&git_dir.join("config.worktree"), Last::Keep), Err(Error::UnknownPath { .. })) {
        return None;
    }
    let path = common_dir.join("config");
    let text = small(&roots.find(&path, Last::Follow).ok()?, &path).ok()?;
    if text.len() as u64 == LONGEST_FILE { None } else { plain(&text) }
}

/// The branch that `HEAD` names.
fn plain_branch(roots: &Roots, git_dir: &Path) -> Option<String> {
    let path = git_dir.join("HEAD");
    let text = small(&roots.find(&path, Last::Follow).ok()?, &path).ok()?;
    let text = String::from_utf8(text).ok()?;
    let name = text.strip_prefix("ref: refs/heads/")?.strip_suffix('\n')?;
    // With another store of references than files, `HEAD` has this name for want of one.
    let plain = !name.is_empty() && name != ".invalid" && !name.contains(['\n', ' ']);
    plain.then(|| name.to_owned())
}

/// Where a found folder really is.
fn real(found: &Found, path: &Path) -> Result<PathBuf, Error> {
    std::fs::read_link(found.own_name()).map_err(|error| Error::of_path(path, &error))
}

fn outside(what: &str) -> Error {
    Refused::Hostile { what: what.to_owned(), why: "leads outside the roots" }.into()
}

fn inside(roots: &Roots, path: &Path, what: &str) -> Result<Found, Error> {
    match roots.find(path, Last::Follow) {
        Err(Error::OutsideRoots { .. }) => Err(outside(what)),
        other => other,
    }
}

/// The path that a small file of git's holds.
fn pointer(found: &Found, prefix: &[u8], path: &Path) -> Result<Option<PathBuf>, Error> {
    let text = small(found, path)?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    Ok(text.strip_prefix(prefix).map(|path| PathBuf::from(OsStr::from_bytes(path))))
}

fn small(found: &Found, path: &Path) -> Result<Vec<u8>, Error> {
    use std::io::Read;

    let mut text = Vec::new();
    let file = found.read().map_err(|error| Error::of_path(path, &error))?;
    file.take(LONGEST_FILE).read_to_end(&mut text).map_err(|error| Error::of_path(path, &error))?;
    Ok(text)
}

fn check_entries(roots: &Roots, folder: &Path) -> Result<(), Error> {
    for name in ENTRIES {
        if let Err(Error::OutsideRoots { .. }) = roots.find(&folder.join(name), Last::Follow) {
            return Err(outside(&format!("`{name}`")));
        }
    }
    Ok(())
}

/// Other object stores that this one borrows from, and those that they borrow from.
fn check_alternates(roots: &Roots, common_dir: &Path) -> Result<(), Error> {
    let what = "file `objects/info/alternates`";
    let mut ahead = vec![common_dir.join("objects")];
    let mut seen = 0;
    while let Some(objects) = ahead.pop() {
        let list = objects.join("info/alternates");
        let Ok(found) = roots.find(&list, Last::Follow) else { continue };
        for line in small(&found, &list)?.split(|byte| *byte == b'\n') {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            seen += 1;
            let borrowed = objects.join(OsStr::from_bytes(line));
            match roots.find(&borrowed, Last::Follow) {
                // Git passes over what is not there.
                Err(Error::UnknownPath { .. }) => continue,
                Err(_) => return Err(outside(what)),
                Ok(found) => ahead.push(real(&found, &borrowed)?),
            }
            if line.starts_with(b"\"") || seen > 64 {
                return Err(Refused::Hostile { what: what.to_owned(), why: "is not as git writes it" }.into());
            }
        }
    }
    Ok(())
}
