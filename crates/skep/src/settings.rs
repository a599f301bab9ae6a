//! Settings of the server. Each field of [`Settings`] is a flag, a variable `SKEP_...` and a key in `skep.toml`; a flag
//! overrides the variable, and the variable overrides the file.

pub(crate) mod unchecked;

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, ValueEnum};
use serde::{Deserialize, Serialize};
use skep_egress::{InvalidEntry, check_entry};
use skep_workspace::{Location, git::GitFilter};
use toml::{Table, Value};

mod base;
mod capacity;
mod egress;
mod transport;
mod vm_disk;
mod webhooks;

pub(crate) use base::BaseSize;
pub(crate) use capacity::{CapacitySettings, MemoryGuard};
pub(crate) use egress::{Egress, EgressLimits, EgressUse};
pub(crate) use transport::{TlsSource, Transport};
use vm_disk::VmDiskSpeed;
use webhooks::Webhooks;

use crate::invocation;

/// The id of the `--config` flag.
const FILE: &str = "config";

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// TOML file with settings; its keys are the names of these options, with `_` instead of `-`.
    #[arg(long, env = "SKEP_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to listen on. Any but a loopback address needs TLS or a trusted proxy.
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
    /// Whether VMs start the shell of their next command ahead: `auto` if guests are emulated, `off` never. A change bakes
    /// the template again.
    #[arg(long, env = "SKEP_SHELL_AHEAD", value_name = "WHEN", default_value = "auto")]
    pub(crate) shell_ahead: ShellAhead,
    /// Lifetime of a VM that is booted without one, such as 30m or 8h [default: unlimited].
    #[arg(long, env = "SKEP_DEFAULT_TTL", value_name = "TIME", value_parser = lifetime)]
    pub(crate) default_ttl: Option<Duration>,
    /// Private network (CIDR), address or host name that git may connect to, besides public ones; may be given several times.
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

/// Whether VMs keep a shell ready for the next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShellAhead {
    /// If guests are emulated.
    Auto,
    /// Never.
    Off,
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
        DataFolder(self.data_dir.clone())
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
fn resolve(path: PathBuf) -> PathBuf {
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

/// An error in the settings file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileError {
    file: PathBuf,
    why: String,
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the settings in {} cannot be used: {}", self.file.display(), self.why)
    }
}

impl std::error::Error for FileError {}

/// Why a command line cannot be parsed.
#[derive(Debug)]
pub(crate) enum ParseError {
    /// The command line or an environment variable is invalid.
    CommandLine(clap::Error),
    /// The settings file is invalid.
    SettingsFile(FileError),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CommandLine(error) => f.write_str(&first_line(error)),
            Self::SettingsFile(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ParseError {}

/// Parses a command line. If its verb takes settings and a settings file is named, values of the file replace the
/// defaults.
///
/// # Errors
/// [`ParseError`].
pub(crate) fn try_parse<C: CommandFactory + FromArgMatches>(arguments: &[OsString]) -> Result<C, ParseError> {
    let mut command = C::command();
    let matches = command.try_get_matches_from_mut(arguments).map_err(ParseError::CommandLine)?;
    invocation::record(&command, &matches);
    let matches = match named_file(&matches) {
        None => matches,
        Some((verbs, file)) => {
            let fault = |why| ParseError::SettingsFile(FileError { file: file.clone(), why });
            let text = fs::read_to_string(&file).map_err(|error| fault(error.to_string()))?;
            let values = values(&text).map_err(fault)?;
            let command = with_defaults(C::command(), &verbs, &values);
            // The command line was valid without the file, so the error is in the file.
            command.try_get_matches_from(arguments).map_err(|error| fault(first_line(&error)))?
        }
    };
    C::from_arg_matches(&matches).map_err(ParseError::CommandLine)
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The settings file that a command line names, and the verbs that lead to its flag.
fn named_file(matches: &ArgMatches) -> Option<(Vec<String>, PathBuf)> {
    let mut verbs = Vec::new();
    let mut at = matches;
    loop {
        if let Ok(Some(file)) = at.try_get_one::<PathBuf>(FILE) {
            return Some((verbs, file.clone()));
        }
        let (name, below) = at.subcommand()?;
        verbs.push(name.to_owned());
        at = below;
    }
}

/// The values of a settings file, by the id of their flag.
fn values(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let known = setting_ids();
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| error.to_string().trim_end().to_owned())?;
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for (key, value) in &table {
        // Flags use dashes and variables use underscores; the file may use either.
        let id = key.replace('-', "_");
        if !known.contains(&id) {
            return Err(format!("`{key}` is not a setting; the settings are: {}", known.join(", ")));
        }
        if found.iter().any(|(other, _)| *other == id) {
            return Err(format!("`{id}` is set twice, with `-` and with `_`"));
        }
        let values = match value {
            Value::Array(values) => {
                values.iter().map(|value| value_text(key, value)).collect::<Result<_, _>>()?
            }
            value => vec![value_text(key, value)?],
        };
        found.push((id, values));
    }
    Ok(found)
}

fn value_text(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        // The only setting that is not whole.
        Value::Float(number) if key.replace('-', "_") == "memory_overcommit" => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!("`{key}` is a {}; give a string or a whole number", other.type_str())),
    }
}

/// The ids of all settings, which are also their keys in the file.
fn setting_ids() -> Vec<String> {
    let command = Settings::augment_args(Command::new("settings"));
    let ids = command.get_arguments().map(|argument| argument.get_id().to_string());
    ids.filter(|id| id != FILE).collect()
}

