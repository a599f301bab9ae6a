//! An ssh-agent(1) with one key, for one connection.
//!
//! ssh reads keys from files only, and git, which starts it, may open every file that ssh may open. A link of the repository to such
//! a file would make git print the key. An agent uses the key without showing it.

use std::{
    env,
    io::{self, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    rand::{GetRandomFlags, getrandom},
};

use super::locate::TEMPORARY_PREFIX;

const START_ATTEMPTS: u32 = 1_000;
const START_INTERVAL: Duration = Duration::from_millis(5);

/// An agent that ends on drop. It is in the process group of git, so that a signal to git ends it too.
pub(super) struct SshAgent {
    process: Child,
    socket: PathBuf,
}

impl SshAgent {
    /// Starts an agent with this private key. Blocks until it can be used. Makes the folder for temporary files the current one,
    /// in which the path of the socket is relative.
    ///
    /// # Errors
    /// The agent does not start, or refuses the key.
    pub(super) fn start(key: &[u8]) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        // A path of a socket has at most 107 bytes, so all programs use a relative one.
        env::set_current_dir(env::temp_dir())?;
        let socket = PathBuf::from(format!("{TEMPORARY_PREFIX}ssh-{:016x}", u64::from_ne_bytes(random)));
        // In the foreground, so that it stays in the process group.
        let mut command = Command::new("ssh-agent");
        let process =
            command.args(["-D", "-a"]).arg(&socket).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut agent = Self { process: process.map_err(|error| not_started("ssh-agent", &error))?, socket };
        agent.wait_until_it_listens()?;
        agent.add(key)?;
        Ok(agent)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    fn wait_until_it_listens(&mut self) -> io::Result<()> {
        for _ in 0..START_ATTEMPTS {
            if UnixStream::connect(&self.socket).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("ssh-agent ended with {status}")));
            }
            thread::sleep(START_INTERVAL);
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "ssh-agent does not listen"))
    }

    fn add(&self, key: &[u8]) -> io::Result<()> {
        // A socket, because git could open a pipe of this process.
        let (mut ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("ssh-add");
        command.args(["-q", "-"]).env("SSH_AUTH_SOCK", &self.socket).stdin(OwnedFd::from(theirs));
        // It must not ask for a passphrase on the terminal of the server.
        command.env("SSH_ASKPASS", "/nonexistent").env("SSH_ASKPASS_REQUIRE", "force").stdout(Stdio::null());
        let mut process = command.spawn().map_err(|error| not_started("ssh-add", &error))?;
        drop(command);
        let written = ours.write_all(key);
        drop(ours);
        let refused =
            || io::Error::other("ssh-add refuses the key; it must be a private key without a passphrase");
        if process.wait()?.success() { written } else { Err(refused()) }
    }
}

impl Drop for SshAgent {
    fn drop(&mut self) {
        // It removes its socket.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

fn not_started(program: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{program}, which ssh keys need, does not start: {error}"))
}
