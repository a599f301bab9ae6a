//! The fence of one git process and its children: which files they may execute and which sockets they may create.
//! Settings of a repository cannot change it.
//!
//! ```text
//! git ── exec ──► git, its own programs, the dynamic loader,       every other program: EACCES (Landlock)
//!                 with network access also ssh, its agent and this program
//!     ── socket ► local sockets                                    every other family:  EACCES (seccomp)
//! ```
//! The dynamic loader can execute any file that it can map. For files in roots and temporary folders this is prevented
//! by `noexec` mounts, which the keeper sets up for the helper for git (`skep_jail::Seclusion`).

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use landlock::{
    AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use skep_workspace::{
    Fence, GitFence, SyscallFilter,
    git::{NetworkAccess, PATH},
};

use crate::fences::{PROGRAMS, SELF_EXE};

/// The paths of ssh and its agent in common distributions. No others are started.
const SSH: [&str; 3] = ["/usr/bin/ssh", "/usr/bin/ssh-agent", "/usr/bin/ssh-add"];
/// How much of a program is read to find the name of its loader, in bytes.
const MAX_HEADER_BYTES: usize = 4096;

/// Makes fences for the git that is installed on this machine.
#[derive(Debug)]
pub(crate) struct GitFences {
    /// Git, the folder of its programs, and the dynamic loader.
    git_files: Vec<PathBuf>,
    /// Whether the operator configured filters, which git starts through a shell.
    has_filters: bool,
    local_sockets_only: SyscallFilter,
}

impl GitFences {
    /// Finds the installed git. Runs it once and waits for it.
    pub(crate) fn for_installed_git(has_filters: bool) -> io::Result<Self> {
        let denials = local_sockets_only().map_err(io::Error::other)?;
        let denials = denials.into_iter().map(|one| (one.code, one.jt, one.jf, one.k));
        Ok(Self { git_files: find_git_files(), has_filters, local_sockets_only: SyscallFilter::new(denials) })
    }

    fn ruleset(&self, reach: NetworkAccess) -> Result<RulesetCreated, RulesetError> {
        let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let rules = rules.handle_access(AccessFs::Execute)?.handle_access(AccessFs::Refer)?;
        let rules = match reach {
            NetworkAccess::Anywhere => rules,
            NetworkAccess::Nowhere | NetworkAccess::Port(_) => rules.handle_access(AccessNet::ConnectTcp)?,
        };
        let mut rules = rules.create()?;
        // Every Landlock ruleset denies renames between folders unless a rule allows them (landlock(7)).
        rules = allow(rules, Path::new("/"), AccessFs::Refer)?;
        // Opened for each call, since an upgrade replaces the files.
        for path in self.executable_paths(reach) {
            rules = allow(rules, path, AccessFs::Execute)?;
        }
        match reach {
            NetworkAccess::Port(port) => rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp)),
            NetworkAccess::Nowhere | NetworkAccess::Anywhere => Ok(rules),
        }
    }

    /// The files that may be executed.
    fn executable_paths(&self, reach: NetworkAccess) -> impl Iterator<Item = &Path> {
        let (own, installed) =
            if self.has_filters { (&[][..], &PROGRAMS[..]) } else { (&self.git_files[..], &[][..]) };
        // Programs that git starts to ask for a token or to connect by ssh (`skep_workspace::git::serve_git_callback`).
        let networked = match reach {
            NetworkAccess::Nowhere | NetworkAccess::Port(_) => &[][..],
            NetworkAccess::Anywhere => &SSH[..],
        };
        let own_program = (reach != NetworkAccess::Nowhere).then_some(SELF_EXE);
        let installed = installed.iter().chain(networked).copied().chain(own_program).map(Path::new);
        own.iter().map(PathBuf::as_path).chain(installed)
    }
}

impl GitFence for GitFences {
    fn fence_for(&self, reach: NetworkAccess) -> io::Result<Fence> {
        let fence = Fence::new(self.ruleset(reach).map_err(io::Error::other)?.into());
        Ok(match reach {
            NetworkAccess::Nowhere => fence.with_syscall_filter(self.local_sockets_only.clone()),
            NetworkAccess::Port(_) | NetworkAccess::Anywhere => fence,
        })
    }
}

