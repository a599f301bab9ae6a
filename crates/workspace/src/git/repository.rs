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
    git::{GitRepositories, LOCAL_LIMIT, Repositories, RepositoryPath},
    path::encode_path,
};

use super::{
    GitError,
    config::{ConfigEntry, ConfigOverrides, last_value, parse_config_list},
    locate::{RepositoryLayout, discover, list_repositories as repositories, repository_at, sole_repository},
    program::{Git, GitOutput},
    read_permits::ReadPermit,
};
use crate::{Error, Place, Run};

/// How deep nested submodules are examined.
const MAX_SUBMODULE_DEPTH: usize = 8;

/// A repository whose parts all lie below the roots.
#[derive(Debug, Clone)]
pub(super) struct Repository {
    /// The workspace that it was found in; its fence applies to the repository's gits.
    pub(super) place: Place,
    /// The path that the caller gave.
    pub(super) requested_path: PathBuf,
    /// The top folder of the work tree; `None` for a bare repository.
    pub(super) top_folder: Option<PathBuf>,
    /// The git directory of this work tree.
    pub(super) git_dir: PathBuf,
    /// The git directory that all work trees share.
    pub(super) common_dir: PathBuf,
    /// The current branch at the time of the look-up, if it was read without git.
    pub(super) branch: Option<String>,
    /// The repository's own config.
    pub(super) config: Vec<ConfigEntry>,
    /// The overrides for git commands in this repository.
    pub(super) overrides: ConfigOverrides,
    /// Of an operation that was counted among those that read.
    pub(super) read_permit: Option<Arc<ReadPermit>>,
}

impl Run for GitRepositories {
    async fn run(self, place: &Place) -> Result<Repositories, Error> {
        let place = place.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let (found, cut) = repositories(&*place.roots()?, place.default_cwd())?;
            let paths = found.into_iter().map(|(path, _)| {
                let (path, path_encoding) = encode_path(path.as_os_str());
                RepositoryPath { path, path_encoding }
            });
            let mut repositories: Vec<_> = paths.collect();
            let truncated = Budget::default().truncate_page(&mut repositories) || cut;
            Ok(Repositories { repositories, truncated })
        });
        looking.await.map_err(|_| Error::WorkerFailed)?
    }
}

impl Repository {
    /// The repository that contains a path, or without a path the only one of the workspace.
    ///
    /// # Errors
    /// [`GitError::NoRepository`], [`GitError::PathRequired`], [`GitError::Hostile`], and those of paths.
    pub(super) async fn find(place: &Place, path: Option<&AbsolutePath>) -> Result<Self, Error> {
        Self::find_with(place, path, None).await
    }

    /// Like [`Self::find`], for an operation that only reads: waits until there is room among those. Its gits keep the permit.
    ///
    /// # Errors
    /// Those of [`Self::find`].
    pub(super) async fn find_to_read(place: &Place, path: Option<&AbsolutePath>) -> Result<Self, Error> {
        let permit = Arc::new(ReadPermit::acquire(place).await?);
        Self::find_with(place, path, Some(permit)).await
    }

    async fn find_with(
        place: &Place,
        path: Option<&AbsolutePath>,
        read_permit: Option<Arc<ReadPermit>>,
    ) -> Result<Self, Error> {
        let (at, path, held) = (place.clone(), path.cloned(), read_permit.clone());
        let found = tokio::task::spawn_blocking(move || {
            // The thread may last longer than its caller waits.
            let _permit = held;
            let roots = at.roots()?;
            match path {
                Some(path) => {
                    discover(&roots, path.as_path()).map(|layout| (path.as_path().to_owned(), layout))
                }
                None => sole_repository(&roots, at.default_cwd()),
            }
        });
        let (requested_path, layout) = found.await.map_err(|_| Error::WorkerFailed)??;
        Self::open(place, requested_path, layout, read_permit).await
    }

    /// A bare repository that the server has made for itself.
    pub(super) fn made_by_server(place: &Place, git_dir: PathBuf) -> Self {
        Self {
            place: place.clone(),
            requested_path: git_dir.clone(),
            top_folder: None,
            common_dir: git_dir.clone(),
            git_dir,
            branch: None,
            config: Vec::new(),
            overrides: ConfigOverrides::with_filters(&place.git_grants().filters),
            read_permit: None,
        }
    }

    async fn open(
        place: &Place,
        requested_path: PathBuf,
        layout: RepositoryLayout,
        read_permit: Option<Arc<ReadPermit>>,
    ) -> Result<Self, Error> {
        let mut repository = Self {
            place: place.clone(),
            requested_path,
            top_folder: layout.top,
            git_dir: layout.git_dir,
            common_dir: layout.common_dir,
            branch: layout.branch,
            config: Vec::new(),
            overrides: ConfigOverrides::with_filters(&place.git_grants().filters),
            read_permit,
        };
        let config = match layout.config {
            Some(config) => config,
            None => repository.read_config().await?,
        };
        repository.apply_config(config)?;
        Ok(repository)
    }

    fn apply_config(&mut self, config: Vec<ConfigEntry>) -> Result<(), Error> {
        self.overrides.override_config(&config)?;
        let main = self.git_dir == self.common_dir;
        if main && last_value(&config, b"core.bare").is_some_and(is_true) {
            self.top_folder = None;
        }
        self.config = config;
        Ok(())
    }

