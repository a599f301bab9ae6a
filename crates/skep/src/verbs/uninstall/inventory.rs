//! Finds the parts of skep on this machine, and decides which of them are removed.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use skep_keeper::{DataDir, Footprint, holder, other_data_dirs_have_resources};
use skep_template::shelf;

use super::unit::{UNIT_FILE, Unit};
use crate::{output, settings::Settings};

/// The installation path in the systemd unit.
const PROGRAM: &str = "/usr/local/bin/skep";
/// The default data directory of a server that runs as root.
const DEFAULT_DATA_DIR: &str = "/var/lib/skep";
/// The system user that is created at installation.
const USER: &str = "skep";
/// The entries that a server creates in its data directory.
const DATA_DIR_ENTRIES: [&str; 5] = ["keeper", "server", "workspaces", "templates", "admin.key"];

/// A part of skep to remove.
pub(super) enum Item {
    /// The systemd unit, which is also disabled.
    Unit,
    /// VMs, control groups, network namespace and sockets, and the remains of a killed bake.
    Outside {
        data_dir: PathBuf,
        image_dir: PathBuf,
        what: String,
    },
    /// The entries that skep created in a folder, and the folder itself if it is then empty.
    Data {
        folder: PathBuf,
        entries: Vec<PathBuf>,
        what: &'static str,
    },
    User,
    Program,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit => write!(f, "the systemd unit {UNIT_FILE}"),
            Self::Outside { what, .. } => f.write_str(what),
            Self::Data { folder, what, .. } => write!(f, "{what} {}", folder.display()),
            Self::User => write!(f, "the system user {USER}"),
            Self::Program => write!(f, "the program {PROGRAM}"),
        }
    }
}

/// The parts to remove, in order, and those that are kept, with the reason.
pub(super) struct Inventory {
    pub(super) items: Vec<Item>,
    pub(super) kept: Vec<String>,
}

/// Inspects the machine without changes.
///
/// # Errors
/// A server runs, the folder is not a data directory, or something is mounted in it.
pub(super) fn take_inventory(settings: &Settings, keep_data: bool) -> anyhow::Result<Inventory> {
    let mut found = Inventory { items: Vec::new(), kept: Vec::new() };
    let unit = Unit::read()?;
    let path = &settings.data_dir;
    let is_service_dir = match &unit {
        Some(unit) => unit.data_dir.as_deref() == Some(path.as_path()),
        None => path == Path::new(DEFAULT_DATA_DIR),
    };
    let others = if path.is_dir() {
        let data_dir = DataDir::find(path)?;
        require_used(&data_dir)?;
        require_stopped(&data_dir, is_service_dir && unit.is_some())?;
        let others = other_data_dirs_have_resources(&data_dir);
        found.add_data_dir(settings, &data_dir, others, keep_data)?;
        others
    } else {
        found.kept.push(format!("{}: there is no such data directory", path.display()));
        false
    };
    if is_service_dir {
        found.add_machine_wide(unit.is_some(), others, keep_data);
    } else {
        let owner = unit.map_or_else(|| DEFAULT_DATA_DIR.to_owned(), |unit| unit.describe_data_dir());
        found
            .kept
            .push(format!("systemd unit, system user and {PROGRAM}: they belong to the server in {owner}"));
    }
    Ok(found)
}

impl Inventory {
    fn add_data_dir(
        &mut self,
        settings: &Settings,
        data_dir: &DataDir,
        others: bool,
        keep_data: bool,
    ) -> anyhow::Result<()> {
        let image_dir = settings.image_dir();
        let separate = settings.image_dir.as_ref().filter(|dir| !dir.starts_with(data_dir.path()));
        self.items.extend(runtime_state(data_dir, &image_dir));
        if keep_data {
            self.kept.push(format!("the data directory {}: --keep-data", data_dir.path().display()));
            return Ok(());
        }
        match separate.filter(|dir| dir.is_dir()) {
            Some(dir) if others => {
                self.kept.push(format!("the image directory {}: other servers may use it", dir.display()));
            }
            Some(dir) => self.add_folder(dir, &shelf::ENTRIES, "the image directory")?,
            None => {}
        }
        self.add_folder(data_dir.path(), &DATA_DIR_ENTRIES, "the data directory")
    }

