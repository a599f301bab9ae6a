//! A command with streamed input and output.

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

use super::report_exit;
use crate::signals::{Signals, exit_code};

/// Size of one read of standard input, in bytes.
const READ_BYTES: usize = 64 << 10;
/// Time between SIGTERM to the command and its forced end.
const TERM_GRACE: Duration = Duration::from_secs(10);

/// Source of the command's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Empty,
    /// The standard input of this process; may be a terminal.
    Stdin,
}

/// Runs a command until it ends. SIGINT and SIGTERM are forwarded to it. It is killed by a second SIGINT, ten seconds
/// after SIGTERM, and by SIGHUP.
pub(super) async fn run(client: &Client, request: &ExecRequest, input: Input) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let (sender, output) = tokio::select! {
        started = client.exec_duplex(request) => started?,
        kind = signals.recv() => return Ok(exit_code(kind)),
    };
    let exit = copy(sender.clone(), output, input);
    tokio::select! {
        exit = exit => Ok(report_exit(&exit?)),
        kind = forward_signals(sender, &mut signals) => Ok(exit_code(kind)),
    }
}

/// Copies input and output until the command ends.
async fn copy(sender: DuplexInput, output: DuplexOutput, input: Input) -> anyhow::Result<ExecExit> {
    let writing = async {
        match input {
            Input::Empty => sender.end().await?,
            Input::Stdin => copy_input(sender).await?,
        }
        // Only the command's end ends the copying.
        std::future::pending().await
    };
    tokio::select! {
        exit = copy_output(output) => exit,
        error = writing => error,
    }
}

async fn copy_output(mut output: DuplexOutput) -> anyhow::Result<ExecExit> {
    // Asynchronous streams: a blocked reader must not delay signals.
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        match output.next().await? {
            DuplexEvent::Started(_) => {}
            DuplexEvent::Stdout(bytes) => {
                // A closed reader ends the command, as it would locally.
                let written = async {
                    out.write_all(&bytes).await?;
                    out.flush().await
                };
                written.await.context("the output was closed by its reader")?;
            }
            DuplexEvent::Stderr(bytes) => {
                let _ = err.write_all(&bytes).await;
                let _ = err.flush().await;
            }
            DuplexEvent::Exit(exit) => return Ok(exit),
        }
    }
}

/// Copies standard input until its end or until the command accepts no more.
async fn copy_input(mut sender: DuplexInput) -> anyhow::Result<()> {
    let mut pieces = read_stdin();
    while let Some(piece) = pieces.recv().await {
        let piece = piece.context("the input cannot be read; give -n if the command needs none")?;
        match sender.write(piece).await {
            Ok(true) => {}
            // On a lost connection, the output side reports the reason.
            Ok(false) | Err(_) => return Ok(()),
        }
    }
    let _ = sender.end().await;
    Ok(())
}

/// Reads standard input in a separate thread: a read of a terminal cannot be cancelled and must not delay the exit.
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

/// Forwards the first SIGINT and any SIGTERM to the command. Returns the signal that must end it.
async fn forward_signals(sender: DuplexInput, signals: &mut Signals) -> SignalKind {
    let mut kind = signals.recv().await;
    if kind == SignalKind::interrupt() {
        let sent = async {
            // On a lost connection, the output side reports the reason.
            let _ = sender.signal(SignalName::Int).await;
            std::future::pending().await
        };
        // If the connection is stuck, the signal cannot be sent; the next signal must still end the command.
        kind = tokio::select! {
            kind = sent => kind,
            kind = signals.recv() => kind,
        };
    }
    if kind == SignalKind::terminate() {
        let _ = timeout(TERM_GRACE, sender.signal(SignalName::Term)).await;
        sleep(TERM_GRACE).await;
    }
    kind
}
