//! The tasks of one command: they record its output, write its standard input and wait for its end.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use skep_api::exec::ExecExit;
use tokio::{net::unix::pipe, sync::mpsc};

use super::{
    input::StdinSource,
    running::{Running, Stream},
    shell::Shell,
    signals::signal_name,
    spawn::Spawned,
};

/// How long pipes are read after the shell has ended, if children keep them open. Less than the 100 ms that the API
/// promises.
const PIPES_GRACE: Duration = Duration::from_millis(80);

/// The time limit for reading the data that is in the pipes by then.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The largest read from a pipe, in bytes.
const MAX_READ: usize = 32 * 1024;

/// The inputs of a running command.
#[derive(Debug)]
pub(super) struct Controls {
    /// The data for its standard input, if it has any.
    pub(super) source: Option<StdinSource>,
    /// Signals for its process group.
    pub(super) signals: mpsc::Receiver<Signal>,
    pub(super) limit: Duration,
}

/// Runs the command until it ends or its time limit is over.
pub(super) async fn supervise(running: Arc<Running>, spawned: Spawned, controls: Controls) {
    let Controls { source, signals, limit } = controls;
    let began = Instant::now();
    let Spawned { shell, stdin: stdin_pipe, stdout, stderr } = spawned;
    let feeding = stdin_pipe.zip(source).map(|(pipe, source)| tokio::spawn(source.write_to(pipe)));
    let (stdout, stderr) = (Arc::new(stdout), Arc::new(stderr));
    let mut recording_stdout =
        tokio::spawn(record(Arc::clone(&running), Stream::Stdout, Arc::clone(&stdout)));
    let mut recording_stderr =
        tokio::spawn(record(Arc::clone(&running), Stream::Stderr, Arc::clone(&stderr)));

    let timed_out = tokio::select! {
        biased;
        () = forward_signals_until_ended(&shell, signals) => false,
        () = tokio::time::sleep(limit) => true,
    };
    if timed_out {
        running.kill();
        // If the shell left its control group, it is still our child and must be reaped.
        shell.kill();
        shell.wait_until_ended().await;
    }
    let status = shell.reap();
    let duration = began.elapsed();
    running.shell_ended();
    // Surviving children then read the end of their input instead of blocking on it.
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    let both = async { tokio::join!(&mut recording_stdout, &mut recording_stderr) };
    if tokio::time::timeout(PIPES_GRACE, both).await.is_err() {
        // On a loaded machine, the grace may end before all output of the shell was read.
        let rest = async {
            drain(&running, Stream::Stdout, &stdout).await;
            drain(&running, Stream::Stderr, &stderr).await;
        };
        let _ = tokio::time::timeout(DRAIN_LIMIT, rest).await;
    }
    running.finish(exec_exit(status.ok(), duration, timed_out));
}

/// Waits until the shell has ended. Meanwhile sends incoming signals to its process group.
async fn forward_signals_until_ended(shell: &Shell, mut signals: mpsc::Receiver<Signal>) {
    loop {
        tokio::select! {
            biased;
            () = shell.wait_until_ended() => return,
            // The sender lives as long as the command is known.
            Some(signal) = signals.recv() => shell.signal_group(signal),
        }
    }
}

fn exec_exit(status: Option<ExitStatus>, duration: Duration, timed_out: bool) -> ExecExit {
    let code = status.and_then(|status| status.code());
    ExecExit {
        exit_code: code.filter(|_| !timed_out),
        signal: status.and_then(|status| status.signal()).map(signal_name),
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        timed_out,
        truncated: false,
    }
}

/// Waits until the bytes that are in the pipe now are recorded. Later ones are not waited for.
async fn drain(running: &Running, stream: Stream, pipe: &pipe::Receiver) {
    let mut added = running.listen_for_output();
    let recorded = running.recorded(stream);
    let target = recorded + rustix::io::ioctl_fionread(pipe).unwrap_or(0);
    while running.recorded(stream) < target && added.changed().await.is_ok() {}
}

/// Reads one pipe to its end. After the command has finished, output of surviving children is read and discarded:
/// closing the pipe would kill them.
async fn record(running: Arc<Running>, stream: Stream, pipe: Arc<pipe::Receiver>) {
    let mut reader_advanced = running.listen_for_readers();
    // Most commands print little, and allocating new memory is expensive.
    let mut buffer = vec![0; 1024];
    loop {
        while !running.has_room(stream) {
            if reader_advanced.changed().await.is_err() {
                return;
            }
        }
        if pipe.readable().await.is_err() {
            return;
        }
        match pipe.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
            Ok(count) => {
                running.append(stream, &buffer[..count]);
                if count == buffer.len() && count < MAX_READ {
                    buffer.resize(2 * count, 0);
                }
            }
        }
    }
}
