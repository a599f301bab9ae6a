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

use skep_api::CallContext;

use crate::{
    Commands, DiskSpace, EntryLocks, Error, Fence, Roots,
    disk_space::DiskLimit,
    git::{GitGrants, NetworkAccess},
    roots::PathHandle,
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
    fn fence_for(&self, reach: NetworkAccess) -> io::Result<Fence>;
}

/// A place where operations run: files below one or more roots, and commands. Cheap to clone; clones share the commands that run in it.
#[derive(Debug, Clone)]
pub struct Place {
    defaults: Arc<CommandDefaults>,
    commands: Commands,
    call: Option<Arc<str>>,
    context: Arc<CallContext>,
    root_paths: Arc<[PathBuf]>,
    fence: Option<Fence>,
    roots: Arc<OnceLock<Arc<Roots>>>,
    walk_fence: Option<WalkFence>,
    git_fence: Option<Arc<dyn GitFence>>,
    git_grants: Arc<GitGrants>,
    create_roots_in: Option<Arc<Path>>,
    private_folder: Option<Arc<PrivateFolder>>,
    has_private_access: bool,
    entry_locks: EntryLocks,
    disk_limit: DiskLimit,
}

/// A folder for files of the server's own.
#[derive(Debug)]
struct PrivateFolder {
    path: PathBuf,
    /// The fence of programs that may access it.
    fence: Option<Fence>,
}

#[derive(Debug, Clone)]
struct CommandDefaults {
    default_cwd: PathBuf,
    env: BTreeMap<String, String>,
}

impl Place {
    /// A place whose files are below `root`. Its commands start in `default_cwd` and see only the variables in `env`. Their
    /// control groups are created below `cgroup_parent`, a writable cgroup v2 directory.
    pub fn new(
        root: impl Into<PathBuf>,
        default_cwd: impl Into<PathBuf>,
        env: BTreeMap<String, String>,
        cgroup_parent: impl Into<PathBuf>,
    ) -> Self {
        let defaults = CommandDefaults { default_cwd: default_cwd.into(), env };
        let folders = Arc::from([root.into()]);
        Self {
            defaults: Arc::new(defaults),
            commands: Commands::new(Some(cgroup_parent.into())),
            call: None,
            context: Arc::default(),
            root_paths: folders,
            fence: None,
            roots: Arc::default(),
            walk_fence: None,
            git_fence: None,
            git_grants: Arc::default(),
            create_roots_in: None,
            private_folder: None,
            has_private_access: false,
            entry_locks: EntryLocks::default(),
            disk_limit: DiskLimit::default(),
        }
    }

    /// Adds environment variables for commands; on a conflict, these win.
    #[must_use]
    pub fn with_env(&self, more: &BTreeMap<String, String>) -> Self {
        let mut defaults = CommandDefaults::clone(&self.defaults);
        defaults.env.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { defaults: Arc::new(defaults), ..self.clone() }
    }