fn with_defaults(command: Command, verbs: &[String], values: &[(String, Vec<String>)]) -> Command {
    match verbs.split_first() {
        Some((verb, rest)) => {
            let name = verb.clone();
            command.mut_subcommand(name, |below| with_defaults(below, rest, values))
        }
        // Some verbs take only a few of the settings.
        None => values.iter().fold(command, |command, (id, values)| {
            let is_known = command.get_arguments().any(|argument| argument.get_id() == id.as_str());
            let values = values.clone();
            if is_known {
                command.mut_arg(id.clone(), |argument| argument.default_values(values))
            } else {
                command
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use skep_api::templates::GuestSize;
    use tempfile::NamedTempFile;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        verb: Verb,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Verb {
        Serve {
            #[command(flatten)]
            settings: Settings,
        },
    }

    fn read(file: &str, flags: &[&str]) -> Result<Settings, ParseError> {
        let named = NamedTempFile::new().unwrap();
        fs::write(named.path(), file).unwrap();
        let path = named.path().to_str().unwrap();
        let line =
            ["skep", "serve", "--config", path].iter().chain(flags).map(OsString::from).collect::<Vec<_>>();
        try_parse::<Line>(&line).map(|Line { verb: Verb::Serve { settings } }| settings)
    }

    #[test]
    fn file_values_replace_defaults_and_a_flag_wins() {
        let file = "listen = \"127.0.0.1:1\"\nmax_vms = 7\nroot = [\"/a\", \"/b\"]\nlog-format = \"json\"";
        let settings = read(file, &["--max-vms", "9"]).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:1".parse().unwrap());
        assert_eq!(settings.capacity.max_vms, Some(9));
        assert_eq!(settings.roots(), [Path::new("/a"), Path::new("/b")]);
        assert_eq!(settings.log_format, LogFormat::Json);
        assert_eq!(settings.log_level, "info");
    }

    #[test]
    fn the_template_is_baked_by_the_keeper_so_a_change_of_shell_ahead_needs_a_new_one() {
        let (auto, off) = (read("", &[]).unwrap(), read("shell_ahead = \"off\"", &[]).unwrap());
        assert_eq!((auto.shell_ahead, off.shell_ahead), (ShellAhead::Auto, ShellAhead::Off));
        let reason = crate::reload::needs_keeper_restart(&auto, &off).unwrap();
        assert!(reason.starts_with("`shell_ahead` changed from auto to off"), "{reason}");
        assert_eq!(crate::reload::needs_keeper_restart(&off, &off), None);
    }

    #[test]
    fn the_size_of_vms_comes_from_the_file_and_a_change_needs_a_new_keeper() {
        let file = "base_memory_mb = 2048\nbase_vcpus = 1\nbase_disk_mb = 4096\nmemory_overcommit = 1.5\nvm_disk_mbps = 50\nvm_disk_iops = 0";
        let settings = read(file, &[]).unwrap();
        let size = GuestSize { memory_mb: 2048, vcpus: 1, disk_mb: 4096 };
        assert_eq!((settings.base.guest(), settings.capacity.memory_overcommit), (size, 1.5));
        assert_eq!((settings.vm_disk.vm_disk_mbps, settings.vm_disk.vm_disk_iops), (50, 0));
        for flag in [
            "--base-memory-mb",
            "--base-vcpus",
            "--base-disk-mb",
            "--memory-overcommit",
            "--vm-disk-mbps",
            "--vm-disk-iops",
        ] {
            let other = read(file, &[flag, "512"]).unwrap();
            let reason = crate::reload::needs_keeper_restart(&settings, &other).unwrap();
            let name = flag.trim_start_matches("--").replace('-', "_");
            assert!(reason.starts_with(&format!("`{name}` changed from ")), "{reason}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_names_the_key() {
        for (file, named) in [
            ("listen = \"x\"", "--listen"),
            ("config = \"x\"", "`config`"),
            ("max_vms = 1\nmax-vms = 2", "`max_vms`"),
            ("max_vms = 1.5", "`max_vms`"),
            ("base_memory_mb = 64", "--base-memory-mb"),
            ("base_vcpus = 0", "--base-vcpus"),
            ("base_disk_mb = 64", "--base-disk-mb"),
            ("memory_overcommit = 0.5", "--memory-overcommit"),
            ("vm_disk_mbps = 1000001", "--vm-disk-mbps"),
            ("vm_disk_iops = 99", "--vm-disk-iops"),
            ("[root]\na = 1", "`root`"),
            ("listen = ", "listen"),
        ] {
            let error = read(file, &[]).unwrap_err().to_string();
            assert!(error.contains(named), "{file}: {error}");
        }
    }

    #[test]
    fn a_lifetime_is_a_positive_duration() {
        assert_eq!(lifetime("1h 30m"), Ok(Duration::from_secs(5400)));
        for wrong in ["", "soon", "-5s", "0s", "5"] {
            lifetime(wrong).unwrap_err();
        }
    }

    #[test]
    fn every_setting_has_a_variable_and_a_key_of_its_name() {
        let command = Settings::augment_args(Command::new("settings"));
        for argument in command.get_arguments() {
            let id = argument.get_id().to_string();
            assert_eq!(argument.get_long(), Some(id.replace('_', "-").as_str()));
            let variable = argument.get_env().unwrap().to_str().unwrap().to_owned();
            assert_eq!(variable, format!("SKEP_{}", id.to_uppercase()));
        }
        assert!(setting_ids().contains(&"data_dir".to_owned()));
    }
}