/// Skips a missing path.
fn allow(rules: RulesetCreated, path: &Path, access: AccessFs) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(opened) => rules.add_rule(PathBeneath::new(opened, access)),
        Err(_) => Ok(rules),
    }
}

/// Git, the folder of its programs, and the dynamic loader. Empty if git is not installed.
fn find_git_files() -> Vec<PathBuf> {
    let Some(git) = env::split_paths(PATH).map(|folder| folder.join("git")).find(|path| path.is_file())
    else {
        return Vec::new();
    };
    let answer = Command::new(&git).arg("--exec-path").env_clear().output();
    let answer = answer.map(|output| String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    let folder = answer.ok().map(PathBuf::from).filter(|folder| folder.is_absolute());
    let loader = read_header(&git).ok().as_deref().and_then(loader);
    [Some(git), folder, loader].into_iter().flatten().collect()
}

fn read_header(program: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(fs::File::open(program)?, MAX_HEADER_BYTES as u64), &mut head)?;
    Ok(head)
}

/// The dynamic loader that a program names (elf(5), `PT_INTERP`). `None` if it needs none or is not a 64-bit program.
fn loader(head: &[u8]) -> Option<PathBuf> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = head.get(at..at.checked_add(length)?)?;
        bytes.iter().rev().try_fold(0_usize, |sum, byte| Some(sum.checked_mul(256)? + usize::from(*byte)))
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut entries = (0..count).filter_map(|index| table.checked_add(index * size));
    let entry = entries.find(|entry| number(*entry, 4) == Some(libc::PT_INTERP as usize))?;
    let (start, length) = (number(entry + 8, 8)?, number(entry + 32, 8)?);
    let name = head.get(start..start.checked_add(length)?)?.strip_suffix(b"\0")?;
    Some(PathBuf::from(std::str::from_utf8(name).ok()?))
}

