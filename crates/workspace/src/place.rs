//! A workspace: its roots, environment, running commands and fences.

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

/// Restricts the calling thread, and all processes it starts from then on, to reading below these folders.
pub type WalkFence = fn(&[BorrowedFd<'_>]) -> io::Result<()>;

/// Makes the sandbox for each git process, independent of any setting.
#[warn(missing_docs)]
pub trait GitFence: fmt::Debug + Send + Sync {
    /// Returns a fence that allows the network access of `reach` and only the programs that git needs for it. On a
    /// kernel that lacks a mechanism, the fence omits that mechanism.
    ///
    /// # Errors
    /// The Landlock rules cannot be created.
    fn around(&self, reach: Reach) -> io::Result<Fence>;
}

/// A workspace below one or more roots. Cheap to clone; clones share the commands that run in it.
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
    /// A workspace below `root`. Its commands start in `default_cwd` and see only the variables in `env`. Their
    /// control groups are created below `cgroup_parent`, a writable cgroup v2 directory.
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

    /// Keeps a shell loaded and linked for the next command. Only for a process that starts all commands on one
    /// thread.
    #[must_use]
    pub fn with_shell_ahead(self) -> Self {
        self.commands.start_ahead(self.ground.default_cwd.clone());
        self
    }

    /// Adds environment variables for commands; on a conflict, these win.
    #[must_use]
    pub fn with_env(&self, more: &BTreeMap<String, String>) -> Self {
        let mut ground = Ground::clone(&self.ground);
        ground.env.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { ground: Arc::new(ground), ..self.clone() }
    }

    /// Replaces the roots: all files of the workspace lie below these folders.
    #[must_use]
    pub fn with_roots(self, roots: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { folders: roots.into_iter().collect(), roots: Arc::default(), ..self }
    }

    /// Runs commands without control groups. Ending a command then ends the descendants of its shell.
    #[must_use]
    pub fn without_groups(self) -> Self {
        Self { commands: Commands::new(None), ..self }
    }

    /// Restricts the workspace to one account. `roots` are its folders; the first is the working directory and the
    /// `HOME` of its commands. Every program that is started enters `fence` first.
    #[must_use]
    pub fn for_account(&self, roots: Vec<PathBuf>, fence: Fence) -> Self {
        let mut ground = Ground::clone(&self.ground);
        if let Some(first) = roots.first() {
            ground.default_cwd.clone_from(first);
            ground.env.insert("HOME".to_owned(), first.display().to_string());
        }
        Self { ground: Arc::new(ground), fence: Some(fence), ..self.clone().with_roots(roots) }
    }

    /// Applies this fence to threads that walk directories by path.
    #[must_use]
    pub fn with_walk_fence(self, fence: WalkFence) -> Self {
        Self { walk_fence: Some(fence), ..self }
    }

    /// Sets what git may access in addition to the roots.
    #[must_use]
    pub fn with_git(self, grants: GitGrants) -> Self {
        Self { git: Arc::new(grants), ..self }
    }

    /// Runs every git process inside a fence made by `fence`.
    #[must_use]
    pub fn with_git_fence(self, fence: Arc<dyn GitFence>) -> Self {
        Self { git_fence: Some(fence), ..self }
    }

    /// Creates missing roots that are direct children of `folder`.
    #[must_use]
    pub fn making_roots_in(self, folder: impl Into<PathBuf>) -> Self {
        Self { made_below: Some(folder.into().into()), ..self }
    }

    /// Serialises changes of one name with these locks. Places whose roots overlap must share them; by default only
    /// clones of a place do.
    #[must_use]
    pub fn with_entry_locks(self, entry_locks: EntryLocks) -> Self {
        Self { entry_locks, ..self }
    }

    /// Sets the id of the current call. Commands started by the call run under this id, which is used to cancel them.
    #[must_use]
    pub fn for_call(&self, id: &str) -> Self {
        Self { call: Some(id.into()), ..self.clone() }
    }

    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// The roots of the workspace, opened on first use.
    pub(crate) fn roots(&self) -> Result<Arc<Roots>, Error> {
        if let Some(roots) = self.roots.get() {
            return Ok(Arc::clone(roots));
        }
        self.make_roots()?;
        let opened = Arc::new(Roots::open(self.folders.iter().cloned())?);
        Ok(Arc::clone(self.roots.get_or_init(|| opened)))
    }

    /// Looks up a path if the kernel can resolve it without blocking. Returns `None` when `/` is a root: the files of
    /// a VM are read through an overlay, where any access may block.
    pub(crate) fn at_hand(&self, path: &Path) -> Option<Found> {
        let is_everything = self.folders.iter().any(|folder| folder == Path::new("/"));
        if is_everything { None } else { Found::at_hand(&self.folders, path) }
    }

    /// The resolved paths of the roots. A root that was replaced by a symbolic link matches no path.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(PathBuf::as_path)
    }

    /// Makes a program enter the fence of this workspace, if there is one. Every caller that starts a program calls
    /// this, after its other `pre_exec` hooks.
    pub(crate) fn fence_in(&self, command: &mut Command) {
        if let Some(fence) = &self.fence {
            fence.around(command);
        }
    }

    /// Makes a git process enter its own fence first, then the fence of the workspace.
    ///
    /// # Errors
    /// The git fence cannot be created.
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

    pub(crate) fn has_fence(&self) -> bool {
        self.fence.is_some()
    }

    /// Creates the missing roots, if [`Self::making_roots_in`] allows it.
    ///
    /// # Errors
    /// A root cannot be created.
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
