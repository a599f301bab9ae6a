//! Measures a running server as a client.

mod fleet;
mod idle;
mod machine;
mod measure;
mod options;
mod percentiles;
mod report;
mod runs;
mod table;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use fleet::Fleet;
use options::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    run(&Options::parse()).await.unwrap_or_else(|error| {
        complain(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let fleet = Fleet::new(options.client()?, options.template.clone());
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    let mut hangups = signal(SignalKind::hangup())?;
    let signalled = async {
        tokio::select! {
            _ = interrupts.recv() => SignalKind::interrupt(),
            _ = terminations.recv() => SignalKind::terminate(),
            _ = hangups.recv() => SignalKind::hangup(),
        }
    };
    let outcome = tokio::select! {
        outcome = measure::measure(options, &fleet) => outcome,
        kind = signalled => {
            fleet.end_all().await?;
            return Ok(exit_code(kind));
        }
    };
    if outcome.is_err() {
        // The measurement's error is reported, not that of the cleanup.
        let _ = fleet.end_all().await;
    }
    let report = outcome?;
    for failure in report.failures() {
        complain(failure);
    }
    if options.json {
        writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    } else {
        io::stdout().write_all(table::format(&report).as_bytes())?;
    }
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints an error in one line. It may contain text from the server, so control characters are replaced.
fn complain(error: &str) {
    eprintln!("skep-bench: {}", error.replace(char::is_control, " "));
}

/// The exit code that a shell reports for a process that this signal ended.
fn exit_code(kind: SignalKind) -> ExitCode {
    ExitCode::from(128 + u8::try_from(kind.as_raw_value()).unwrap_or(0))
}
