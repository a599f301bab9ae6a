//! The one place that starts `git`.
//!
//! Each process gets a clean environment, settings that win over those of every repository ([`super::settings`]), a
//! process group of its own, a time and a bound for what it says. When nobody awaits it any more it is told to end, so
//! that it removes its locks, and is killed where it does not.

mod poured;
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
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use rustix::process::{Pid, Signal, kill_process_group};
use skep_api::git::LOCAL_LIMIT;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
};

use super::{Refused, settings::Settings};
use crate::{Commands, Content, Error, Place, exec::shell::Shell, streamed::no_content};

/// The most that one git says, in bytes, where nobody names less.
const MOST_OUTPUT: usize = 64 << 20;
/// What is kept of its complaints: the last part.
const MOST_COMPLAINTS: usize = 16 << 10;
/// How long it may take to end once it was told to.
const GRACE: Duration = Duration::from_secs(2);
/// Where git and the programs that it starts are looked for.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Where a git may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Nowhere: it needs no socket but those of the local family.
    Nowhere,
    /// By TCP, to this port alone: that of our proxy.
    Port(u16),
    /// To every address.
    Anywhere,
}

/// A git that is about to be started.
#[derive(Debug)]
pub(super) struct Git {
    place: Place,
    arguments: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: PathBuf,
    stdin: Option<Vec<u8>>,
    most: usize,
    limit: Duration,
    passed: Vec<Arc<OwnedFd>>,
    reach: Reach,
    /// What it speaks to where its remote is on this machine, and that one's end of their socket pair.
    served_by: Option<(Box<Self>, OwnedFd)>,
}

/// What a git said.
#[derive(Debug)]
pub(super) struct Said {
    /// Its exit code; `None` where a signal ended it.
    pub(super) code: Option<i32>,
    /// What it said.
    pub(super) out: Vec<u8>,
    /// Whether it would have said more.
    pub(super) cut: bool,
    /// What it complained of.
    pub(super) complaints: String,
}

impl Said {
    pub(super) fn done(&self) -> bool {
        self.code == Some(0) || self.cut
    }

    /// What it said, where it is one line of text.
    pub(super) fn line(&self) -> String {
        String::from_utf8_lossy(&self.out).trim_end_matches(['\n', '\0']).to_owned()
    }

    /// All that it said in words.
    pub(super) fn words(&self) -> String {
        let out = String::from_utf8_lossy(&self.out);
        let words = format!("{}\n{}", self.complaints.trim(), out.trim());
        let words = words.trim();
        words.chars().take(4_000).collect()
    }
}

