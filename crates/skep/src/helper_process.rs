//! What a helper is started with, by the keeper or by a server that has none.

use std::{
    env, fs,
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::Context;
use rustix::io::fcntl_dupfd_cloexec;
use skep_api::{ErrorCode, Failure, HelperKind};
use skep_keeper::HelperOrder;
use skep_keeper_protocol::ServerEnd;
use skep_server::StartHelper;
use tokio::net::UnixStream;

use crate::settings::Settings;

/// What a helper may know of our environment.
const PASSED_ON: [&str; 3] = ["LANG", "TZ", "SSL_CERT_FILE"];
/// Processes and threads of all programs together.
const PIDS: u64 = 4096;
/// Memory of all programs together where the machine does not say how much it has, in bytes.
const LEAST_MEMORY: u64 = 512 << 20;
/// Where programs and libraries are installed. What a machine lacks of them is passed over.
const PROGRAMS: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store"];
/// Where programs put what lasts as long as they do.
const TEMPORARY: &str = "/tmp";
const SHARED_MEMORY: &str = "/dev/shm";
/// The descriptor that a helper looks for.
const SERVER: i32 = 3;

/// What the keeper starts helpers of a kind with.
pub(crate) fn order(settings: &Settings, kind: HelperKind) -> HelperOrder {
    let (executable, memory_bytes) = match kind {
        HelperKind::Commands => (None, half_of_memory()),
        HelperKind::Git => (Some(PROGRAMS.map(PathBuf::from).to_vec()), half_of_memory() / 2),
    };
    let scratch = scratch(settings);
    let mut environment = environment();
    if !scratch.iter().any(|folder| folder == Path::new(TEMPORARY)) {
        environment.push(("TMPDIR".to_owned(), SHARED_MEMORY.to_owned()));
    }
    HelperOrder {
        arguments: arguments(settings, kind, &scratch),
        environment,
        scratch,
        executable,
        memory_bytes: memory_bytes.max(LEAST_MEMORY),
        pids: PIDS,
    }
}

/// Asks the keeper for helpers.
pub(crate) fn by_keeper(keeper: ServerEnd) -> StartHelper {
    Arc::new(move |kind| {
        let keeper = keeper.clone();
        Box::pin(async move { Ok(keeper.helper(kind).await?) })
    })
}

/// Starts helpers as children: without namespaces, control groups and folders of their own.
pub(crate) fn by_us(settings: &Settings) -> StartHelper {
    let of = |kind| arguments(settings, kind, &[]);
    let (commands, git) = (of(HelperKind::Commands), of(HelperKind::Git));
    Arc::new(move |kind| {
        let arguments = match kind {
            HelperKind::Commands => commands.clone(),
            HelperKind::Git => git.clone(),
        };
        Box::pin(async move {
            start(&arguments).map_err(|error| Failure::new(ErrorCode::ExecUnavailable, format!("{error:#}")))
        })
    })
}

fn start(arguments: &[String]) -> anyhow::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair().context("no socket pair")?;
    let theirs = theirs.into_std()?;
    theirs.set_nonblocking(false)?;
    // Above the number that it shall have: there, it would be closed by the program's start.
    let theirs = fcntl_dupfd_cloexec(&theirs, SERVER + 1)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("skep").args(arguments).env_clear().envs(environment()).stdin(Stdio::null());
    let place = move || {
        // SAFETY: it takes two numbers; nobody in the new process uses the second yet.
        if unsafe { libc::dup2(theirs.as_raw_fd(), SERVER) } == -1 {
            return Err(std::io::Error::last_os_error());
        }
        // Ctrl-C on a terminal is meant for the server, which lets commands finish.
        rustix::process::setsid()?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls: no memory is allocated, no lock is taken.
    unsafe { command.pre_exec(place) };
    let mut child = command.spawn().context("the helper could not be started")?;
    // It ends when we hang up; until then somebody has to wait for it.
    std::thread::Builder::new().name("helper".to_owned()).spawn(move || child.wait())?;
    Ok(ours)
}

fn arguments(settings: &Settings, kind: HelperKind, scratch: &[PathBuf]) -> Vec<String> {
    let mut arguments = vec!["helper".to_owned()];
    if kind == HelperKind::Git {
        arguments.push("--git".to_owned());
    }
    let mut add = |flag: &str, path: &Path| arguments.extend([flag.to_owned(), path.display().to_string()]);
    settings.roots().iter().chain([&settings.workspaces()]).for_each(|root| add("--root", root));
    add("--data-dir", &settings.data_dir);
    add("--store", &settings.store());
    scratch.iter().for_each(|folder| add("--scratch", folder));
    let filters = settings.git_filter.iter().filter_map(|filter| serde_json::to_string(filter).ok());
    arguments.extend(filters.flat_map(|filter| ["--git-filter".to_owned(), filter]));
    arguments
}

/// The folders that programs find empty. A root that lies in one of them would be hidden.
fn scratch(settings: &Settings) -> Vec<PathBuf> {
    let roots: Vec<PathBuf> = settings.roots().into_iter().chain([settings.workspaces()]).collect();
    let hides = |folder: &Path| {
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        roots.iter().any(|root| root.starts_with(folder) || real(root).starts_with(folder))
    };
    let folders = [TEMPORARY, SHARED_MEMORY].map(PathBuf::from);
    folders.into_iter().filter(|folder| folder.is_dir() && !hides(folder)).collect()
}

fn environment() -> Vec<(String, String)> {
    PASSED_ON.into_iter().filter_map(|name| Some((name.to_owned(), env::var(name).ok()?))).collect()
}

fn half_of_memory() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok()).unwrap_or(0);
    (kib << 10) / 2
}
