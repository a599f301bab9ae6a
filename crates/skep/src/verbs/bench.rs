//! `skep bench`: what a running server does, measured as a client of it.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

mod boot;
mod figures;
mod fleet;
mod idle;
mod machine;
mod plain;
mod report;
mod runs;
mod table;

use crate::{connection::Connection, output, signals::Signals};
use fleet::Fleet;

/// Measure a running server.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Boot VMs, run a first command in each, end them, and say how long that took and what it cost.
    Boot(Boot),
}

const ABOUT_FIGURES: &str = "\
identity_ms and ready_ms are the receipts'. tti_ms, the time to interactive, is the client's: from sending the boot until \
the answer of the first command (`true`, by the shell) was there. private_mb is what no other process maps: of a VM that \
is alone, the template's pages too; anonymous_mb belongs to no file, so that much one VM more takes. CPU, memory and other \
load can be read on the server's machine only, memory as root only. Percentiles are samples (nearest rank).

Exit codes: 0 done; 1 a boot or a command failed, or the server refused; 2 the command line is wrong.";

#[derive(Debug, Args)]
#[command(after_help = ABOUT_FIGURES)]
struct Boot {
    /// VMs of each mode.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// VMs at the same time, where the mode has more than one [default: as many as the server keeps ready, else 4].
    #[arg(short = 'c', long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// How they are asked for.
    #[arg(long, value_enum, default_value_t = Mode::All)]
    mode: Mode,
    /// Which boots are measured [default: pool, where the server keeps VMs ready, else cold].
    #[arg(long, value_enum)]
    source: Option<Source>,
    /// The template.
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// The time from one request to the next, staggered.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    every: String,
    /// Commands one after the other in one VM, which show what a later command takes; 0: none.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    commands: u32,
    /// How long running and parked VMs are watched for what they cost at rest; 0: not at all.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    idle: String,
    /// Boot this template's kernel and root file system by plain QEMU too, without a snapshot, for comparison: its folder,
    /// on this machine.
    #[arg(long, value_name = "DIR")]
    plain: Option<PathBuf>,
    /// How often that is done.
    #[arg(long, value_name = "NUMBER", default_value_t = 3, requires = "plain")]
    plain_boots: u32,
    #[command(flatten)]
    connection: Connection,
}

/// How VMs are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// One after the other: each is ended before the next is asked for.
    Sequential,
    /// One request for each, a fixed time apart, whether those before have answered or not.
    Staggered,
    /// All by one request.
    Burst,
    /// Each of the others in turn.
    All,
}

impl Mode {
    const EACH: [Self; 3] = [Self::Sequential, Self::Staggered, Self::Burst];

    fn each(self) -> Vec<Self> {
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

/// Which boots are measured. Whatever is asked for, figures are told apart by what the receipts say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    /// Out of the pool, which is full before each.
    Pool,
    /// Restored for the request; the server must keep none ready (`--pool-size 0`).
    Cold,
    /// Whatever comes, without waiting for the pool.
    Any,
}

pub(crate) async fn run(verb: Bench) -> anyhow::Result<ExitCode> {
    let Verb::Boot(verb) = verb.verb;
    let fleet = Fleet::new(verb.connection.client()?, verb.template.clone());
    let mut signals = Signals::listen()?;
    let outcome = tokio::select! {
        outcome = boot::measure(&verb, &fleet) => outcome,
        code = signals.next() => {
            fleet.end_all().await?;
            return Ok(code);
        }
    };
    if outcome.is_err() {
        // The reason that it failed for counts, not whether the rest could be ended.
        let _ = fleet.end_all().await;
    }
    let report = outcome?;
    for failure in report.failures() {
        output::say(&format!("skep: {failure}"));
    }
    if verb.connection.json {
        output::value(&report)?;
    } else {
        table::show(&report)?;
    }
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
