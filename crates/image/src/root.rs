//! The shared root file system: an uncompressed erofs image of Debian, from the package sources of this machine.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use skep_template::shelf;

use crate::{
    Error, apt,
    command::{Containment, Program},
};

const MMDEBSTRAP: Program = Program { name: "mmdebstrap", package: "mmdebstrap" };
const TAR: Program = Program { name: "tar", package: "tar" };
const MKFS_EROFS: Program = Program { name: "mkfs.erofs", package: "erofs-utils" };

/// Version of the archive that [`ensure_packages`] makes. Must change whenever its content does.
pub(crate) const PACKAGES_RECIPE: &str = "2";
/// Debian packages for agents that work in the VM.
pub(crate) const PACKAGES: [&str; 10] = [
    "bash",
    "coreutils",
    "git",
    "python3",
    "python3-pip",
    "python3-venv",
    "curl",
    "ca-certificates",
    "iproute2",
    "procps",
];
/// Lets `pip install` work outside of a virtual environment: a VM is one agent's, and a new one takes its place when
/// packages of pip and of Debian get in each other's way.
const PIP_CONF: &str = "[global]\nbreak-system-packages = true\nroot-user-action = ignore\n";
const LEFT_OUT: [&str; 4] =
    ["/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"];
/// Path of the guest agent's binary, to which [`POWER_NAMES`] are symbolic links.
const AGENT_PATH: &str = "usr/lib/skep/agent";
const POWER_NAMES: [&str; 4] = ["poweroff", "reboot", "halt", "shutdown"];

/// Returns the archive of unpacked and configured packages, and makes it if the cache does not contain it.
pub(crate) fn ensure_packages(cache: &Path, pen: &Containment) -> Result<PathBuf, Error> {
    let archives = apt::archives()?;
    let Some(release) = archives.first().map(|archive| archive.codename.clone()) else {
        return Err(Error::NoPackageLists);
    };
    let archive = cache.join(format!("packages-{release}-{PACKAGES_RECIPE}.tar"));
    if archive.is_file() {
        return Ok(archive);
    }
    let work = shelf::create_partial(cache)?;
    let made = work.path().join("packages.tar");
    let mut command = Command::new(MMDEBSTRAP.name);
    command.args(["--mode=root", "--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={}", PACKAGES.join(",")));
    command.args(LEFT_OUT.map(|path| format!("--dpkgopt=path-exclude={path}")));
    command.args(apt::proxies()?.into_iter().map(|option| format!("--aptopt={option}")));
    command.arg(&release).arg(&made).args(archives.iter().map(apt::Archive::line));
    pen.admit(&mut command)?;
    run_with_output(command, work.path())?;
    // Otherwise a power failure might leave the name without the content, and later bakes would use it.
    fs::File::open(&made).and_then(|file| file.sync_all()).map_err(Error::io(made.display()))?;
    fs::rename(&made, &archive).map_err(Error::io(archive.display()))?;
    Ok(archive)
}

/// Runs a command with its output on standard error, because it takes about a minute and reports its own progress.
fn run_with_output(mut command: Command, work: &Path) -> Result<(), Error> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).env("TMPDIR", work).env("LC_ALL", "C.UTF-8");
    let status = command.status().map_err(|error| MMDEBSTRAP.not_started(error))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Failed {
        command: MMDEBSTRAP.name.to_owned(),
        status: status.to_string(),
        message: format!("see its output above; it worked in {}", work.display()),
    })
}

/// Writes the erofs image: the packages, the agent, and links for files of the guest's identity.
pub(crate) fn write(
    to: &Path,
    packages: &Path,
    agent: &[u8],
    work: &Path,
    pen: &Containment,
) -> Result<(), Error> {
    let tree = work.join("root");
    fs::create_dir(&tree).map_err(Error::io(tree.display()))?;
    pen.run(&TAR, &tree, &[Path::new("--numeric-owner"), Path::new("-xpf"), packages])?;
    configure(&tree, agent).map_err(Error::io(tree.display()))?;
    // With a fixed time and UUID, the same inputs make the same image.
    let options = ["-T0", "-U", "5ce9ba5e-0000-4000-8000-000000000000", "--quiet"];
    let mut arguments: Vec<&std::ffi::OsStr> = options.iter().map(std::ffi::OsStr::new).collect();
    arguments.extend([to.as_os_str(), tree.as_os_str()]);
    pen.run(&MKFS_EROFS, work, &arguments)?;
    fs::remove_dir_all(&tree).map_err(Error::io(tree.display()))
}

fn configure(tree: &Path, agent: &[u8]) -> std::io::Result<()> {
    let replace = |path: &str| match fs::remove_file(tree.join(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    // On a tmpfs it is written in a third of the time and is not part of copies of the disk.
    replace("etc/machine-id")?;
    symlink("/run/machine-id", tree.join("etc/machine-id"))?;
    replace("var/lib/dbus/machine-id")?;
    replace("etc/resolv.conf")?;
    fs::write(tree.join("etc/resolv.conf"), "")?;
    fs::write(tree.join("etc/hostname"), "skep\n")?;
    fs::write(tree.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    fs::write(tree.join("etc/pip.conf"), PIP_CONF)?;
    let program = tree.join(AGENT_PATH);
    fs::create_dir_all(tree.join("usr/lib/skep"))?;
    fs::write(&program, agent)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    for name in POWER_NAMES {
        replace(&format!("usr/sbin/{name}"))?;
        symlink(format!("/{AGENT_PATH}"), tree.join("usr/sbin").join(name))?;
    }
    for dir in ["var/lib/apt/lists", "var/cache/apt"] {
        if tree.join(dir).is_dir() {
            fs::remove_dir_all(tree.join(dir))?;
        }
    }
    fs::create_dir_all(tree.join("var/lib/apt/lists/partial"))
}