    fn add_folder(&mut self, folder: &Path, ours: &[&str], what: &'static str) -> anyhow::Result<()> {
        require_unmounted(folder)?;
        let listed = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let listed = listed.with_context(|| format!("{} cannot be listed", folder.display()))?;
        let (entries, foreign): (Vec<PathBuf>, Vec<PathBuf>) = listed
            .iter()
            .map(fs::DirEntry::path)
            .partition(|path| ours.iter().any(|name| path.file_name().is_some_and(|found| found == *name)));
        let foreign = foreign.iter().map(|path| format!("{}: skep did not make it", path.display()));
        self.kept.extend(foreign);
        self.items.push(Item::Data { folder: folder.to_owned(), entries, what });
        Ok(())
    }

    /// Adds the parts that exist once per machine.
    fn add_machine_wide(&mut self, has_unit: bool, others: bool, keep_data: bool) {
        if has_unit {
            self.items.push(Item::Unit);
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let has_user = passwd.lines().any(|line| line.split(':').next() == Some(USER));
        let has_program = Path::new(PROGRAM).exists();
        if others {
            self.kept.push(format!("system user and {PROGRAM}: another server is on this machine"));
            return;
        }
        match (has_user, keep_data) {
            (true, true) => self.kept.push(format!("the system user {USER}: it owns data that is kept")),
            (true, false) => self.items.push(Item::User),
            (false, _) => {}
        }
        if has_program {
            self.items.push(Item::Program);
        }
        let settings = Path::new("/etc/skep");
        if settings.exists() {
            self.kept.push(format!("{}: settings, which you made", settings.display()));
        }
    }
}

/// The server's runtime state outside its data directory.
fn runtime_state(data_dir: &DataDir, image_dir: &Path) -> Option<Item> {
    let Footprint { vms, groups, namespace, sockets } = Footprint::of(data_dir);
    let mut parts = Vec::new();
    if vms > 0 {
        parts.push(format!("{} that may still run", output::counted(vms as u64, "VM")));
    }
    parts.extend(groups.iter().map(|group| format!("the control group {}", group.display())));
    parts.extend(namespace.map(|path| format!("the network namespace {}", path.display())));
    parts.extend(sockets.map(|path| format!("the sockets in {}", path.display())));
    if parts.is_empty() {
        return None;
    }
    Some(Item::Outside {
        data_dir: data_dir.path().to_owned(),
        image_dir: image_dir.to_owned(),
        what: parts.join(", "),
    })
}

/// Refuses a folder that no server has used.
fn require_used(data_dir: &DataDir) -> anyhow::Result<()> {
    let path = data_dir.path();
    if path.join("keeper").is_dir() || path.join("server").is_dir() {
        return Ok(());
    }
    bail!("{} is not a data directory of skep; name one with --data-dir", path.display())
}

fn require_stopped(data_dir: &DataDir, is_service: bool) -> anyhow::Result<()> {
    if !data_dir.path().join("keeper").is_dir() {
        return Ok(());
    }
    let Some(holder) = holder(data_dir)? else { return Ok(()) };
    let address = holder.address.map(|address| format!(" at {address}")).unwrap_or_default();
    let way_out =
        if is_service { "systemctl stop skep".to_owned() } else { format!("Ctrl-C, or kill {}", holder.pid) };
    bail!(
        "a server runs with the data directory {} (process {}{address}); stop it first: {way_out}",
        data_dir.path().display(),
        holder.pid
    )
}

/// Refuses a folder that contains mount points: the mounted files do not belong to skep.
fn require_unmounted(folder: &Path) -> anyhow::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("the mounts cannot be listed")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    for point in points {
        if point != folder && point.starts_with(folder) {
            bail!("{} is mounted in {}; unmount it first", point.display(), folder.display());
        }
    }
    Ok(())
}

/// Decodes octal escapes in a path of /proc/self/mountinfo, such as `\040` for a blank.
fn unescaped(text: &str) -> PathBuf {
    let mut path = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        path.push_str(before);
        let digits = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) => {
                path.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                path.push('\\');
                rest = after;
            }
        }
    }
    path.push_str(rest);
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are() {
        assert_eq!(unescaped("/srv/my\\040data"), Path::new("/srv/my data"));
        assert_eq!(unescaped("/a\\134b\\x"), Path::new("/a\\b\\x"));
    }
}
