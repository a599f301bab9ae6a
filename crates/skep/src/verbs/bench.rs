//! `skep bench`: measures a running server as a client.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

mod boot;
mod fleet;
mod idle;
mod machine;
mod percentiles;
mod report;
mod runs;
mod table;

use crate::{connection::Connection, output, signals::Signals};
use fleet::Fleet;

/// Measure boot times and cost of VMs on a running server.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Boot VMs, run a first command in each, end them, and report times and cost.
    Boot(Boot),
}

const ABOUT_FIGURES: &str = "\
identity_ms and ready_ms come from the server. tti_ms, the time to interactive, is measured by the client: from the \
request to the result of a first command (`true`, by the shell). private_mb is memory that no other process maps; for a \
VM that is alone, it includes the template's pages. anonymous_mb belongs to no file: it is the memory that another VM \
needs. CPU, memory and other load are available only on the server's machine, memory only to root. Percentiles are \
samples (nearest rank).

Exit codes: 0 done; 1 a boot or a command failed, or the server refused; 2 the command line is wrong.";

#[derive(Debug, Args)]
#[command(after_help = ABOUT_FIGURES)]
struct Boot {
    /// Number of VMs for each mode.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// Maximum number of VMs at the same time, in modes with more than one [default: the size of the pool, or 4 without
    /// a pool].
    #[arg(short = 'c', long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// How VMs are requested.
    #[arg(long, value_enum, default_value_t = Mode::All)]
    mode: Mode,
    /// Which boots to measure [default: pool if the server has a pool, else cold].
    #[arg(long, value_enum)]
    source: Option<Source>,
    /// Template to boot [default: the base template].
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Time between two requests in staggered mode.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    every: String,
    /// Number of further commands to measure in one VM, one after the other; 0 for none.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    commands: u32,
    /// Time to measure the CPU cost of idle running VMs and of pool VMs; 0 to skip it.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    idle: String,
    #[command(flatten)]
    connection: Connection,
}

/// How VMs are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
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

    fn expand(self) -> Vec<Self> {
        if self == Self::All { Self::EACH.to_vec() } else { vec![self] }
    }

    fn name(self) -> &'static str {
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
enum Source {
    /// From the pool, which is filled before each boot.
    Pool,
    /// Restored on request; the server must have no pool (`--pool-size 0`).
    Cold,
    /// Both, without waiting for the pool.
    Any,
}

pub(crate) async fn run(verb: Bench) -> anyhow::Result<ExitCode> {
    let Verb::Boot(verb) = verb.verb;
    let fleet = Fleet::new(verb.connection.client()?, verb.template.clone());
    let mut signals = Signals::listen()?;
    let outcome = tokio::select! {
        outcome = boot::measure(&verb, &fleet) => outcome,
        code = signals.next_exit_code() => {
            fleet.end_all().await?;
            return Ok(code);
        }
    };
    if outcome.is_err() {
        // The measurement's error is reported, not that of the cleanup.
        let _ = fleet.end_all().await;
    }
    let report = outcome?;
    for failure in report.failures() {
        output::eprint_line(&format!("skep: {failure}"));
    }
    if verb.connection.json {
        output::value(&report)?;
    } else {
        table::show(&report)?;
    }
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
