//! Programs of the image that run in each copy of a VM before its other programs run on: they replace what a copy must not
//! share with the VM that it was copied from, such as the host keys of a server.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use crate::{console, groups};

const FOLDER: &str = "/etc/skep/fork.d";
/// The control group of hooks, which is not frozen with those of commands.
const GROUP: &str = "/sys/fs/cgroup/skep-hooks";
const MAX_PROCESSES: u32 = 64;
/// The memory of hooks, as a part of all memory.
const MEMORY_DIVISOR: u64 = 4;
/// The time of all hooks together.
const LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs all hooks in the order of their names. One that fails, or that still runs when the time is over, is logged and
/// does not fail the copy.
pub(crate) async fn run() {
    let hooks = Hooks { folder: Path::new(FOLDER), group: Some(Path::new(GROUP)), limit: LIMIT };
    let list = hooks.list();
    if list.is_empty() {
        return;
    }
    if let Err(error) = spawn_blocking(move || hooks.run_all(&list)).await {
        console::log(&format!("hooks of the copy failed: {error}"));
    }
}

struct Hooks {
    folder: &'static Path,
    /// `None` in tests, which may make no control groups.
    group: Option<&'static Path>,
    limit: Duration,
}

impl Hooks {
    /// The executable files, in the order of their names.
    fn list(&self) -> Vec<PathBuf> {
        let entries = match fs::read_dir(self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                console::log(&format!("cannot read {}: {error}", self.folder.display()));
                return Vec::new();
            }
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| {
            fs::metadata(path).is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
        });
        paths.sort();
        paths
    }

    fn run_all(&self, hooks: &[PathBuf]) {
        if let Err(error) = self.create_group() {
            // Without the group, what a hook starts could not be ended.
            console::log(&format!("cannot make the control group of hooks, so none of them runs: {error}"));
            return;
        }
        let deadline = Instant::now() + self.limit;
        for hook in hooks {
            let name = hook.display();
            match self.run_one(hook, deadline) {
                Ok(status) if status.success() => {}
                Ok(status) => console::log(&format!("the hook {name} failed: {status}")),
                Err(error) => console::log(&format!("the hook {name} failed: {error}")),
            }
        }
        // Hooks may have left processes behind.
        self.kill();
        self.remove_group();
    }

    fn run_one(&self, hook: &Path, deadline: Instant) -> io::Result<ExitStatus> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the time of all hooks was over");
        if Instant::now() >= deadline {
            return Err(late());
        }
        let entrance = match self.group {
            Some(group) => Some(OpenOptions::new().write(true).open(group.join("cgroup.procs"))?),
            None => None,
        };
        let mut program = Command::new(hook);
        program.current_dir("/").env_clear().envs(crate::handler::BASE_ENV).stdin(Stdio::null());
        let join = move || {
            rustix::process::setsid()?;
            match &entrance {
                Some(entrance) => rustix::io::write(entrance, b"0").map(drop).map_err(io::Error::from),
                None => Ok(()),
            }
        };
        // SAFETY: between fork and exec only plain system calls run; nothing allocates or takes a lock.
        unsafe { program.pre_exec(join) };
        // Its output goes where that of the agent goes, which is the console.
        let mut child = program.spawn()?;
        loop {
            // Fails if the reaper of orphans was faster; then the program has ended.
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                self.kill();
                // It may have left the group.
                let _ = child.kill();
                child.wait()?;
                return Err(late());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn create_group(&self) -> io::Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        match fs::create_dir(group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let memory = (groups::memory_kib(&meminfo, "MemTotal:") << 10) / MEMORY_DIVISOR;
        fs::write(group.join("memory.max"), memory.to_string())?;
        fs::write(group.join("pids.max"), MAX_PROCESSES.to_string())
    }

    fn kill(&self) {
        let Some(group) = self.group else { return };
        if let Err(error) = fs::write(group.join("cgroup.kill"), "1") {
            console::log(&format!("cannot end what hooks started: {error}"));
        }
    }

    /// The group stays if a process needs longer to end; the next copy uses it again.
    fn remove_group(&self) {
        let Some(group) = self.group else { return };
        for _ in 0..10 {
            if fs::remove_dir(group).is_ok() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    /// Writes an executable file in another process: a file cannot be executed while a process that another test starts
    /// still has a descriptor for its writing.
    fn write_program(path: &Path, text: &str) {
        let script = r#"printf "%s" "$2" > "$1""#;
        let status = Command::new("sh").args(["-euc", script, "sh"]).arg(path).arg(text).status().unwrap();
        assert!(status.success());
    }

    /// A folder of shell scripts with their modes. They run in `/`, so they name files by their whole path.
    fn hooks(scripts: &[(&str, u32, &str)], limit: Duration) -> (tempfile::TempDir, Hooks) {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode, text) in scripts {
            let path = dir.path().join(name);
            write_program(&path, &format!("#!/bin/sh\ncd {}\n{text}\n", dir.path().display()));
            fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
        }
        let folder: &'static Path = Box::leak(dir.path().to_owned().into_boxed_path());
        (dir, Hooks { folder, group: None, limit })
    }

    #[test]
    fn executables_run_in_the_order_of_their_names_and_a_failure_does_not_stop_the_next() {
        let scripts = [
            ("20-second", 0o755, "echo second >> ran"),
            ("10-first", 0o700, "echo first >> ran; exit 3"),
            ("30-data", 0o644, "echo data >> ran"),
        ];
        let (dir, hooks) = hooks(&scripts, LIMIT);
        fs::create_dir(dir.path().join("15-folder")).unwrap();
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("16-dangling")).unwrap();
        fs::write(dir.path().join("17-no-program"), "\0").unwrap();
        fs::set_permissions(dir.path().join("17-no-program"), Permissions::from_mode(0o755)).unwrap();
        hooks.run_all(&hooks.list());
        assert_eq!(fs::read_to_string(dir.path().join("ran")).unwrap(), "first\nsecond\n");
    }

    #[test]
    fn a_hook_without_end_is_killed_and_no_other_begins_after_the_time() {
        let scripts = [("1", 0o755, "echo 1 >> ran; exec sleep 1000"), ("2", 0o755, "echo 2 >> ran")];
        let (dir, hooks) = hooks(&scripts, Duration::from_millis(300));
        hooks.run_all(&hooks.list());
        let ran = fs::read_to_string(dir.path().join("ran")).unwrap_or_default();
        assert!(!ran.contains('2'), "{ran}");
    }

    #[test]
    fn a_vm_without_hooks_runs_none() {
        let hooks = Hooks { folder: Path::new("/nonexistent"), group: None, limit: LIMIT };
        assert!(hooks.list().is_empty());
    }
}
