//! `skep helper`: a process that starts programs for callers, started by the keeper.

use std::{collections::BTreeMap, fs, os::unix::net::UnixStream, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::Args;
use rustix::{fs::FileType, process::geteuid};
use skep_api::HelperKind;
use skep_helper::HelperOrder;
use skep_workspace::git::{GitFilter, GitGrants};

use crate::{account_roots, inherited};

/// The descriptor of the socket to the server.
const SERVER_FD: i32 = 3;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Environment variables that programs inherit.
const PASSED_VARIABLES: [&str; 3] = ["LANG", "TZ", "TMPDIR"];

#[derive(Debug, Args)]
pub(crate) struct Helper {
    /// Start git and no other programs.
    #[arg(long)]
    git: bool,
    /// Folder with roots of accounts; may be given several times.
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// Data directory; roots inside it are refused.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Database with the other roots of accounts.
    #[arg(long, value_name = "FILE")]
    store: PathBuf,
    /// Folder that is private to the programs; may be given several times.
    #[arg(long, value_name = "DIR")]
    scratch: Vec<PathBuf>,
    /// Directory for control groups of commands.
    #[arg(long, value_name = "DIR")]
    groups: Option<PathBuf>,
    /// Filter that git may run, as JSON; may be given several times.
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    git_filter: Vec<GitFilter>,
}

pub(crate) fn run(verb: Helper) -> anyhow::Result<ExitCode> {
    let stream = UnixStream::from(inherited::take(SERVER_FD, FileType::Socket)?);
    let Helper { git: only_git, root: mut roots, data_dir, store, scratch, groups, git_filter } = verb;
    let kind = if only_git { HelperKind::Git } else { HelperKind::Commands };
    roots.extend(account_roots::existing(&data_dir, &store));
    let git = GitGrants { filters: git_filter, ca_file: authorities() };
    let order = HelperOrder { kind, roots, scratch, env: environment(), groups, git };
    skep_helper::confine(&order).map_err(anyhow::Error::from).context("the helper cannot be confined")?;
    // The runtime starts after the confinement, which does not apply to existing threads. A single thread is the parent
    // of all children.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.context("the asynchronous runtime could not start")?.block_on(async {
        stream.set_nonblocking(true)?;
        skep_helper::serve(tokio::net::UnixStream::from_std(stream)?, order).await
    });
    skep_helper::kill_programs();
    served?;
    Ok(ExitCode::SUCCESS)
}

fn filter(text: &str) -> Result<GitFilter, serde_json::Error> {
    serde_json::from_str(text)
}

/// The CA certificates that are trusted instead of the system's.
fn authorities() -> Option<PathBuf> {
    std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).filter(|file| file.is_absolute())
}

/// The environment of all programs.
fn environment() -> BTreeMap<String, String> {
    let user = user_name();
    let fixed =
        [("PATH", PATH), ("USER", &user), ("LOGNAME", &user), ("SHELL", "/bin/sh"), ("LANG", "C.UTF-8")];
    let fixed = fixed.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let passed =
        PASSED_VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    fixed.into_iter().chain(passed).collect()
}

/// The name of the process's user, or its uid if it has none.
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
