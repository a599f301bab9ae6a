//! The command line.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use jiff::SignedDuration;
use serde::Serialize;
use skep_client::Client;

const ABOUT_FIGURES: &str = "\
identity_ms and ready_ms come from the server. tti_ms, the time to interactive, is measured by the client: from the \
request to the result of a first command (`true`, by the shell). private_mb is memory that no other process maps; for a \
VM that is alone, it includes the template's pages. anonymous_mb belongs to no file: it is the memory that another VM \
needs. CPU, memory and other load are available only on the server's machine, memory only to root. Percentiles are \
samples (nearest rank).

Exit codes: 0 done; 1 a boot or a command failed, or the server refused; 2 the command line is wrong.";

/// Boot VMs on a running server, run a first command in each, end them, and report times and cost.
#[derive(Debug, Parser)]
#[command(name = "skep-bench", after_help = ABOUT_FIGURES, args_override_self = true)]
pub(crate) struct Options {
    /// Number of VMs for each mode.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) number: u32,
    /// Maximum number of VMs at the same time, in modes with more than one [default: the size of the pool, or 4 without
    /// a pool].
    #[arg(short = 'c', long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,
    /// How VMs are requested.
    #[arg(long, value_enum, default_value_t = Mode::All)]
    pub(crate) mode: Mode,
    /// Which boots to measure [default: pool if the server has a pool, else cold].
    #[arg(long, value_enum)]
    pub(crate) source: Option<Source>,
    /// Template to boot [default: the base template].
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Time between two requests in staggered mode.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// Number of further commands to measure in one VM, one after the other; 0 for none.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) commands: u32,
    /// Time to measure the CPU cost of idle running VMs and of pool VMs; 0s to skip it.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub(crate) idle: Duration,
    /// URL of the server.
    #[arg(long, env = "SKEP_URL", value_name = "URL", default_value = "http://127.0.0.1:7700")]
    url: String,
    /// API key.
    #[arg(long, env = "SKEP_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: String,
    /// PEM file with the CA certificate to trust for https.
    #[arg(long, env = "SKEP_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How VMs are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// One after the other: each VM ends before the next one is requested.
    Sequential,
    /// One request per VM at a fixed interval, whether or not earlier ones have been answered.
    Staggered,
    /// All VMs in one request.
    Burst,
    /// All modes, one after the other.
    All,
}

impl Mode {
    const EACH: [Self; 3] = [Self::Sequential, Self::Staggered, Self::Burst];

    pub(crate) fn expand(self) -> Vec<Self> {
        if self == Self::All { Self::EACH.to_vec() } else { vec![self] }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Staggered => "staggered",
            Self::Burst => "burst",
            Self::All => "all",
        }
    }
}

/// Which boots are measured. Independently of it, results are grouped by the source that the server reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// From the pool, which is filled before each boot.
    Pool,
    /// Restored on request; the server must have no pool (`--pool-size 0`).
    Cold,
    /// Both, without waiting for the pool.
    Any,
}

impl Options {
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let read = |path: &PathBuf| {
            fs::read(path).with_context(|| format!("{} cannot be read; check --ca-file", path.display()))
        };
        let roots = self.ca_file.as_ref().map(read).transpose()?;
        Ok(Client::with_roots(&self.url, Some(&self.api_key), roots.as_deref())?)
    }
}

fn parse_time(text: &str) -> anyhow::Result<Duration> {
    Ok(text.parse::<SignedDuration>()?.try_into()?)
}