impl Git {
    /// A git in this folder of a place, behind its fence, with these settings over all others.
    pub(super) fn new(place: &Place, folder: &Path, settings: &Settings) -> Self {
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
            // Empty, and not absent: an absent one is looked for in the repository's settings.
            ("GIT_ASKPASS", ""),
            ("GIT_EDITOR", ":"),
            ("GIT_SEQUENCE_EDITOR", ":"),
            ("GIT_PAGER", "cat"),
            ("GIT_MERGE_AUTOEDIT", "no"),
            ("GIT_SSH_VARIANT", "ssh"),
            ("GIT_SSH_COMMAND", "false"),
            ("GIT_LITERAL_PATHSPECS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            // No protocol; what needs one names it.
            ("GIT_ALLOW_PROTOCOL", ""),
        ];
        let mut env: Vec<_> = fixed.map(|(name, value)| (name.into(), value.into())).into();
        env.push(("GIT_CONFIG_PARAMETERS".into(), settings.as_parameters()));
        env.extend(place.git().authorities.as_ref().map(|file| ("GIT_SSL_CAINFO".into(), file.into())));
        Self {
            place: place.clone(),
            arguments: vec!["--no-pager".into()],
            env,
            folder: folder.to_owned(),
            stdin: None,
            most: MOST_OUTPUT,
            limit: LOCAL_LIMIT,
            passed: Vec::new(),
            reach: Reach::Nowhere,
            served_by: None,
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

    /// Only so many bytes of what it says: what says more is ended.
    pub(super) fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    pub(super) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// It and what it starts get these descriptors too, under their numbers here.
    pub(super) fn passing(mut self, descriptors: impl IntoIterator<Item = Arc<OwnedFd>>) -> Self {
        self.passed.extend(descriptors);
        self
    }

    /// Another git is started with it, whose standard input and output are this end of a socket pair.
    pub(super) fn served_by(self, service: Self, end: OwnedFd) -> Self {
        Self { served_by: Some((Box::new(service), end)), ..self }
    }

    /// It and what it starts may connect so far; nowhere unless said.
    pub(super) fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Runs it, and tells what it said, whatever its exit code is.
    ///
    /// # Errors
    /// It cannot be started, or takes too long.
    pub(super) async fn run(self) -> Result<Said, Error> {
        self.run_fed(no_content()).await
    }

    /// The same, with these bytes behind what it is told besides.
    ///
    /// # Errors
    /// Those of [`Self::run`], and bytes that broke off.
    pub(super) async fn run_fed(self, content: Content) -> Result<Said, Error> {
        let (limit, command) = (self.limit, self.verb());
        match tokio::time::timeout(limit, self.say(content)).await {
            Ok(said) => said,
            Err(_) => Err(Refused::Timeout { command, seconds: limit.as_secs() }.into()),
        }
    }

    /// Starts it, and gives what it says piece by piece. Dropped before the end, it ends; what it complains of is an error
    /// behind the last piece.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn pour(self) -> Result<Content, Error> {
        let (deadline, input) = (tokio::time::Instant::now() + self.limit, self.stdin.clone());
        let (group, pipes) = self.start()?;
        Ok(poured::content(poured::Pouring { group, pipes, input: input.unwrap_or_default(), deadline }))
    }

    fn verb(&self) -> String {
        self.arguments.get(1).map(|verb| verb.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Its descriptors are closed here once it has them: what it speaks to sees its end.
    fn start(self) -> Result<(Group, Pipes), Error> {
        self.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::from(Refused::NoGit),
            _ => Error::NotStarted { source },
        })
    }

    async fn say(self, content: Content) -> Result<Said, Error> {
        let input = self.stdin.clone();
        let most = self.most;
        let (group, mut pipes) = self.start()?;
        let feed = async {
            let (Some(mut pipe), Some(input)) = (pipes.stdin.take(), input) else { return Ok(()) };
            feed(&mut pipe, &input, content).await.inspect_err(|_| group.tell(Signal::TERM))
        };
        let (mut out, mut complaints) = (Vec::new(), Vec::new());
        let (fed, cut, ()) = tokio::join!(
            feed,
            async {
                let cut = read_at_most(&mut pipes.stdout, &mut out, most).await;
                if cut {
                    group.tell(Signal::TERM);
                }
                cut
            },
            read_last(&mut pipes.stderr, &mut complaints),
        );
        let status = group.ended().await;
        fed.map_err(|source| Refused::BrokenOff { words: source.to_string() })?;
        let complaints = String::from_utf8_lossy(&complaints).into_owned();
        tracing::debug!(complaints = %complaints.trim(), "git said");
        Ok(Said { code: status.and_then(|status| status.code()), out, cut, complaints })
    }

    fn spawn(mut self) -> io::Result<(Group, Pipes)> {
        let service = self.served_by.take().map(|(service, end)| service.serve(end)).transpose()?;
        let mut command = self.command()?;
        command.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (group, mut child) = Group::start(&self.place, &mut command, service)?;
        let missing = || io::Error::other("a pipe of git is missing");
        let pipes = Pipes {
            stdin: child.stdin.take().map(|pipe| pipe::Sender::from_owned_fd(pipe.into())).transpose()?,
            stdout: pipe::Receiver::from_owned_fd(child.stdout.take().ok_or_else(missing)?.into())?,
            stderr: pipe::Receiver::from_owned_fd(child.stderr.take().ok_or_else(missing)?.into())?,
        };
        Ok((group, pipes))
    }

    /// Starts it as what another git speaks to.
    fn serve(self, end: OwnedFd) -> io::Result<Group> {
        let mut command = self.command()?;
        // What it complains of reaches the other git by their protocol.
        command.stdin(end.try_clone()?).stdout(end).stderr(Stdio::null());
        Ok(Group::start(&self.place, &mut command, None)?.0)
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = Command::new("git");
        command.args(&self.arguments).current_dir(&self.folder).process_group(0);
        command.env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        // They stay open in the command's child, which has copies of all of ours.
        let passed: Vec<_> = self.passed.iter().map(AsRawFd::as_raw_fd).collect();
        let prepare = move || {
            rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
            passed.iter().try_for_each(|descriptor| super::credentials::pass(*descriptor))
        };
        // SAFETY: between fork and exec only plain system calls run, and nothing allocates or takes a lock.
        unsafe { command.pre_exec(prepare) };
        self.place.fence_git_in(&mut command, self.reach)?;
        Ok(command)
    }
}

/// Our ends of its pipes.
struct Pipes {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// A git and all that it started. It ends when this is dropped, and then what it spoke to.
struct Group {
    leader: Option<(Shell, Pid)>,
    /// Where the leader is known as a child that is awaited.
    commands: Commands,
    service: Option<Box<Self>>,
}

impl Group {
    /// Starts a git as a child that no reaper of orphans takes before its status is known here.
    fn start(place: &Place, command: &mut Command, service: Option<Self>) -> io::Result<(Self, Child)> {
        let commands = place.commands().clone();
        let (pid, child) = commands.bear(|| command.spawn().map(|child| (Pid::from_child(&child), child)))?;
        let leader = Some((commands.adopt(pid)?, pid));
        Ok((Self { leader, commands, service: service.map(Box::new) }, child))
    }