    /// Its config, as git reads it.
    async fn read_config(&self) -> Result<Vec<ConfigEntry>, Error> {
        let output = self.git().args(["config", "--list", "-z", "--no-includes"]).run().await?;
        if !output.is_success() {
            return Err(GitError::Other { message: output.message() }.into());
        }
        // The overrides are listed too, after all others.
        let mut own = parse_config_list(&output.stdout);
        own.truncate(own.len().saturating_sub(self.overrides.len()));
        Ok(own)
    }

    /// The folder that its gits run in. One with a private git directory runs elsewhere: a link of the repository to
    /// `/proc/self/cwd` would lead to its config.
    fn working_folder(&self) -> &Path {
        let outside = if self.place.has_private_access() { Path::new("/") } else { &self.git_dir };
        self.top_folder.as_deref().unwrap_or(outside)
    }

    /// A git command in this repository.
    pub(super) fn git(&self) -> Git {
        let git = Git::new(&self.place, self.working_folder(), &self.overrides);
        let git = git.env("GIT_DIR", &self.git_dir).timeout(LOCAL_LIMIT);
        let git = git.with_read_permit(self.read_permit.clone());
        match &self.top_folder {
            Some(top) => git.env("GIT_WORK_TREE", top),
            None => git.env("GIT_IMPLICIT_WORK_TREE", "0"),
        }
    }

    /// A git command that only reads. `GIT_OPTIONAL_LOCKS` keeps it from taking locks, except for `git diff`: see `diff.rs`.
    pub(super) fn read_only_git(&self) -> Git {
        self.git().env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// Runs a git command and turns a failure into an error.
    ///
    /// # Errors
    /// [`GitError`] according to git's message.
    pub(super) async fn run_checked(&self, git: Git) -> Result<GitOutput, Error> {
        let output = git.run().await?;
        if output.is_success() { Ok(output) } else { Err(GitError::from_message(output.message()).into()) }
    }

    /// The top folder of the work tree.
    ///
    /// # Errors
    /// [`GitError::Bare`].
    pub(super) fn work_tree(&self) -> Result<&Path, Error> {
        self.top_folder
            .as_deref()
            .ok_or_else(|| GitError::Bare { path: self.requested_path.display().to_string() }.into())
    }

    /// Resolves a revision to a hash; `kind` is `commit`, `tree` or `object`.
    ///
    /// # Errors
    /// [`GitError::UnknownRevision`], and `invalid_value` for text that cannot be a revision.
    pub(super) async fn resolve(
        &self,
        field: &'static str,
        revision: &str,
        kind: &str,
    ) -> Result<String, Error> {
        check_revision(field, revision)?;
        let named = format!("{revision}^{{{kind}}}");
        let git = self.read_only_git().args(["rev-parse", "--verify", "--quiet", "--end-of-options", &named]);
        let output = git.run().await?;
        if output.exit_code()? == 0 && is_hash(&output.stdout_text()) {
            return Ok(output.stdout_text());
        }
        Err(GitError::UnknownRevision { revision: revision.to_owned() }.into())
    }

    /// The hash of the current commit; `None` before the first one.
    pub(super) async fn head(&self) -> Result<Option<String>, Error> {
        let git = self.read_only_git().args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]);
        let hash = git.run().await?.found()?;
        Ok(hash.filter(|hash| is_hash(hash)))
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
        let name = self.read_only_git().args(["symbolic-ref", "--quiet", "HEAD"]).run().await?.found()?;
        Ok(name.and_then(|name| name.strip_prefix("refs/heads/").map(str::to_owned)))
    }

    /// Adds overrides for the config of all submodules, so that git starts no program when it enters them.
    ///
    /// # Errors
    /// [`GitError::Hostile`].
    pub(super) async fn with_submodules(mut self, place: &Place) -> Result<Self, Error> {
        let mut ahead = vec![(self.clone(), 0)];
        while let Some((outer, depth)) = ahead.pop() {
            for path in outer.submodules().await? {
                let (place, path) = (place.clone(), outer.work_tree()?.join(path));
                let looked = tokio::task::spawn_blocking(move || repository_at(&*place.roots()?, &path));
                let Some(layout) = looked.await.map_err(|_| Error::WorkerFailed)?? else { continue };
                let inner = Self::open(&self.place, self.requested_path.clone(), layout, None).await?;
                self.overrides.override_config(&inner.config)?;
                if depth == MAX_SUBMODULE_DEPTH {
                    let what = "submodules".to_owned();
                    return Err(GitError::Hostile { what, why: "lie in each other too deep" }.into());
                }
                ahead.push((inner, depth + 1));
            }
        }
        Ok(self)
    }

    async fn submodules(&self) -> Result<Vec<PathBuf>, Error> {
        if self.top_folder.is_none() {
            return Ok(Vec::new());
        }
        let output = self.run_checked(self.read_only_git().args(["ls-files", "--stage", "-z"])).await?;
        let entries = output.stdout.split(|byte| *byte == 0).filter(|entry| entry.starts_with(b"160000 "));
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
