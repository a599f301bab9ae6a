//! One place with files, git and a shell.

use std::{
    collections::BTreeMap,
    fmt,
    fs::DirBuilder,
    io,
    os::{fd::BorrowedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
};

use crate::{
    Commands, EntryLocks, Error, Fence, Roots,
    git::{GitGrants, Reach},
    roots::Found,
};

/// Limits the thread that calls it, and all that it starts from then on, to what is read below these folders.
pub type WalkFence = fn(&[BorrowedFd<'_>]) -> io::Result<()>;

/// Makes the fence around a git and all that it starts, whatever settings say.
#[warn(missing_docs)]
pub trait GitFence: fmt::Debug + Send + Sync {
    /// A fence that lets a git connect so far, and start no other programs than it needs for that. A kernel that lacks a mechanism makes one without it.
    ///
    /// # Errors
    /// The rules cannot be made.
    fn around(&self, reach: Reach) -> io::Result<Fence>;
}

/// One place below one root. Cheap to clone; clones share the commands that run here.
#[derive(Debug, Clone)]
pub struct Place {
    ground: Arc<Ground>,
    commands: Commands,
    call: Option<Arc<str>>,
    folders: Arc<[PathBuf]>,
    fence: Option<Fence>,
    roots: Arc<OnceLock<Arc<Roots>>>,
    walk_fence: Option<WalkFence>,
    git_fence: Option<Arc<dyn GitFence>>,
    git: Arc<GitGrants>,
    made_below: Option<Arc<Path>>,
    entry_locks: EntryLocks,
}

#[derive(Debug, Clone)]
struct Ground {
    default_cwd: PathBuf,
    env: BTreeMap<String, String>,
}

impl Place {
    /// A place below `root`, whose commands start in `default_cwd` and see `env` and nothing else, and whose
    /// control groups lie below `cgroup_parent`, a directory of cgroup v2 that may be written.
    pub fn new(
        root: impl Into<PathBuf>,
        default_cwd: impl Into<PathBuf>,
        env: BTreeMap<String, String>,
        cgroup_parent: impl Into<PathBuf>,
    ) -> Self {
        let ground = Ground { default_cwd: default_cwd.into(), env };
        let folders = Arc::from([root.into()]);
        Self {
            ground: Arc::new(ground),
            commands: Commands::new(Some(cgroup_parent.into())),
            call: None,
            folders,
            fence: None,
            roots: Arc::default(),
            walk_fence: None,
            git_fence: None,
            git: Arc::default(),
            made_below: None,
            entry_locks: EntryLocks::default(),
        }
    }

    /// The same place, which keeps a shell that is loaded and linked for the next command. Only for a process whose
    /// commands are all started on one thread.
    #[must_use]
    pub fn with_shell_ahead(self) -> Self {
        self.commands.start_ahead(self.ground.default_cwd.clone());
        self
    }

    /// The same place, whose commands see these variables too; these win.
    #[must_use]
    pub fn with_env(&self, more: &BTreeMap<String, String>) -> Self {
        let mut ground = Ground::clone(&self.ground);
        ground.env.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { ground: Arc::new(ground), ..self.clone() }
    }

    /// The same place, whose files lie in these folders and nowhere else.
    #[must_use]
    pub fn with_roots(self, roots: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { folders: roots.into_iter().collect(), roots: Arc::default(), ..self }
    }

    /// The same place, where nobody may make control groups: of a command, what descends from its shell is ended.
    #[must_use]
    pub fn without_groups(self) -> Self {
        Self { commands: Commands::new(None), ..self }
    }

    /// The same place for one account: its files lie in these folders, the first of which is where its commands start and
    /// their home, and every program that is started enters this fence first.
    #[must_use]
    pub fn for_account(&self, roots: Vec<PathBuf>, fence: Fence) -> Self {
        let mut ground = Ground::clone(&self.ground);
        if let Some(first) = roots.first() {
            ground.default_cwd.clone_from(first);
            ground.env.insert("HOME".to_owned(), first.display().to_string());
        }
        Self { ground: Arc::new(ground), fence: Some(fence), ..self.clone().with_roots(roots) }
    }

    /// The same place, where whatever walks by path does so behind this fence.
    #[must_use]
    pub fn with_walk_fence(self, fence: WalkFence) -> Self {
        Self { walk_fence: Some(fence), ..self }
    }

    /// The same place, where git may use this too.
    #[must_use]
    pub fn with_git(self, grants: GitGrants) -> Self {
        Self { git: Arc::new(grants), ..self }
    }

    /// The same place, where each git is behind such a fence.
    #[must_use]
    pub fn with_git_fence(self, fence: Arc<dyn GitFence>) -> Self {
        Self { git_fence: Some(fence), ..self }
    }

    /// The same place, whose roots are made where they are missing, as long as they stand in this folder.
    #[must_use]
    pub fn making_roots_in(self, folder: impl Into<PathBuf>) -> Self {
        Self { made_below: Some(folder.into().into()), ..self }
    }

    /// The same place, where these locks keep changes of one name apart. Places of which one has files of the other
    /// share them; else only clones of a place do.
    #[must_use]
    pub fn with_entry_locks(self, entry_locks: EntryLocks) -> Self {
        Self { entry_locks, ..self }
    }

    /// The same place, for one call: a command of this call runs under this id, by which it can be cancelled.
    #[must_use]
    pub fn for_call(&self, id: &str) -> Self {
        Self { call: Some(id.into()), ..self.clone() }
    }

    /// The commands that run here.
    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// The folders in which its files lie, opened when they are first needed.
    pub(crate) fn roots(&self) -> Result<Arc<Roots>, Error> {
        if let Some(roots) = self.roots.get() {
            return Ok(Arc::clone(roots));
        }
        self.make_roots()?;
        let opened = Arc::new(Roots::open(self.folders.iter().cloned())?);
        Ok(Arc::clone(self.roots.get_or_init(|| opened)))
    }

    /// Finds what its roots have at a path, where that takes no waiting. Not where one root is all that there is: files of
    /// a VM are read through an overlay, which always may wait.
    pub(crate) fn at_hand(&self, path: &Path) -> Option<Found> {
        let is_everything = self.folders.iter().any(|folder| folder == Path::new("/"));
        if is_everything { None } else { Found::at_hand(&self.folders, path) }
    }

    /// The folders themselves, by their resolved paths. One that a link has taken the place of is found at no path.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(PathBuf::as_path)
    }

    /// Has a program do first what every program does that is started here. Whatever starts one calls this, after all else
    /// that it wants done between fork and exec.
    pub(crate) fn fence_in(&self, command: &mut Command) {
        if let Some(fence) = &self.fence {
            fence.around(command);
        }
    }

    /// Has a git enter the fence of its kind before the fence of the place.
    ///
    /// # Errors
    /// The fence cannot be made.
    pub(crate) fn fence_git_in(&self, command: &mut Command, reach: Reach) -> io::Result<()> {
        if let Some(fence) = &self.git_fence {
            fence.around(reach)?.around(command);
        }
        self.fence_in(command);
        Ok(())
    }

    pub(crate) fn git(&self) -> &GitGrants {
        &self.git
    }

    /// Whether what is started here is behind a fence.
    pub(crate) fn has_fence(&self) -> bool {
        self.fence.is_some()
    }

    /// Makes the roots that it may make and that are missing.
    ///
    /// # Errors
    /// One cannot be made.
    pub fn make_roots(&self) -> Result<(), Error> {
        let Some(below) = &self.made_below else { return Ok(()) };
        for root in self.folders.iter().filter(|root| root.parent() == Some(below)) {
            match DirBuilder::new().mode(0o700).create(root) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::Root { path: root.clone(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn entry_locks(&self) -> &EntryLocks {
        &self.entry_locks
    }

    pub(crate) fn walk_fence(&self) -> Option<WalkFence> {
        self.walk_fence
    }

    pub(crate) fn default_cwd(&self) -> &Path {
        &self.ground.default_cwd
    }

    pub(crate) fn env(&self) -> &BTreeMap<String, String> {
        &self.ground.env
    }

    pub(crate) fn call(&self) -> Option<&str> {
        self.call.as_deref()
    }
}
