//! Commands whose input is written while they run.

use bytes::Bytes;
use futures_util::StreamExt;
use skep_api::{
    exec::{ExecEvent, ExecExit, RunCommand, Stdin},
    exec_stream::SignalName,
};
use skep_channel::{ExecStream, Guest, marker::MAGIC};

use crate::{command, fixture::Fixture, read_all};

async fn start(guest: &Guest, text: &str) -> ExecStream {
    let command = RunCommand { stdin: Stdin::STREAMED, ..command(text) };
    guest.start(&command).await.expect("it runs")
}

async fn stdout(stream: &mut ExecStream) -> Bytes {
    match stream.next().await.expect("an event").expect("no error") {
        ExecEvent::Stdout(data) => data,
        other => panic!("{other:?}"),
    }
}

/// Bytes of every value, with markers of the channel among them.
fn bytes(length: usize) -> Bytes {
    let mut bytes: Vec<u8> = (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 13)) as u8).collect();
    for at in (0..length - MAGIC.len()).step_by(50_021) {
        bytes[at..at + MAGIC.len()].copy_from_slice(&MAGIC);
    }
    bytes.into()
}

#[tokio::test]
async fn input_and_output_are_the_same_bytes() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let sent = bytes(5 << 20);
    let mut stream = start(&guest, "cat").await;
    let control = stream.control();
    let write = async {
        assert!(control.write_stdin(sent.clone()).await.expect("it is written"));
        control.end_stdin().await.expect("it is ended");
    };
    let ((), (stdout, _, exit)) = tokio::join!(write, read_all(&mut stream));
    assert!(stdout == sent, "{} of {} bytes", stdout.len(), sent.len());
    assert_eq!((exit.exit_code, exit.truncated), (Some(0), false));
}

#[tokio::test]
async fn a_command_answers_before_its_input_ends_also_with_half_a_character() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let mut stream = start(&guest, "head -c 1; head -c 2; read line && echo $line; cat; echo end").await;
    let control = stream.control();
    for (input, output) in [("\u{20ac}".as_bytes().split_at(1).0, &b"\xE2"[..]), (b"\x82\xAC", b"\x82\xAC")] {
        assert!(control.write_stdin(Bytes::from_static(input)).await.expect("it is written"));
        let mut came = Vec::new();
        while came.len() < output.len() {
            came.extend_from_slice(&stdout(&mut stream).await);
        }
        assert_eq!(came, output);
    }
    assert!(control.write_stdin(Bytes::from_static(b"line\n")).await.expect("it is written"));
    assert_eq!(stdout(&mut stream).await, "line\n");
    control.end_stdin().await.expect("it is ended");
    assert_eq!(stdout(&mut stream).await, "end\n");
    assert!(!control.write_stdin(Bytes::from_static(b"late")).await.expect("an answer"));
}

/// As many commands as would fill the connection window if their input were buffered there, including chunks of one
/// byte.
#[tokio::test]
async fn commands_that_do_not_read_hold_up_nothing_else() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let mut unread = Vec::new();
    for _ in 0..40 {
        let stream = start(&guest, "sleep 600").await;
        let control = stream.control();
        let writing = tokio::spawn(async move {
            for _ in 0..300 {
                control.write_stdin(Bytes::from_static(b"x")).await.expect("an answer");
            }
            control.write_stdin(bytes(1 << 20)).await
        });
        unread.push((stream, writing));
    }
    assert_eq!(guest.call(&command("echo on")).await.expect("it runs").stdout, "on\n");
    let mut talk = start(&guest, "cat").await;
    assert!(talk.control().write_stdin(Bytes::from_static(b"talk")).await.expect("it is written"));
    assert_eq!(stdout(&mut talk).await, "talk");
    for (stream, writing) in unread {
        stream.control().signal(SignalName::Kill).await.expect("it is sent");
        // The end of the command ends the write.
        assert!(!writing.await.expect("no panic").expect("an answer"));
    }
}

#[tokio::test]
async fn a_command_that_closes_its_input_takes_no_more() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let mut stream = start(&guest, "exec <&-; echo closed; sleep 600").await;
    assert_eq!(stdout(&mut stream).await, "closed\n");
    assert!(!stream.control().write_stdin(bytes(1 << 20)).await.expect("an answer"));
}

#[tokio::test]
async fn signals_reach_the_command_and_what_it_started() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let ends = |exit: ExecExit| (exit.exit_code, exit.signal);
    // A program that has echoed its input is running: dash loses a SIGINT that arrives between its fork and the
    // `exec`.
    for (text, signal, expected) in [
        ("cat", SignalName::Int, (None, Some("SIGINT".to_owned()))),
        ("cat; true", SignalName::Term, (None, Some("SIGTERM".to_owned()))),
        ("trap 'exit 7' USR1; cat", SignalName::Usr1, (Some(7), None)),
    ] {
        let mut stream = start(&guest, text).await;
        assert!(stream.control().write_stdin(Bytes::from_static(b"on")).await.expect("an answer"));
        assert_eq!(stdout(&mut stream).await, "on", "{text}");
        stream.control().signal(signal).await.expect("it is sent");
        let (_, _, exit) = read_all(&mut stream).await;
        assert_eq!(ends(exit), expected, "{text}");
        // A command that has ended receives no signal.
        stream.control().signal(signal).await.expect("no error");
    }
}