    /// Removes environment variables of commands.
    #[must_use]
    pub fn without_env<'names>(&self, names: impl IntoIterator<Item = &'names str>) -> Self {
        let mut defaults = CommandDefaults::clone(&self.defaults);
        for name in names {
            defaults.env.remove(name);
        }
        Self { defaults: Arc::new(defaults), ..self.clone() }
    }

    /// Replaces the roots: all files of the workspace lie below these folders.
    #[must_use]
    pub fn with_roots(self, roots: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { root_paths: roots.into_iter().collect(), roots: Arc::default(), ..self }
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
        let mut defaults = CommandDefaults::clone(&self.defaults);
        if let Some(first) = roots.first() {
            defaults.default_cwd.clone_from(first);
            defaults.env.insert("HOME".to_owned(), first.display().to_string());
        }
        Self { defaults: Arc::new(defaults), fence: Some(fence), ..self.clone().with_roots(roots) }
    }

    /// Applies this fence to threads that walk directories by path.
    #[must_use]
    pub fn with_walk_fence(self, fence: WalkFence) -> Self {
        Self { walk_fence: Some(fence), ..self }
    }

    /// Sets what git may access in addition to the roots.
    #[must_use]
    pub fn with_git_grants(self, grants: GitGrants) -> Self {
        Self { git_grants: Arc::new(grants), ..self }
    }

    /// Runs every git process inside a fence made by `fence`.
    #[must_use]
    pub fn with_git_fence(self, fence: Arc<dyn GitFence>) -> Self {
        Self { git_fence: Some(fence), ..self }
    }

    /// Creates missing roots that are direct children of `folder`.
    #[must_use]
    pub fn creating_roots_in(self, folder: impl Into<PathBuf>) -> Self {
        Self { create_roots_in: Some(folder.into().into()), ..self }
    }

    /// Keeps files of the server's own in `folder`, which is outside of the fence of an account's programs.
    #[must_use]
    pub fn with_private_folder(self, folder: impl Into<PathBuf>) -> Self {
        let private = PrivateFolder { path: folder.into(), fence: None };
        Self { private_folder: Some(Arc::new(private)), ..self }
    }

    /// Lets a git that uses the private folder enter this fence, in place of the one of the account.
    #[must_use]
    pub fn with_private_fence(self, fence: Fence) -> Self {
        let private_folder = self
            .private_folder
            .as_ref()
            .map(|private| Arc::new(PrivateFolder { path: private.path.clone(), fence: Some(fence) }));
        Self { private_folder, ..self }
    }

    /// The same place for a git that uses the private folder.
    pub(crate) fn with_private_access(&self) -> Self {
        let fence = self.private_folder.as_ref().and_then(|private| private.fence.clone());
        let fence = fence.or_else(|| self.fence.clone());
        Self { fence, has_private_access: true, ..self.clone() }
    }

    pub(crate) fn has_private_access(&self) -> bool {
        self.has_private_access
    }

    /// The folder for temporary files of a git that has private access: the private folder, or without one the first root.
    pub(crate) fn private_temporary_folder(&self) -> Option<&Path> {
        let folder = || self.private_folder().or_else(|| self.root_paths().next());
        self.has_private_access.then(folder).flatten()
    }

    /// Serialises changes of one name with these locks. Places whose roots overlap must share them; by default only
    /// clones of a place do.
    #[must_use]
    pub fn with_entry_locks(self, entry_locks: EntryLocks) -> Self {
        Self { entry_locks, ..self }
    }

    /// Lets file operations add to the workspace only what they can take of this disk space.
    #[must_use]
    pub fn with_disk_space(self, space: Arc<dyn DiskSpace>) -> Self {
        Self { disk_limit: DiskLimit::new(space), ..self }
    }

    /// Sets the id of the current call. Commands started by the call run under this id, which is used to cancel them.
    #[must_use]
    pub fn for_call(&self, id: &str) -> Self {
        Self { call: Some(id.into()), ..self.clone() }
    }

    /// Sets what the server adds to the operation of the current call.
    #[must_use]
    pub fn with_context(&self, context: CallContext) -> Self {
        Self { context: Arc::new(context), ..self.clone() }
    }

    /// What the server adds to the operation of the current call.
    pub(crate) fn context(&self) -> &CallContext {
        &self.context
    }

    pub(crate) fn shared_context(&self) -> Arc<CallContext> {
        Arc::clone(&self.context)
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
        let opened = Arc::new(Roots::open(self.root_paths.iter().cloned())?);
        Ok(Arc::clone(self.roots.get_or_init(|| opened)))
    }

    /// Looks up a path if the kernel can resolve it without blocking. Returns `None` when `/` is a root: the files of
    /// a VM are read through an overlay, where any access may block.
    pub(crate) fn find_cached(&self, path: &Path) -> Option<PathHandle> {
        let is_everything = self.root_paths.iter().any(|folder| folder == Path::new("/"));
        if is_everything { None } else { PathHandle::find_cached(&self.root_paths, path) }
    }

    /// The resolved paths of the roots. A root that was replaced by a symbolic link matches no path.
    pub(crate) fn root_paths(&self) -> impl Iterator<Item = &Path> {
        self.root_paths.iter().map(PathBuf::as_path)
    }

    /// Makes a program enter the fence of this workspace, if there is one. Every caller that starts a program calls
    /// this, after its other `pre_exec` hooks.
    pub(crate) fn apply_fence(&self, command: &mut Command) {
        if let Some(fence) = &self.fence {
            fence.apply_to(command);
        }
    }

    /// Makes a git process enter its own fence first, then the fence of the workspace.
    ///
    /// # Errors
    /// The git fence cannot be created.
    pub(crate) fn apply_git_fence(&self, command: &mut Command, reach: NetworkAccess) -> io::Result<()> {
        if let Some(fence) = &self.git_fence {
            fence.fence_for(reach)?.apply_to(command);
        }
        self.apply_fence(command);
        Ok(())
    }

    pub(crate) fn private_folder(&self) -> Option<&Path> {
        self.private_folder.as_ref().map(|private| private.path.as_path())
    }

    pub(crate) fn git_grants(&self) -> &GitGrants {
        &self.git_grants
    }

    /// Creates the missing roots, if [`Self::creating_roots_in`] allows it.
    ///
    /// # Errors
    /// A root cannot be created.
    pub fn make_roots(&self) -> Result<(), Error> {
        let Some(below) = &self.create_roots_in else { return Ok(()) };
        for root in self.root_paths.iter().filter(|root| root.parent() == Some(below)) {
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

    pub(crate) fn disk_limit(&self) -> &DiskLimit {
        &self.disk_limit
    }

    pub(crate) fn walk_fence(&self) -> Option<WalkFence> {
        self.walk_fence
    }

    pub(crate) fn default_cwd(&self) -> &Path {
        &self.defaults.default_cwd
    }

    /// The environment variables of commands.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.defaults.env
    }

    pub(crate) fn call(&self) -> Option<&str> {
        self.call.as_deref()
    }
}
