//! Starts the `git` processes of all operations.
//!
//! Each process gets a clean environment, config overrides that win over those of every repository
//! ([`super::config`]), its own process group, a timeout and a limit on its output. When its future is dropped, it
//! receives SIGTERM, so that it removes its locks, and SIGKILL if it has not ended after a grace period.

mod group;
mod output_stream;
mod pipes;
#[cfg(test)]
mod tests;

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::process::Signal;
use skep_api::git::LOCAL_LIMIT;
use tokio::net::unix::pipe;

use self::{
    group::Group,
    pipes::{Pipes, read_limited, read_tail, write_input},
};
use super::{GitError, config::ConfigOverrides, read_permits::ReadPermit};
use crate::{Content, Error, Place, streamed::no_content};

/// Default limit of one git's standard output, in bytes.
const MAX_OUTPUT: usize = 64 << 20;
/// Time between SIGTERM and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// Search path for git and the programs that it starts.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Which addresses a git process may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkAccess {
    /// No address. Only sockets of the local family are allowed.
    Nowhere,
    /// TCP to this port alone, which is our proxy's.
    Port(u16),
    Anywhere,
}

/// A git command that has not been started yet.
#[derive(Debug)]
pub(super) struct Git {
    place: Place,
    arguments: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: PathBuf,
    stdin: Option<Vec<u8>>,
    max_output: usize,
    timeout: Duration,
    inherited_fds: Vec<Arc<OwnedFd>>,
    network: NetworkAccess,
    /// Held until the process has ended.
    read_permit: Option<Arc<ReadPermit>>,
    /// The git that serves a remote on this machine, and its end of the socket pair.
    service: Option<(Box<Self>, OwnedFd)>,
}

/// Result of a finished git process.
#[derive(Debug)]
pub(super) struct GitOutput {
    /// `None` if a signal ended the process.
    pub(super) code: Option<i32>,
    pub(super) stdout: Vec<u8>,
    /// Whether the standard output was cut at its limit.
    pub(super) truncated: bool,
    /// The last part of the standard error.
    pub(super) stderr: String,
}

impl GitOutput {
    pub(super) fn is_success(&self) -> bool {
        self.code == Some(0) || self.truncated
    }

    /// The exit code.
    ///
    /// # Errors
    /// A signal ended the process.
    pub(super) fn exit_code(&self) -> Result<i32, GitError> {
        self.code.ok_or_else(|| GitError::Other { message: self.message() })
    }

    /// The standard output of a command that exits with 1 where there is nothing to print.
    ///
    /// # Errors
    /// Any other failure.
    pub(super) fn found(&self) -> Result<Option<String>, GitError> {
        match self.exit_code()? {
            0 => Ok(Some(self.stdout_text())),
            1 => Ok(None),
            _ => Err(GitError::from_message(self.message())),
        }
    }

    /// The standard output as text without its final newlines.
    pub(super) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches(['\n', '\0']).to_owned()
    }

    /// Both outputs as text for a message, at most 4,000 characters. If a signal ended the process, its standard output is left
    /// out, because it may be a part of an answer.
    pub(super) fn message(&self) -> String {
        let stderr = self.stderr.trim();
        let message = match self.code {
            None => {
                format!(
                    "{stderr}\n`git` was ended by a signal, perhaps for lack of memory; ask for less, or try again"
                )
            }
            Some(_) => format!("{stderr}\n{}", String::from_utf8_lossy(&self.stdout).trim()),
        };
        message.trim().chars().take(4_000).collect()
    }
}

