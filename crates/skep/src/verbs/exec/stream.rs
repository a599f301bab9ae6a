//! A command with bytes both ways: this verb's input is the command's, and its output this verb's.

use std::{
    io::{self, ErrorKind, Read},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use skep_api::{
    exec::{ExecExit, ExecRequest},
    exec_stream::SignalName,
};
use skep_client::{Client, DuplexEvent, DuplexInput, DuplexOutput};
use tokio::{
    io::AsyncWriteExt,
    signal::unix::SignalKind,
    sync::mpsc,
    time::{sleep, timeout},
};

use super::ended;
use crate::signals::{Signals, exit_code};

/// The most that is read of the input at once, in bytes.
const READ_BYTES: usize = 64 << 10;
/// How long a command may take to end after SIGTERM, before it is ended.
const TERM_GRACE: Duration = Duration::from_secs(10);

/// Where the command's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// It has none.
    Nothing,
    /// The standard input of this process, a terminal's too.
    Stdin,
}

/// Runs a command to its end. SIGINT and SIGTERM are passed on to it; a second SIGINT, ten seconds after SIGTERM, and SIGHUP
/// end it, also where it ignores them.
pub(super) async fn run(client: &Client, request: &ExecRequest, input: Input) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let (sender, output) = tokio::select! {
        started = client.exec_duplex(request) => started?,
        kind = signals.recv() => return Ok(exit_code(kind)),
    };
    let exit = copy(sender.clone(), output, input);
    tokio::select! {
        exit = exit => Ok(ended(&exit?)),
        kind = pass_on(sender, &mut signals) => Ok(exit_code(kind)),
    }
}

/// Copies input and output until the command ends.
async fn copy(sender: DuplexInput, output: DuplexOutput, input: Input) -> anyhow::Result<ExecExit> {
    let writing = async {
        match input {
            Input::Nothing => sender.end().await?,
            Input::Stdin => copy_input(sender).await?,
        }
        // The command's end is what counts.
        std::future::pending().await
    };
    tokio::select! {
        exit = copy_output(output) => exit,
        error = writing => error,
    }
}

async fn copy_output(mut output: DuplexOutput) -> anyhow::Result<ExecExit> {
    // Not the blocking ones: a reader that takes nothing would keep signals waiting too.
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        match output.next().await? {
            DuplexEvent::Started(_) => {}
            DuplexEvent::Stdout(bytes) => {
                // A reader that went away ends the command, as it would on this machine.
                let written = async {
                    out.write_all(&bytes).await?;
                    out.flush().await
                };
                written.await.context("the output has no reader")?;
            }
            DuplexEvent::Stderr(bytes) => {
                let _ = err.write_all(&bytes).await;
                let _ = err.flush().await;
            }
            DuplexEvent::Exit(exit) => return Ok(exit),
        }
    }
}

/// Copies the standard input to its end, or until the command takes no more of it.
async fn copy_input(mut sender: DuplexInput) -> anyhow::Result<()> {
    let mut pieces = read_stdin();
    while let Some(piece) = pieces.recv().await {
        let piece = piece.context("the input cannot be read; give -n where the command needs none")?;
        match sender.write(piece).await {
            Ok(true) => {}
            // The connection is lost where this fails, and the output has the reason.
            Ok(false) | Err(_) => return Ok(()),
        }
    }
    let _ = sender.end().await;
    Ok(())
}

/// The standard input in pieces, read by a thread of its own: a read of a terminal cannot be given up, and must not keep this
/// process from ending.
fn read_stdin() -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, pieces) = mpsc::channel(1);
    thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut buffer = BytesMut::zeroed(READ_BYTES);
            let piece = match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => Ok(buffer.split_to(length).freeze()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    pieces
}

/// Passes signals on until one of them shall end the command; that one is returned.
async fn pass_on(sender: DuplexInput, signals: &mut Signals) -> SignalKind {
    let mut interrupted = false;
    loop {
        let kind = signals.recv().await;
        // Where the connection is lost, the output has the reason.
        if kind == SignalKind::interrupt() && !interrupted {
            interrupted = true;
            let _ = sender.signal(SignalName::Int).await;
        } else if kind == SignalKind::terminate() {
            let _ = timeout(TERM_GRACE, sender.signal(SignalName::Term)).await;
            sleep(TERM_GRACE).await;
            return kind;
        } else {
            return kind;
        }
    }
}