/// Denies all socket families except local sockets. `io_uring` is denied as well, since it creates sockets without
/// these calls.
fn local_sockets_only() -> Result<BpfProgram, BackendError> {
    let family = u64::from(libc::AF_UNIX.cast_unsigned());
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)?;
    let other = vec![SeccompRule::new(vec![other])?];
    let rules = BTreeMap::from([
        (libc::SYS_socket, other.clone()),
        (libc::SYS_socketpair, other),
        (libc::SYS_io_uring_setup, vec![]),
    ]);
    let denied = SeccompAction::Errno(libc::EACCES.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, denied, TargetArch::x86_64)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::{io::Read, net::TcpListener, os::unix::fs::PermissionsExt, process::Output};

    use super::*;

    fn fences(has_filters: bool) -> GitFences {
        GitFences::for_installed_git(has_filters).unwrap()
    }

    /// Runs a program inside this fence, or without one.
    fn run(fence: Option<&Fence>, program: &str, arguments: &[&str], folder: &Path) -> io::Result<Output> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env_clear().env("PATH", PATH);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_ALLOW_PROTOCOL", "git");
        if let Some(fence) = fence {
            fence.apply_to(&mut command);
        }
        command.output()
    }

    /// A repository with a changed file, and a program that creates a file beside it when it runs.
    fn repository() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let canary = folder.path().join("canary");
        fs::write(&canary, format!("#!/bin/sh\necho x >> '{}/trace'\n", folder.path().display())).unwrap();
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("file"), "one\n").unwrap();
        for arguments in [&["init", "-q"][..], &["add", "."]] {
            assert!(run(None, "git", arguments, folder.path()).unwrap().status.success());
        }
        fs::write(folder.path().join("file"), "two\n").unwrap();
        (folder, canary.display().to_string())
    }

    #[test]
    fn git_starts_no_program_that_a_setting_names() {
        let (folder, canary) = repository();
        let starts = || {
            let trace = fs::read_to_string(folder.path().join("trace")).unwrap_or_default();
            let _ = fs::remove_file(folder.path().join("trace"));
            trace.lines().count()
        };
        // Calls with network access hold git tokens, which a started program could read.
        let all = [NetworkAccess::Nowhere, NetworkAccess::Port(1), NetworkAccess::Anywhere];
        let all = all.map(|reach| fences(false).fence_for(reach).unwrap());
        let shell = format!("{canary} %f");
        for (setting, verb) in [
            (format!("core.fsmonitor={canary}"), "status"),
            (format!("diff.external={canary}"), "diff"),
            (format!("diff.external={shell}"), "diff"),
            (format!("alias.own=!{canary}"), "own"),
        ] {
            let arguments = ["-c", &setting, verb];
            for fence in &all {
                let _ = run(Some(fence), "git", &arguments, folder.path()).unwrap();
                assert_eq!(starts(), 0, "{setting}");
            }
            let _ = run(None, "git", &arguments, folder.path()).unwrap();
            assert!(starts() > 0, "the control of {setting}");
        }
        // Git's own programs start, including those started by other git programs.
        let [nowhere, port, anywhere] = &all;
        for arguments in [&["status"][..], &["gc", "-q"], &["diff", "--stat"]] {
            let output = run(Some(nowhere), "git", arguments, folder.path()).unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        }
        let ssh = |fence| run(Some(fence), "/usr/bin/ssh", &["-V"], folder.path());
        let shells = all.iter().map(|fence| run(Some(fence), "/bin/sh", &["-c", "true"], folder.path()));
        for denied in shells.chain([ssh(nowhere), ssh(port)]) {
            assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert!(ssh(anywhere).unwrap().status.success());
        // A filter of the operator may need a shell. Files of a repository cannot be started under these rules either.
        let open = fences(true).fence_for(NetworkAccess::Nowhere).unwrap();
        assert!(run(Some(&open), "/bin/sh", &["-c", "true"], folder.path()).unwrap().status.success());
        run(Some(&open), &canary, &[], folder.path()).unwrap_err();
    }

    /// Landlock has rules for connections of TCP alone.
    #[test]
    fn without_network_access_only_local_sockets_are_created() {
        let folder = tempfile::tempdir().unwrap();
        let create = |reach, family: &str| {
            let fence = fences(true).fence_for(reach).unwrap();
            let script = format!("import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)");
            run(Some(&fence), "/usr/bin/python3", &["-c", &script], folder.path()).unwrap()
        };
        for family in ["AF_INET", "AF_NETLINK"] {
            let denied = create(NetworkAccess::Nowhere, family);
            let reason = String::from_utf8(denied.stderr).unwrap();
            assert!(!denied.status.success() && reason.contains("Permission denied"), "{family}: {reason}");
            assert!(create(NetworkAccess::Port(1), family).status.success(), "the control of {family}");
        }
        assert!(create(NetworkAccess::Nowhere, "AF_UNIX").status.success());
    }

    #[test]
    fn git_connects_no_further_than_its_call_needs() {
        let (folder, _) = repository();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("git://127.0.0.1:{port}/x");
        let connects = |reach: Option<NetworkAccess>| {
            let fence = reach.map(|reach| fences(false).fence_for(reach).unwrap());
            let mut command = Command::new("git");
            command.args(["ls-remote", &url]).current_dir(folder.path()).env("GIT_ALLOW_PROTOCOL", "git");
            if let Some(fence) = &fence {
                fence.apply_to(&mut command);
            }
            let mut git = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
            // It waits for an answer if it is connected, and fails otherwise.
            loop {
                if let Ok((stream, _)) = listener.accept() {
                    drop(stream);
                    let _ = git.wait();
                    return Ok(());
                }
                if git.try_wait().unwrap().is_some() {
                    let mut stderr_text = String::new();
                    git.stderr.take().unwrap().read_to_string(&mut stderr_text).unwrap();
                    return Err(stderr_text);
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        let stderr_text = connects(Some(NetworkAccess::Nowhere)).unwrap_err();
        assert!(stderr_text.contains("Permission denied"), "{stderr_text}");
        assert!(connects(Some(NetworkAccess::Port(port.wrapping_add(1).max(1)))).is_err());
        connects(Some(NetworkAccess::Port(port))).unwrap();
        connects(Some(NetworkAccess::Anywhere)).unwrap();
        connects(None).unwrap();
    }

    #[test]
    fn the_loader_of_a_program_is_found() {
        let git = find_git_files();
        assert!(git.len() == 3 && git.iter().all(|path| path.exists()), "{git:?}");
        assert_eq!(loader(b"#!/bin/sh\n"), None);
        let head = read_header(&git[0]).unwrap();
        for length in 0..head.len() {
            let _ = loader(&head[..length]);
        }
        let mut broken = head.clone();
        broken[32..64].fill(0xff);
        assert_eq!(loader(&broken), None);
    }
}
