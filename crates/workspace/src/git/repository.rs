//! A located repository, its config, and the git commands that run in it.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::{
    AbsolutePath,
    budget::Budget,
    git::{GitReach, GitRepositories, LOCAL_LIMIT, Repositories, RepositoryPath},
    path::told,
};

use super::{
    Refused,
    lies::{Lies, around, at, listed as repositories, only},
    program::{Git, Said},
    remote::Remote,
    settings::{Own, Settings, listed, value},
    upstream::configured,
    way::Way,
};
use crate::{Error, Place, Run};

/// How deep nested submodules are examined.
const DEEPEST: usize = 8;

/// A repository whose parts all lie below the roots.
#[derive(Debug, Clone)]
pub(super) struct Repository {
    /// The workspace that it was found in; its fence applies to the repository's gits.
    pub(super) place: Place,
    /// The path that the caller gave.
    pub(super) asked: PathBuf,
    /// The top folder of the work tree; `None` for a bare repository.
    pub(super) top: Option<PathBuf>,
    /// The git directory of this work tree.
    pub(super) git_dir: PathBuf,
    /// The git directory that all work trees share.
    pub(super) common_dir: PathBuf,
    /// The current branch at the time of the look-up, if it was read without git.
    pub(super) branch: Option<String>,
    /// The repository's own config.
    pub(super) own: Vec<Own>,
    /// The overrides for git commands in this repository.
    pub(super) settings: Settings,
    /// The connection through which filters fetch missing contents.
    pub(super) way: Option<Arc<Way>>,
}

impl Run for GitRepositories {
    async fn run_without_programs(&self, place: &Place) -> Option<Repositories> {
        // In a fenced workspace the caller has tried this already.
        if place.has_fence() { None } else { self.clone().run(place).await.ok() }
    }

    async fn run(self, place: &Place) -> Result<Repositories, Error> {
        let place = place.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let (found, cut) = repositories(&*place.roots()?, place.default_cwd())?;
            let paths = found.into_iter().map(|(path, _)| {
                let (path, path_encoding) = told(path.as_os_str());
                RepositoryPath { path, path_encoding }
            });
            let mut repositories: Vec<_> = paths.collect();
            let truncated = Budget::default().shorten(&mut repositories) || cut;
            Ok(Repositories { repositories, truncated })
        });
        looking.await.map_err(|_| Error::Broken)?
    }
}

impl Repository {
    /// The repository that contains a path, or without a path the only one of the workspace.
    ///
    /// # Errors
    /// [`Refused::NoRepository`], [`Refused::NameOne`], [`Refused::Hostile`], and those of paths.
    pub(super) async fn find(place: &Place, path: Option<&AbsolutePath>) -> Result<Self, Error> {
        let (at, path) = (place.clone(), path.cloned());
        let found = tokio::task::spawn_blocking(move || {
            let roots = at.roots()?;
            match path {
                Some(path) => around(&roots, path.as_path()).map(|lies| (path.as_path().to_owned(), lies)),
                None => only(&roots, at.default_cwd()),
            }
        });
        let (asked, lies) = found.await.map_err(|_| Error::Broken)??;
        Self::open(place, asked, lies).await
    }

    async fn open(place: &Place, asked: PathBuf, lies: Lies) -> Result<Self, Error> {
        let (mut repository, own) = Self::lying(place, asked, lies);
        let own = match own {
            Some(own) => own,
            None => repository.listed().await?,
        };
        repository.configure(own)?;
        Ok(repository)
    }

    /// Like [`Self::find`], but `None` if that needs git. Blocks on file system access.
    pub(super) fn look(place: &Place, path: Option<&AbsolutePath>) -> Option<Self> {
        let roots = place.roots().ok()?;
        let (asked, lies) = match path {
            Some(path) => (path.as_path().to_owned(), around(&roots, path.as_path()).ok()?),
            None => only(&roots, place.default_cwd()).ok()?,
        };
        let (mut repository, own) = Self::lying(place, asked, lies);
        repository.configure(own?).ok()?;
        Some(repository)
    }

    /// A repository without overrides for its config, and its config if that was read without git.
    fn lying(place: &Place, asked: PathBuf, lies: Lies) -> (Self, Option<Vec<Own>>) {
        let Lies { top, git_dir, common_dir, own, branch } = lies;
        let settings = Settings::with_filters(&place.git().filters);
        let place = place.clone();
        (Self { place, asked, top, git_dir, common_dir, branch, own: Vec::new(), settings, way: None }, own)
    }

    fn configure(&mut self, own: Vec<Own>) -> Result<(), Error> {
        self.settings.overrule(&own)?;
        let main = self.git_dir == self.common_dir;
        if main && value(&own, b"core.bare").is_some_and(is_true) {
            self.top = None;
        }
        self.own = own;
        Ok(())
    }

