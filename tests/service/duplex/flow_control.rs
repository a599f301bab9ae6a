//! Input that a command does not read, and output that a caller does not read: the sender waits, and buffers are limited.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::SinkExt;
use serde_json::json;
use skep_api::{
    exec::ExecRequest,
    exec_stream::{MAX_WRITE_BYTES, STDIN_WINDOW_BYTES, SignalName},
};
use skep_client::{DuplexEvent, DuplexInput, DuplexOutput};
use tokio_tungstenite::tungstenite::Message;

use super::{dialled, next, noise, notice, read, read_all, start};
use crate::harness::{Skep, eventually};

/// Writes input piece by piece, and counts the bytes that there was room for. Returns whether all were sent.
async fn write_counted(mut input: DuplexInput, mut bytes: Bytes, sent: Arc<AtomicUsize>) -> bool {
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(MAX_WRITE_BYTES));
        let length = piece.len();
        if !input.write(piece).await.unwrap_or(false) {
            return false;
        }
        sent.fetch_add(length, Ordering::Relaxed);
    }
    true
}

/// Waits until the pipe of a command and the window are full. The output is read meanwhile, because it carries the
/// acknowledgements that make room.
async fn until_no_room(sent: &AtomicUsize, output: &mut DuplexOutput) {
    let full = async {
        // There is room for that much in any case, however late the writer begins.
        eventually("a full window", async || sent.load(Ordering::Relaxed) >= STDIN_WINDOW_BYTES).await;
        // The pipe takes more, by an amount that the kernel decides. Looks are counted instead of time: the server runs
        // in this process, and gets its turn between two of them.
        let (mut before, mut equal_looks) = (0, 0);
        while equal_looks < 30 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = sent.load(Ordering::Relaxed);
            equal_looks = if now == before { equal_looks + 1 } else { 0 };
            before = now;
        }
    };
    tokio::select! {
        () = full => {}
        event = output.next() => panic!("{event:?}"),
    }
}

/// The input is larger than all buffers together. The writer blocks, signals still get through, and the timeout
/// applies.
#[tokio::test]
async fn a_command_that_never_reads_stops_its_sender() {
    let skep = Skep::start().await;
    for by_signal in [true, false] {
        let timeout = if by_signal { 900_000 } else { 1_500 };
        let request = ExecRequest {
            command: "trap 'exit 9' USR1; echo ready; sleep 600 & wait".to_owned(),
            timeout: Some(timeout),
            ..ExecRequest::default()
        };
        let (input, mut output) = skep.client(&skep.admin).exec_duplex(&request).await.unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let sending = tokio::spawn(write_counted(input.clone(), noise(8 << 20), Arc::clone(&sent)));
        if by_signal {
            assert!(matches!(next(&mut output).await, DuplexEvent::Started(_)));
            // Before the trap is set, the signal would end the shell.
            assert_eq!(read(&mut output, 6).await, b"ready\n");
            until_no_room(&sent, &mut output).await;
            assert!(!sending.is_finished());
            input.signal(SignalName::Usr1).await.unwrap();
        }
        let (_, _, exit) = read_all(output).await;
        let expected = if by_signal { (Some(9), false) } else { (None, true) };
        assert_eq!((exit.exit_code, exit.timed_out), expected);
        assert!(!sending.await.unwrap(), "it was all taken");
    }
}

/// A client that ignores the window: the server stops reading, and buffers no more than the window.
#[tokio::test]
async fn a_client_that_sends_without_end_is_not_read_without_end() {
    let skep = Skep::start().await;
    let mut socket = dialled(&skep).await;
    socket.send(Message::text(json!({"command": "sleep 600"}).to_string())).await.unwrap();
    assert_eq!(notice(&mut socket).await["type"], "started");
    let mut piece = vec![0; 64 << 10];
    piece[1..].fill(7);
    let mut sent = 0;
    // The socket buffers, the window and the pipe together are far smaller than this.
    while sent < 256 << 20 {
        let sending = socket.send(Message::binary(piece.clone()));
        match tokio::time::timeout(Duration::from_secs(2), sending).await {
            Ok(outcome) => outcome.unwrap(),
            Err(_) => return,
        }
        sent += piece.len();
    }
    panic!("{sent} bytes were taken for a command that reads none");
}

#[tokio::test]
async fn output_that_nobody_reads_stops_the_command() {
    let skep = Skep::start().await;
    let command = "while head -c 65536 /dev/zero; do echo x >> written; done";
    let (input, output) = start(&skep, command).await;
    let written = || fs::metadata(skep.at("written")).map_or(0, |file| file.len());
    // The command may take longer than that second to begin.
    eventually("the first piece", async || written() > 0).await;
    let mut before = (written(), Instant::now());
    // Output has stopped once a second has passed without another piece.
    while before.1.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if written() != before.0 {
            before = (written(), Instant::now());
        }
        assert!(written() < 2 * 2_000, "more than 128 MiB were printed for a caller that reads nothing");
    }
    // Output continues when it is read again, and a signal gets through.
    input.signal(SignalName::Term).await.unwrap();
    let (stdout, _, exit) = read_all(output).await;
    assert_eq!(exit.signal.as_deref(), Some("SIGTERM"));
    assert!(stdout.len() as u64 >= written() / 2 * 65_536 - 65_536 && !exit.truncated);
}