    fn tell(&self, signal: Signal) {
        if let Some((_, pid)) = &self.leader {
            let _ = kill_process_group(*pid, signal);
        }
    }

    async fn ended(mut self) -> Option<ExitStatus> {
        if let Some((leader, pid)) = &self.leader {
            leader.ended().await;
            // Before its number is free: what it left behind holds no lock of ours.
            let _ = kill_process_group(*pid, Signal::KILL);
        }
        let (leader, _) = self.leader.take()?;
        let status = leader.status().ok();
        self.commands.disown(&leader);
        if let Some(service) = self.service.take() {
            // What was sent to it last counts too: it ends by itself, now that nobody speaks to it.
            let _ = tokio::time::timeout(GRACE, Box::pin(service.ended())).await;
        }
        status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.tell(Signal::TERM);
        let Some((leader, pid)) = self.leader.take() else { return };
        let commands = self.commands.clone();
        let end = async move {
            let _ = tokio::time::timeout(GRACE, leader.ended()).await;
            let _ = kill_process_group(pid, Signal::KILL);
            leader.ended().await;
            let _ = leader.status();
            commands.disown(&leader);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(end)),
            Err(_) => {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

/// Writes both, one after the other. A git that does not read all of it says why by itself.
///
/// # Errors
/// The content broke off.
async fn feed(pipe: &mut pipe::Sender, input: &[u8], mut content: Content) -> io::Result<()> {
    if pipe.write_all(input).await.is_err() {
        return Ok(());
    }
    while let Some(piece) = content.next().await {
        if pipe.write_all(&piece?).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads to the end, or so far; whether there would be more.
async fn read_at_most(pipe: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>, most: usize) -> bool {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return false,
            Ok(count) if into.len() + count > most => {
                into.extend_from_slice(&buffer[..most - into.len()]);
                return true;
            }
            Ok(count) => into.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Reads to the end, and keeps the last part.
async fn read_last(pipe: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>) {
    let mut buffer = vec![0; 4 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        into.extend_from_slice(&buffer[..count]);
        if into.len() > 2 * MOST_COMPLAINTS {
            into.drain(..into.len() - MOST_COMPLAINTS);
        }
    }
}
