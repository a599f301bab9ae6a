//! How verbs that are clients of the API find their server and their key.

use std::{fs, future::Future, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::Args;
use skep_client::Client;

use crate::settings::default_data_dir;

/// The exit codes of all verbs but `exec`.
pub(crate) const EXIT_CODES: &str =
    "Exit codes: 0 done; 1 refused, failed, or no server; 2 the command line is wrong.";

/// Which server, with which key, and how its answer is shown.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// The server.
    #[arg(long, env = "SKEP_URL", value_name = "URL", default_value = "http://127.0.0.1:7700")]
    url: String,
    /// The key [default: the admin key in DATA_DIR, where it may be read].
    #[arg(long, env = "SKEP_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// The certificate to trust over https, in PEM: the server's own, or that of whoever signed it [default: those that
    /// this machine trusts].
    #[arg(long, env = "SKEP_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Where the server's data lies, for its admin key.
    #[arg(long, env = "SKEP_DATA_DIR", value_name = "DIR", default_value_os_t = default_data_dir())]
    data_dir: PathBuf,
    /// Print the API's answer as it is.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Connection {
    /// A client. Without any key it is made all the same: the server says what is missing.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let given = self.api_key.clone().filter(|key| !key.is_empty());
        let read = || fs::read_to_string(self.data_dir.join("admin.key")).ok();
        let key = given.or_else(read).map(|key| key.trim().to_owned());
        let read = |path: &PathBuf| {
            fs::read(path).with_context(|| format!("{} cannot be read; check --ca-file", path.display()))
        };
        let roots = self.ca_file.as_ref().map(read).transpose()?;
        Ok(Client::trusting(&self.url, key.as_deref(), roots.as_deref())?)
    }
}

/// Runs a verb that only waits for its server.
pub(crate) fn block_on(verb: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the asynchronous runtime could not start")?;
    let outcome = runtime.block_on(verb);
    // A write to a reader that takes nothing keeps nobody from leaving.
    runtime.shutdown_background();
    outcome
}
