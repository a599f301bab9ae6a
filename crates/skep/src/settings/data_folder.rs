//! The data directory: where it is, and the paths of its files.

use std::path::{Path, PathBuf};

use clap::Args;
use skep_workspace::Location;

/// The data directory option of verbs that need no running server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct DataDirOption {
    /// File with settings, in TOML; only its `data_dir` is used.
    #[arg(long, env = "SKEP_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the server's data.
    #[arg(long, env = "SKEP_DATA_DIR", value_name = "DIR", default_value_os_t = default_data_dir())]
    data_dir: PathBuf,
}

impl DataDirOption {
    /// # Errors
    /// The current directory does not exist.
    pub(crate) fn folder(&self) -> std::io::Result<DataFolder> {
        DataFolder::at(&self.data_dir)
    }
}

/// Paths of the files in a data directory.
#[derive(Debug, Clone)]
pub(crate) struct DataFolder(PathBuf);

impl DataFolder {
    /// The folder at a path that is absolute and has no links.
    pub(super) fn resolved(path: PathBuf) -> Self {
        Self(path)
    }

    /// Makes the path absolute and resolves links.
    ///
    /// # Errors
    /// The current directory does not exist.
    pub(crate) fn at(path: &Path) -> std::io::Result<Self> {
        Ok(Self(resolve(std::path::absolute(path)?)))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The directory that belongs to the unprivileged server.
    pub(crate) fn server_dir(&self) -> PathBuf {
        self.0.join("server")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.server_dir().join("skep.db")
    }

    /// The file of the first admin key.
    pub(crate) fn admin_key(&self) -> PathBuf {
        self.0.join("admin.key")
    }
}

/// Resolves the links of a path. A path that cannot be resolved is returned unchanged; using it fails later, with the
/// reason.
pub(super) fn resolve(path: PathBuf) -> PathBuf {
    Location::of(&path).map_or(path, |found| found.path().to_owned())
}

/// `/var/lib/skep` for root, else `skep` in the user's state directory.
pub(crate) fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/skep");
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    state.unwrap_or_else(|| PathBuf::from(".")).join("skep")
}
