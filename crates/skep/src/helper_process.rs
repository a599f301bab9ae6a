//! How the keeper starts helper processes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::process::geteuid;
use skep_api::HelperKind;
use skep_keeper::HelperConfig;
use skep_keeper_protocol::ServerEnd;
use skep_server::StartHelper;

use crate::settings::Settings;

/// Environment variables that a helper inherits.
const PASSED_VARIABLES: [&str; 3] = ["LANG", "TZ", "SSL_CERT_FILE"];
/// Limit of processes and threads for all programs together.
const PIDS: u64 = 4096;
/// Minimum of the memory limit for all programs together, in bytes. Applies also if /proc/meminfo has no total.
const MIN_MEMORY_BYTES: u64 = 512 << 20;
/// Directories of programs and libraries. Those that the machine lacks are skipped.
const PROGRAM_DIRS: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store"];
/// Directories for temporary files of programs.
const TEMPORARY: &str = "/tmp";
const SHARED_MEMORY: &str = "/dev/shm";

/// How the keeper starts helpers of a kind.
pub(crate) fn helper_order(settings: &Settings, kind: HelperKind) -> HelperConfig {
    let (executable, memory_bytes) = match kind {
        HelperKind::Commands => (None, half_of_memory()),
        HelperKind::Git => (Some(PROGRAM_DIRS.map(PathBuf::from).to_vec()), half_of_memory() / 2),
    };
    let has_root = geteuid().is_root();
    let scratch = if has_root { scratch(settings) } else { Vec::new() };
    let mut environment = environment();
    if has_root && !scratch.iter().any(|folder| folder == Path::new(TEMPORARY)) {
        environment.push(("TMPDIR".to_owned(), SHARED_MEMORY.to_owned()));
    }
    HelperConfig {
        arguments: arguments(settings, kind, &scratch),
        environment,
        scratch,
        executable,
        memory_bytes: memory_bytes.max(MIN_MEMORY_BYTES),
        pids: PIDS,
    }
}

/// Starts helpers through the keeper.
pub(crate) fn start_by_keeper(keeper: ServerEnd) -> StartHelper {
    Arc::new(move |kind| {
        let keeper = keeper.clone();
        Box::pin(async move { Ok(keeper.helper(kind).await?) })
    })
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

/// The folders that are empty for each program. A folder that contains a root is omitted, because the root would be
/// hidden.
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
    PASSED_VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), env::var(name).ok()?))).collect()
}

fn half_of_memory() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok()).unwrap_or(0);
    (kib << 10) / 2
}
