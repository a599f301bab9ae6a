//! The tasks of one command: they fill its tapes, feed its stdin and await its end.

use std::{
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use skep_api::exec::ExecExit;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
};

use super::{
    running::{Running, Stream},
    signals::signal_name,
    spawn::Spawned,
};

/// How long the pipes are read after the shell ended, where children hold them open. Below the 100 ms that a caller
/// is promised.
const PIPES_GRACE: Duration = Duration::from_millis(80);

/// How much of a pipe is read at once from a command that says much, in bytes.
const LONGEST_READ: usize = 32 * 1024;

/// Sees the command to its end, at the latest when `limit` is over.
pub(super) async fn supervise(
    running: Arc<Running>,
    spawned: Spawned,
    stdin: Option<String>,
    limit: Duration,
) {
    let began = Instant::now();
    let Spawned { shell, stdin: stdin_pipe, stdout, stderr } = spawned;
    let feeding = stdin_pipe.zip(stdin).map(|(pipe, text)| tokio::spawn(feed(pipe, text)));
    let mut stdout = tokio::spawn(record(Arc::clone(&running), Stream::Stdout, stdout));
    let mut stderr = tokio::spawn(record(Arc::clone(&running), Stream::Stderr, stderr));

    let timed_out = tokio::select! {
        biased;
        () = shell.ended() => false,
        () = tokio::time::sleep(limit) => true,
    };
    if timed_out {
        running.kill();
        // One that left its control group is still our child, and its answer is waited for.
        shell.kill();
        shell.ended().await;
    }
    let status = shell.status();
    let duration = began.elapsed();
    running.shell_ended();
    // Children that live on find the end of their input, not a pipe that nobody fills.
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    let both = async { tokio::join!(&mut stdout, &mut stderr) };
    let _ = tokio::time::timeout(PIPES_GRACE, both).await;
    running.finish(exit(status.ok(), duration, timed_out));
}

fn exit(status: Option<ExitStatus>, duration: Duration, timed_out: bool) -> ExecExit {
    let code = status.and_then(|status| status.code());
    ExecExit {
        exit_code: code.filter(|_| !timed_out),
        signal: status.and_then(|status| status.signal()).map(signal_name),
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        timed_out,
        truncated: false,
    }
}

/// Reads one pipe to its end. Once the command is finished, what its children still write is read and thrown away:
/// a closed pipe would end them.
async fn record(running: Arc<Running>, stream: Stream, mut pipe: pipe::Receiver) {
    let mut taken = running.listen_for_readers();
    // Most commands say little, and fresh memory is dear.
    let mut buffer = vec![0; 1024];
    loop {
        while !running.has_room(stream) {
            if taken.changed().await.is_err() {
                return;
            }
        }
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                running.append(stream, &buffer[..count]);
                if count == buffer.len() && count < LONGEST_READ {
                    buffer.resize(2 * count, 0);
                }
            }
        }
    }
}

/// Writes the command's input. One that does not read all of it has its reasons.
async fn feed(mut pipe: pipe::Sender, text: String) {
    let _ = pipe.write_all(text.as_bytes()).await;
}
