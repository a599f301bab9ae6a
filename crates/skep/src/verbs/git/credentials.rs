//! `skep git credentials`.

use std::{
    io::{self, IsTerminal, Read},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, Subcommand};
use console::Term;
use skep_api::git::{ListGitCredentials, RemoveGitCredential, SetGitCredential};

use crate::{connection::Connection, output};

/// Read limit for tokens and keys, in bytes; more than the server accepts.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// List, set or remove the account's tokens and keys for git remotes.
#[derive(Debug, Args)]
pub(super) struct Credentials {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the hosts that have a credential. Tokens are never shown.
    List(List),
    /// Set the credential of a host. It is read from standard input; on a terminal, a token is prompted for.
    Set(Set),
    /// Remove the credential of a host.
    Remove(Remove),
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
struct Set {
    /// Host, with :PORT if the URLs have one; ssh://HOST for a private key.
    host: String,
    /// User name that git sends with the token [default: x-access-token].
    #[arg(long)]
    username: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
struct Remove {
    /// Host, as given when the credential was set.
    host: String,
    #[command(flatten)]
    connection: Connection,
}

impl Credentials {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::List(verb) => list(verb).await,
            Verb::Set(verb) => set(verb).await,
            Verb::Remove(verb) => remove(verb).await,
        }
    }
}

async fn list(verb: List) -> anyhow::Result<ExitCode> {
    // One page holds as many as an account can have.
    let all = ListGitCredentials { limit: Some(1_000), cursor: None };
    let kept = verb.connection.client()?.run(&all).await?;
    if verb.connection.json {
        output::json(&kept.text)?;
    } else {
        let rows = kept.value.credentials.into_iter();
        let rows = rows.map(|one| [one.host, one.username, output::time(Some(one.created_at))]);
        output::table(["HOST", "USERNAME", "SET"], rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(verb: Set) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let token = token(&verb.host)?;
    let request = SetGitCredential { host: verb.host, token, username: verb.username };
    let kept = client.run(&request).await?;
    if verb.connection.json {
        output::json(&kept.text)?;
    } else {
        output::line(&format!("git now uses it for {}", output::visible(&kept.value.host)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(verb: Remove) -> anyhow::Result<ExitCode> {
    let request = RemoveGitCredential { host: verb.host };
    let removed = verb.connection.client()?.run(&request).await?;
    if verb.connection.json {
        output::json(&removed.text)?;
    } else {
        output::line(&format!("{} removed", output::visible(&removed.value.host)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the token. It is not an argument, because other users of this machine can list the arguments of processes.
fn token(host: &str) -> anyhow::Result<String> {
    let is_key = host.starts_with("ssh://");
    let text = if io::stdin().is_terminal() {
        anyhow::ensure!(!is_key, "the private key is missing; give its file on standard input: < FILE");
        let term = Term::stderr();
        term.write_str("Token: ")?;
        term.read_secure_line().context("the token could not be read from the terminal")?
    } else {
        io::read_to_string(io::stdin().lock().take(MAX_TOKEN_BYTES))
            .context("the token on standard input is not UTF-8 text")?
    };
    let text = if is_key { text } else { text.trim_end_matches(['\r', '\n']).to_owned() };
    anyhow::ensure!(!text.trim().is_empty(), "the token is empty; write it to standard input");
    Ok(text)
}