impl Git {
    /// A git that runs in a folder of a workspace, behind its fence, with these config overrides.
    pub(super) fn new(place: &Place, folder: &Path, settings: &ConfigOverrides) -> Self {
        let fixed = [
            ("PATH", PATH),
            ("HOME", "/nonexistent"),
            ("LC_ALL", "C.UTF-8"),
            ("TZ", "UTC"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            // Empty rather than absent: git would look for an absent one in the repository's config.
            ("GIT_ASKPASS", ""),
            ("GIT_EDITOR", ":"),
            ("GIT_SEQUENCE_EDITOR", ":"),
            ("GIT_PAGER", "cat"),
            ("GIT_MERGE_AUTOEDIT", "no"),
            ("GIT_SSH_VARIANT", "ssh"),
            ("GIT_SSH_COMMAND", "false"),
            ("GIT_LITERAL_PATHSPECS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            // No protocol is allowed by default; `Transport::git` sets the one that it needs.
            ("GIT_ALLOW_PROTOCOL", ""),
        ];
        let mut env: Vec<_> = fixed.map(|(name, value)| (name.into(), value.into())).into();
        env.push(("GIT_CONFIG_PARAMETERS".into(), settings.as_parameters()));
        env.extend(place.private_temporary_folder().map(|folder| ("TMPDIR".into(), folder.into())));
        env.extend(place.git_grants().ca_file.as_ref().map(|file| ("GIT_SSL_CAINFO".into(), file.into())));
        Self {
            place: place.clone(),
            arguments: vec!["--no-pager".into()],
            env,
            folder: folder.to_owned(),
            stdin: None,
            max_output: MAX_OUTPUT,
            timeout: LOCAL_LIMIT,
            inherited_fds: Vec::new(),
            network: NetworkAccess::Nowhere,
            read_permit: None,
            service: None,
        }
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.retain(|(other, _)| other != name);
        self.env.push((name.into(), value.into()));
        self
    }

    pub(super) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    pub(super) fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { stdin: Some(bytes.into()), ..self }
    }

    /// Limits the standard output, in bytes. A git that writes more is ended.
    pub(super) fn max_output(self, most: usize) -> Self {
        Self { max_output: most, ..self }
    }

    pub(super) fn timeout(self, limit: Duration) -> Self {
        Self { timeout: limit, ..self }
    }

    /// The process and its children inherit these descriptors under the same numbers.
    pub(super) fn inherit_fds(mut self, descriptors: impl IntoIterator<Item = Arc<OwnedFd>>) -> Self {
        self.inherited_fds.extend(descriptors);
        self
    }

    /// Starts a second git with this one, with this end of a socket pair as its standard input and output.
    pub(super) fn with_service(self, service: Self, end: OwnedFd) -> Self {
        Self { service: Some((Box::new(service), end)), ..self }
    }

    /// Lets the process and its children connect to these addresses. The default is [`NetworkAccess::Nowhere`].
    pub(super) fn network(self, reach: NetworkAccess) -> Self {
        Self { network: reach, ..self }
    }

    /// Keeps the permit of the operation until the process has ended, also when the caller is gone before.
    pub(super) fn with_read_permit(self, permit: Option<Arc<ReadPermit>>) -> Self {
        Self { read_permit: permit, ..self }
    }

    /// Runs it to its end. A failing exit code is not an error here.
    ///
    /// # Errors
    /// The process cannot be started, or does not end in time.
    pub(super) async fn run(self) -> Result<GitOutput, Error> {
        self.run_with_input(no_content()).await
    }

    /// The same, with this content written to the standard input after the bytes of [`Self::stdin`].
    ///
    /// # Errors
    /// Those of [`Self::run`], and a content that ends with an error.
    pub(super) async fn run_with_input(self, content: Content) -> Result<GitOutput, Error> {
        let (limit, command) = (self.timeout, self.subcommand());
        match tokio::time::timeout(limit, self.collect_output(content)).await {
            Ok(output) => output,
            Err(_) => Err(GitError::Timeout { command, seconds: limit.as_secs() }.into()),
        }
    }

    /// Starts it and returns its standard output as a stream. Dropping the stream ends the process. If git fails, the
    /// last item of the stream is an error with its standard error as text.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(super) fn stream(self) -> Result<Content, Error> {
        let (deadline, input) = (tokio::time::Instant::now() + self.timeout, self.stdin.clone());
        let (group, pipes) = self.start()?;
        Ok(output_stream::into_content(output_stream::StartedGit {
            group,
            pipes,
            input: input.unwrap_or_default(),
            deadline,
        }))
    }

    fn subcommand(&self) -> String {
        self.arguments.get(1).map(|verb| verb.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Our copies of its descriptors are closed by this, so that the process at the other end sees the end of the
    /// stream.
    fn start(self) -> Result<(Group, Pipes), Error> {
        self.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::from(GitError::GitNotInstalled),
            _ => Error::NotStarted { source },
        })
    }

    async fn collect_output(self, content: Content) -> Result<GitOutput, Error> {
        let input = self.stdin.clone();
        let most = self.max_output;
        let (group, mut pipes) = self.start()?;
        let feed = async {
            let (Some(mut pipe), Some(input)) = (pipes.stdin.take(), input) else { return Ok(()) };
            write_input(&mut pipe, &input, content).await.inspect_err(|_| group.signal_group(Signal::TERM))
        };
        let (mut out, mut complaints) = (Vec::new(), Vec::new());
        let (fed, cut, ()) = tokio::join!(
            feed,
            async {
                let cut = read_limited(&mut pipes.stdout, &mut out, most).await;
                if cut {
                    group.signal_group(Signal::TERM);
                }
                cut
            },
            read_tail(&mut pipes.stderr, &mut complaints),
        );
        let status = group.wait().await;
        fed.map_err(|source| GitError::IncompleteTransfer { message: source.to_string() })?;
        let complaints = String::from_utf8_lossy(&complaints).into_owned();
        tracing::debug!(complaints = %complaints.trim(), "git ended");
        Ok(GitOutput {
            code: status.and_then(|status| status.code()),
            stdout: out,
            truncated: cut,
            stderr: complaints,
        })
    }

    fn spawn(mut self) -> io::Result<(Group, Pipes)> {
        let service = self.service.take().map(|(service, end)| service.spawn_service(end)).transpose()?;
        let mut command = self.command()?;
        command.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (group, mut child) = Group::start(&self.place, &mut command, service, self.read_permit.take())?;
        let missing = || io::Error::other("a pipe of git is missing");
        let pipes = Pipes {
            stdin: child.stdin.take().map(|pipe| pipe::Sender::from_owned_fd(pipe.into())).transpose()?,
            stdout: pipe::Receiver::from_owned_fd(child.stdout.take().ok_or_else(missing)?.into())?,
            stderr: pipe::Receiver::from_owned_fd(child.stderr.take().ok_or_else(missing)?.into())?,
        };
        Ok((group, pipes))
    }

    /// Starts it as the service that another git connects to.
    fn spawn_service(self, end: OwnedFd) -> io::Result<Group> {
        let mut command = self.command()?;
        // Its errors reach the other git through the protocol.
        command.stdin(end.try_clone()?).stdout(end).stderr(Stdio::null());
        Ok(Group::start(&self.place, &mut command, None, None)?.0)
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = Command::new("git");
        command.args(&self.arguments).current_dir(&self.folder).process_group(0);
        command.env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        // They stay open in the child between fork and exec, because the child has copies of all of ours.
        let passed: Vec<_> = self.inherited_fds.iter().map(AsRawFd::as_raw_fd).collect();
        let prepare = move || {
            rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
            passed.iter().try_for_each(|descriptor| super::credentials::clear_close_on_exec(*descriptor))
        };
        // SAFETY: only plain system calls run between fork and exec; nothing allocates or takes a lock.
        unsafe { command.pre_exec(prepare) };
        self.place.apply_git_fence(&mut command, self.network)?;
        Ok(command)
    }
}
