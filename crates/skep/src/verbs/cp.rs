//! `skep cp`: copies between this machine, the server's workspace and VMs.

use std::{convert::Infallible, future, process::ExitCode, time::Duration};

use clap::Args;
use indicatif::ProgressBar;
use tokio::time::sleep;

use crate::{
    connection::Connection,
    output,
    signals::Signals,
    transfer::{CopySummary, PathArgument, copy},
};

const AFTER_HELP: &str = "A path is on this machine, server:PATH in the server's workspace, or VM:PATH in a VM, given by process id,
id, name, host name or address; ./a:b is a path on this machine with a colon. Relative remote paths start
at the workspace, in a VM at /root.

  skep cp src 4242:            the folder src to /root/src in that VM
  skep cp web:out/ report      /root/out of the VM `web`, as the folder report
  skep cp server:a.csv 4242:   a file of the workspace into the VM

Links within a folder are copied as links and not followed. A copy that takes longer than a second shows its progress on a
terminal.

Exit codes: 0 done; 1 refused, failed, no server, or a device, socket or FIFO was not copied; 128+n if
signal n ended it, leaving the current file unchanged; 2 the command line is wrong.";

/// A copy shows its progress after this time.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// Copy files and folders between this machine, the server's workspace and VMs.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Cp {
    /// Files and folders to copy. Folders are copied with all their content.
    #[arg(required = true, num_args = 1.., value_name = "SOURCE")]
    sources: Vec<PathArgument>,
    /// New path, or existing folder to copy into.
    target: PathArgument,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Cp) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let mut signals = Signals::listen()?;
    let bar = output::bytes_bar();
    let copied = tokio::select! {
        copied = copy(&client, &verb.sources, &verb.target, &bar) => copied?,
        code = signals.next_exit_code() => return Ok(code),
        never = show_progress_later(&bar) => match never {},
    };
    bar.finish_and_clear();
    report(&verb, &copied)?;
    Ok(if copied.left_out.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows the progress bar after a delay.
async fn show_progress_later(bar: &ProgressBar) -> Infallible {
    sleep(PROGRESS_DELAY).await;
    output::show_bar(bar);
    future::pending().await
}

fn report(verb: &Cp, copied: &CopySummary) -> anyhow::Result<()> {
    if verb.connection.json {
        return output::value(copied);
    }
    for path in &copied.left_out {
        output::eprint_line(&format!(
            "skep: {} is not a file, folder or link, and was not copied",
            path.display()
        ));
    }
    Ok(())
}