    /// Its config, as git reads it.
    async fn listed(&self) -> Result<Vec<Own>, Error> {
        let said = self.git().args(["config", "--list", "-z", "--no-includes"]).run().await?;
        if !said.done() {
            return Err(Refused::Other { words: said.words() }.into());
        }
        // The overrides are listed too, after all others.
        let mut own = listed(&said.out);
        own.truncate(own.len().saturating_sub(self.settings.len()));
        Ok(own)
    }

    /// A git command in this repository.
    pub(super) fn git(&self) -> Git {
        let git = Git::new(&self.place, self.top.as_deref().unwrap_or(&self.git_dir), &self.settings);
        let git = git.env("GIT_DIR", &self.git_dir).within(LOCAL_LIMIT);
        let git = match &self.way {
            Some(way) => way.feed(git),
            None => git,
        };
        match &self.top {
            Some(top) => git.env("GIT_WORK_TREE", top),
            None => git.env("GIT_IMPLICIT_WORK_TREE", "0"),
        }
    }

    /// A git command that only reads: it neither waits for locks nor takes them.
    pub(super) fn reading(&self) -> Git {
        self.git().env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// Runs a git command and turns a failure into an error.
    ///
    /// # Errors
    /// [`Refused`] according to git's message.
    pub(super) async fn done(&self, git: Git) -> Result<Said, Error> {
        let said = git.run().await?;
        if said.done() { Ok(said) } else { Err(Refused::by_words(said.words()).into()) }
    }

    /// The top folder of the work tree.
    ///
    /// # Errors
    /// [`Refused::Bare`].
    pub(super) fn work_tree(&self) -> Result<&Path, Error> {
        self.top.as_deref().ok_or_else(|| Refused::Bare { path: self.asked.display().to_string() }.into())
    }

    /// Resolves a revision to a hash; `kind` is `commit`, `tree` or `object`.
    ///
    /// # Errors
    /// [`Refused::UnknownRevision`], and `invalid_value` for text that cannot be a revision.
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

    /// The hash of the current commit; `None` before the first one.
    pub(super) async fn head(&self) -> Result<Option<String>, Error> {
        let git = self.reading().args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]);
        let said = git.run().await?;
        Ok(Some(said.line()).filter(|hash| said.done() && is_hash(hash)))
    }

    /// The current branch, also before its first commit; `None` for a detached `HEAD`.
    pub(super) async fn branch(&self) -> Result<Option<String>, Error> {
        if let Some(branch) = &self.branch {
            return Ok(Some(branch.clone()));
        }
        self.branch_now().await
    }

    /// Like [`Self::branch`], but asks git again after a command that may have changed it.
    pub(super) async fn branch_now(&self) -> Result<Option<String>, Error> {
        let said = self.reading().args(["symbolic-ref", "--quiet", "HEAD"]).run().await?;
        let line = said.line();
        Ok(line.strip_prefix("refs/heads/").filter(|_| said.done()).map(str::to_owned))
    }

    /// Adds overrides for the config of all submodules, so that git starts no program when it enters them.
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

    /// Connects filters to the repository's remote, so that they can fetch missing contents. Without a remote, or if
    /// it is forbidden, they only have the contents that are stored here.
    ///
    /// # Errors
    /// [`Refused::Hostile`].
    pub(super) async fn fed(self, reach: &GitReach) -> Result<Self, Error> {
        if !self.settings.has_filters() {
            return Ok(self);
        }
        let current = self.branch().await?;
        let url = match configured(&self, None, current.as_deref(), false) {
            Ok((_, url)) => url,
            Err(Error::Git(Refused::UnknownRemote { .. })) => String::new(),
            Err(error) => return Err(error),
        };
        let way = match Remote::parse(&url) {
            Ok(remote) => remote.open(&url, reach, &self.settings).await,
            Err(refused) => Err(refused.into()),
        };
        let way = match way {
            Ok(way) => way,
            Err(_) => Remote::Local(PathBuf::new()).open("", reach, &self.settings).await?,
        };
        Ok(self.by(Arc::new(way)))
    }

    /// The same repository, whose filters use this connection.
    pub(super) fn by(self, way: Arc<Way>) -> Self {
        Self { settings: way.settings().clone(), way: Some(way), ..self }
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

/// Refuses text that cannot be a revision, or that git would parse as an option.
pub(super) fn check_revision(field: &'static str, revision: &str) -> Result<(), Error> {
    let reason = if revision.is_empty() {
        "is empty; name a branch, a tag or a commit".to_owned()
    } else if revision.starts_with('-') {
        format!("is `{revision}`, which begins with `-` like an option; branches, tags and commits do not")
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

/// Whether git reads this config value as true.
pub(super) fn is_true(value: &[u8]) -> bool {
    [&b"true"[..], b"yes", b"on", b"1"].iter().any(|word| word.eq_ignore_ascii_case(value))
}
