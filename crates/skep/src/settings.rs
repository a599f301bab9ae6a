//! Settings of the server. Each field of [`Settings`] is a flag, a variable `SKEP_...` and a key in `skep.toml`; a flag
//! overrides the variable, and the variable overrides the file.

mod base;
mod capacity;
mod data_folder;
mod egress;
mod file;
mod parse;
#[cfg(test)]
mod tests;
mod transport;
pub(crate) mod unchecked;
mod vm_disk;
mod webhooks;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use skep_egress::{InvalidEntry, check_entry};
use skep_workspace::git::GitFilter;

pub(crate) use base::BaseSize;
pub(crate) use capacity::{CapacitySettings, MemoryGuard};
use data_folder::resolve;
pub(crate) use data_folder::{DataDirOption, DataFolder, default_data_dir};
pub(crate) use egress::{Egress, EgressLimits, EgressUse};
pub(crate) use parse::{ParseError, try_parse};
pub(crate) use transport::{TlsSource, Transport};
use vm_disk::VmDiskSpeed;
use webhooks::Webhooks;

/// The id of the `--config` flag.
const FILE: &str = "config";

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// TOML file with settings; its keys are the names of these options, with `_` instead of `-`.
    #[arg(long, env = "SKEP_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to listen on. Any but a loopback address needs TLS or a trusted proxy. The port must be free at 127.0.0.1 and
    /// at ::1 if the address is one of them.
    #[arg(long, env = "SKEP_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7700")]
    pub(crate) listen: SocketAddr,
    /// Loopback address that serves `GET /metrics` without a key, such as 127.0.0.1:7701.
    #[arg(long, env = "SKEP_METRICS_LISTEN", value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Directory of the server's data.
    #[arg(long, env = "SKEP_DATA_DIR", value_name = "DIR", default_value_os_t = default_data_dir())]
    pub(crate) data_dir: PathBuf,
    /// Template directory; several servers may share it [default: DATA_DIR/templates].
    #[arg(long, env = "SKEP_IMAGE_DIR", value_name = "DIR")]
    pub(crate) image_dir: Option<PathBuf>,
    /// Folder with the files of the account `default`; may be given several times [default: DATA_DIR/workspaces/default].
    #[arg(long, env = "SKEP_ROOT", value_name = "DIR", value_delimiter = ':')]
    pub(crate) root: Vec<PathBuf>,
    /// User that the server runs as [default: the owner of the first root, or `skep`].
    #[arg(long, env = "SKEP_USER", value_name = "NAME")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) capacity: CapacitySettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) base: BaseSize,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) vm_disk: VmDiskSpeed,
    /// Number of VMs that are kept ready for boots [default: 4 per processor, at most a quarter of the maximum number of
    /// VMs].
    #[arg(long, env = "SKEP_POOL_SIZE", value_name = "NUMBER")]
    pub(crate) pool_size: Option<u32>,
    /// Lifetime of a VM that is booted without one, such as 30m or 8h [default: unlimited].
    #[arg(long, env = "SKEP_DEFAULT_TTL", value_name = "TIME", value_parser = lifetime)]
    pub(crate) default_ttl: Option<Duration>,
    /// Private network (CIDR), address or host name that git may connect to, at each port, besides public ones at the ports
    /// 443 and 22 (ssh); may be given several times.
    #[arg(long, env = "SKEP_GIT_ALLOW", value_name = "HOST|CIDR", value_delimiter = ',', value_parser = host_or_network)]
    #[serde(default)]
    pub(crate) git_allow: Vec<String>,
    /// Git filter that may run on the server, such as lfs, by its name in git's system configuration; may be given several
    /// times. It runs with the restrictions of callers' programs, for each repository that uses it.
    #[arg(
        long, env = "SKEP_GIT_FILTER", value_name = "NAME", value_delimiter = ',', value_parser = GitFilter::installed
    )]
    #[serde(default)]
    pub(crate) git_filter: Vec<GitFilter>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) transport: Transport,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) webhooks: Webhooks,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) egress: Egress,
    /// Format of log lines.
    #[arg(long, env = "SKEP_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Log level, or directives such as info,skep_swarm=debug.
    #[arg(long, env = "SKEP_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl Settings {
    /// The template directory.
    pub(crate) fn image_dir(&self) -> PathBuf {
        self.image_dir.clone().unwrap_or_else(|| self.data_dir.join("templates"))
    }

    /// The roots of the account `default`.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        if self.root.is_empty() { vec![self.workspaces().join("default")] } else { self.root.clone() }
    }

    /// The folder in which accounts get their workspaces.
    pub(crate) fn workspaces(&self) -> PathBuf {
        resolve(self.data_dir.join("workspaces"))
    }

    pub(crate) fn folder(&self) -> DataFolder {
        DataFolder::resolved(self.data_dir.clone())
    }

    /// The directory that belongs to the unprivileged server.
    pub(crate) fn server_dir(&self) -> PathBuf {
        self.folder().server_dir()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder().store()
    }

    /// The file of the first admin key.
    pub(crate) fn admin_key(&self) -> PathBuf {
        self.folder().admin_key()
    }

    /// Makes all paths absolute, so that they mean the same in every process. In the data directory and the roots,
    /// links are resolved too: a link that changes later does not move them.
    ///
    /// # Errors
    /// The current directory does not exist.
    pub(crate) fn resolved(mut self) -> std::io::Result<Self> {
        self.data_dir = resolve(std::path::absolute(&self.data_dir)?);
        self.image_dir = self.image_dir.map(std::path::absolute).transpose()?;
        self.transport = self.transport.absolute()?;
        let root = |root| Ok(resolve(std::path::absolute(root)?));
        self.root = self.root.iter().map(root).collect::<std::io::Result<_>>()?;
        Ok(self)
    }
}

/// Parses a duration such as `90s` or `1h 30m`.
fn lifetime(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; use a number and a unit, such as 90s or 2h");
    let given: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let given = Duration::try_from(given).map_err(|_| wrong())?;
    if given < Duration::from_millis(1) { Err("a duration is at least 1ms".to_owned()) } else { Ok(given) }
}

/// Parses an entry of an allowlist: a network, an address or a host name.
fn host_or_network(text: &str) -> Result<String, InvalidEntry> {
    check_entry(text).map(|()| text.to_owned())
}
