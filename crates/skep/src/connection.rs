//! The connection options of verbs that are clients of the API: server URL, API key, CA certificate.

use std::{fmt, fs, future::Future, io, path::PathBuf, pin::Pin, sync::OnceLock};

use anyhow::Context;
use clap::{
    Args,
    builder::{Resettable, Str},
};
use skep_client::Client;

use crate::{invocation::Invocation, settings::default_data_dir};

const DEFAULT_URL: &str = "http://127.0.0.1:7700";

/// The server, the key, and the output format.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// URL of the server [default: http://127.0.0.1:7700].
    #[arg(long, env = "SKEP_URL", value_name = "URL")]
    url: Option<String>,
    /// API key [default: the admin key in DATA_DIR/admin.key, if that file can be read].
    #[arg(long, env = "SKEP_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// PEM file with the CA certificate to trust for https: that of the server itself, or of the authority that signed
    /// it [default: the certificates that this machine trusts].
    #[arg(long, env = "SKEP_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Data directory of the server; the admin key is read from it.
    #[arg(long, env = "SKEP_DATA_DIR", value_name = "DIR", default_value_os_t = default_data_dir())]
    pub(crate) data_dir: PathBuf,
    /// Print the answer of the API as JSON, and errors as JSON on standard error.
    #[arg(long, help_heading = Resettable::<Str>::Reset)]
    pub(crate) json: bool,
}

/// The server and the key of the last client that was created.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) url: String,
    pub(crate) key: KeyOrigin,
    pub(crate) text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyOrigin {
    Flag,
    Variable,
    File(PathBuf),
    /// Neither given nor in the file.
    Missing {
        file: PathBuf,
        /// The reason, such as `does not exist`.
        why: &'static str,
    },
}

impl fmt::Display for KeyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--api-key"),
            Self::Variable => f.write_str("SKEP_API_KEY"),
            Self::File(file) | Self::Missing { file, .. } => file.display().fmt(f),
        }
    }
}

static ACCESS: OnceLock<Access> = OnceLock::new();

impl Access {
    /// The access of this process; `None` before a client was created.
    pub(crate) fn current() -> Option<&'static Self> {
        ACCESS.get()
    }
}

impl Connection {
    /// Whether the user named a server or a key.
    pub(crate) fn is_given(&self) -> bool {
        self.given_url().is_some() || self.given_key().is_some()
    }

    pub(crate) fn url(&self) -> &str {
        self.given_url().unwrap_or(DEFAULT_URL)
    }

    fn given_url(&self) -> Option<&str> {
        self.url.as_deref().filter(|url| !url.is_empty())
    }

    /// Creates a client. Without a key too: some operations need none.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let (origin, key) = self.key();
        let _ = ACCESS.set(Access { url: self.url().to_owned(), key: origin, text: key.clone() });
        let read = |path: &PathBuf| {
            fs::read(path).with_context(|| format!("{} cannot be read; check --ca-file", path.display()))
        };
        let roots = self.ca_file.as_ref().map(read).transpose()?;
        Ok(Client::with_roots(self.url(), key.as_deref(), roots.as_deref())?)
    }

    fn given_key(&self) -> Option<&str> {
        self.api_key.as_deref().map(str::trim).filter(|key| !key.is_empty())
    }

    fn key(&self) -> (KeyOrigin, Option<String>) {
        if let Some(key) = self.given_key() {
            let is_flag = Invocation::current().has_flag("api_key");
            return (if is_flag { KeyOrigin::Flag } else { KeyOrigin::Variable }, Some(key.to_owned()));
        }
        let file = self.data_dir.join("admin.key");
        let why = match fs::read_to_string(&file) {
            Ok(text) if !text.trim().is_empty() => {
                return (KeyOrigin::File(file), Some(text.trim().to_owned()));
            }
            Ok(_) => "is empty",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "does not exist",
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => "cannot be read by this user",
            Err(_) => "cannot be read",
        };
        (KeyOrigin::Missing { file, why }, None)
    }
}

/// Runs a verb on a single-threaded runtime.
pub(crate) fn block_on<T>(verb: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the asynchronous runtime could not start")?;
    // Boxed, so that the runtime's loop is compiled once for each type of outcome, and not for each verb.
    let verb: Pin<Box<dyn Future<Output = _>>> = Box::pin(verb);
    let outcome = runtime.block_on(verb);
    // A blocked write to standard output must not delay the exit.
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        connection: Connection,
    }

    #[test]
    fn without_a_url_the_server_is_the_one_of_this_machine() {
        let url = |line: &[&str]| Line::try_parse_from(line).unwrap().connection.url().to_owned();
        assert_eq!(url(&["skep"]), "http://127.0.0.1:7700");
        // An empty SKEP_URL gives the same value.
        assert_eq!(url(&["skep", "--url", ""]), "http://127.0.0.1:7700");
        assert_eq!(url(&["skep", "--url", "https://skep.example"]), "https://skep.example");
    }
}
