//! `skep helper`: a process that starts programs for callers, started by keeper or server.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::{
    fs::{FileType, fstat},
    process::geteuid,
};
use skep_api::HelperKind;
use skep_helper::HelperOrder;
use skep_workspace::git::{GitFilter, GitGrants};

use crate::account_roots;

/// The descriptor of the stream to the server.
const SERVER: i32 = 3;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What programs see of our environment.
const PASSED_ON: [&str; 3] = ["LANG", "TZ", "TMPDIR"];

/// The process that starts programs for callers.
#[derive(Debug, Args)]
pub(crate) struct Helper {
    /// It starts git, and nothing else.
    #[arg(long)]
    git: bool,
    /// A folder of which accounts' roots are parts.
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// The data directory, of which no root may be a part.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The store, which says where other roots of accounts are.
    #[arg(long, value_name = "FILE")]
    store: PathBuf,
    /// A folder that is the programs' own.
    #[arg(long, value_name = "DIR")]
    scratch: Vec<PathBuf>,
    /// Where control groups of commands may be made.
    #[arg(long, value_name = "DIR")]
    groups: Option<PathBuf>,
    /// A filter that git may run, as JSON.
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    git_filter: Vec<GitFilter>,
}

pub(crate) fn run(verb: Helper) -> anyhow::Result<ExitCode> {
    let stream = inherited()?;
    let Helper { git: only_git, root: mut roots, data_dir, store, scratch, groups, git_filter } = verb;
    let kind = if only_git { HelperKind::Git } else { HelperKind::Commands };
    roots.extend(account_roots::present(&data_dir, &store));
    let git = GitGrants { filters: git_filter, authorities: authorities() };
    let order = HelperOrder { kind, roots, scratch, env: environment(), groups, git };
    skep_helper::confine(&order).map_err(anyhow::Error::from).context("the helper cannot be confined")?;
    // Only now: threads that exist before are not confined. One is enough, and all children are its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("the asynchronous runtime could not start")?.block_on(async {
        stream.set_nonblocking(true)?;
        skep_helper::serve(tokio::net::UnixStream::from_std(stream)?, order).await
    })?;
    Ok(ExitCode::SUCCESS)
}

fn filter(text: &str) -> Result<GitFilter, serde_json::Error> {
    serde_json::from_str(text)
}

/// The certificates that are trusted instead of the system's.
fn authorities() -> Option<PathBuf> {
    std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).filter(|file| file.is_absolute())
}

/// The server's stream.
fn inherited() -> anyhow::Result<UnixStream> {
    // SAFETY: nothing of this process has opened or closed a descriptor yet, so whatever has this number was inherited
    // and stays open while it is looked at.
    let looked_at = unsafe { BorrowedFd::borrow_raw(SERVER) };
    let is_socket =
        fstat(looked_at).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    if !is_socket {
        bail!("this verb is for `skep serve`, which starts it with a socket");
    }
    // SAFETY: it is open, as was just seen, and nobody else in this process knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(SERVER) };
    // Programs must not inherit it.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket.into())
}

/// What every program sees.
fn environment() -> BTreeMap<String, String> {
    let user = user_name();
    let fixed =
        [("PATH", PATH), ("USER", &user), ("LOGNAME", &user), ("SHELL", "/bin/sh"), ("LANG", "C.UTF-8")];
    let fixed = fixed.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let passed = PASSED_ON.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    fixed.into_iter().chain(passed).collect()
}

/// The name of the user that we are; the number where it has none.
fn user_name() -> String {
    let uid = geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    named.unwrap_or(uid)
}
