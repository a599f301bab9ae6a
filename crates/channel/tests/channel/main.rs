//! Both ends over one stream in one process. The guest end runs the commands of a real workspace.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod encoding;
mod fixture;
mod freeze;
mod hostile;
mod input;
mod other_release;
mod protocol;
mod streamed;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use futures_util::{Stream, StreamExt};
use skep_api::{
    ErrorCode,
    exec::{ExecEvent, ExecExit, RunCommand, Stdin},
};
use skep_channel::{ExecStream, Guest, HandOut, Identity, TimeAndSeed};
use skep_harness::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use fixture::{DEADLINE, Fixture};

pub(crate) fn command(text: &str) -> RunCommand {
    RunCommand {
        command: text.to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: 20_000,
    }
}

fn identity() -> Identity {
    Identity {
        vm: "vm_1".to_owned(),
        hostname: "one".to_owned(),
        mac: [2, 0, 0, 0, 0, 1],
        ip: Ipv4Addr::new(10, 77, 0, 2),
        prefix_len: 16,
        gateway: None,
        moment: TimeAndSeed { unix_time_ns: 1_800_000_000_000_000_000, seed: "00".repeat(64) },
        machine_id: "0".repeat(32),
        boot_id: "boot".to_owned(),
        env: Some(BTreeMap::new()),
        keeps_env: false,
    }
}

async fn read_all(stream: &mut ExecStream) -> (Vec<u8>, Vec<u8>, ExecExit) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = stream.next().await {
        match event.expect("an event") {
            ExecEvent::Stdout(data) => stdout.extend_from_slice(&data),
            ExecEvent::Stderr(data) => stderr.extend_from_slice(&data),
            ExecEvent::Exit(exit) => return (stdout, stderr, exit),
        }
    }
    panic!("no exit");
}

#[tokio::test]
async fn an_operation_and_a_refusal_cross_unchanged() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let outcome = guest.call(&command("echo hi; exit 4")).await.expect("it runs");
    assert_eq!((outcome.stdout.as_str(), outcome.exit_code), ("hi\n", Some(4)));

    let mut nowhere = command("true");
    nowhere.cwd = Some("/no/such".to_owned());
    let refused = guest.call(&nowhere).await.expect_err("a refusal");
    assert_eq!(refused.code(), ErrorCode::UnknownPath);
    assert!(refused.to_string().contains("/no/such"));
    assert_eq!(guest.start(&nowhere).await.expect_err("a refusal").code(), ErrorCode::UnknownPath);
    assert_eq!(guest.settle().await.expect_err("a refusal").code(), ErrorCode::ExecFailed);
    assert_eq!(
        guest.attach("none", 0, 0, DEADLINE).await.expect_err("a refusal").code(),
        ErrorCode::UnknownExec
    );

    guest.rest().await.expect("at rest");

    let hand_out = HandOut { moment: TimeAndSeed::now(), env: BTreeMap::new() };
    let nobody = guest.hand_out(&hand_out).await.expect_err("a refusal");
    assert_eq!(nobody.code(), ErrorCode::ExecFailed);
    let nobody = guest.set_clock(&hand_out.moment).await.expect_err("a refusal");
    assert_eq!(nobody.code(), ErrorCode::ExecFailed);
    let report = guest.set_identity(&identity()).await.expect("a report");
    assert_eq!(report.verify(&identity()), Ok(()));
    let report = guest.hand_out(&hand_out).await.expect("a report");
    assert_eq!(report.verify(), Ok(()));
    let report = guest.set_clock(&hand_out.moment).await.expect("a report");
    assert_eq!((report.verify(), report.clock_step_ms), (Ok(()), 12.5));
}

#[tokio::test]
async fn a_request_over_the_guests_memory_is_refused() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let mut large = command("true");
    large.stdin = Stdin::Text("x".repeat(2 << 20));
    assert_eq!(guest.call(&large).await.expect_err("a refusal").code(), ErrorCode::BodyTooLarge);
    assert_eq!(guest.call(&command("echo on")).await.expect("it runs").stdout, "on\n");
}

#[tokio::test]
async fn two_commands_run_at_once() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    // Each command waits for the other, so running them one after the other would never end.
    let (make, first) = (command("mkfifo a b"), command("echo 1 > a; cat b"));
    guest.call(&make).await.expect("it runs");
    let second = command("cat a; echo 2 > b");
    let (first, second) = tokio::join!(guest.call(&first), guest.call(&second));
    assert_eq!(first.expect("it runs").stdout, "2\n");
    assert_eq!(second.expect("it runs").stdout, "1\n");
}

#[tokio::test]
async fn a_flood_comes_through_whole() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    // Longer than the other commands may take: these are many bytes for a debug build on a machine under load.
    let flood = RunCommand { timeout_ms: 120_000, ..command("head -c 50000000 /dev/zero; echo over >&2") };
    let mut stream = guest.start(&flood).await.expect("a stream");
    let (stdout, stderr, exit) = read_all(&mut stream).await;
    assert_eq!((stdout.len(), stderr.as_slice()), (50_000_000, b"over\n".as_slice()));
    assert_eq!((exit.exit_code, exit.truncated), (Some(0), false));
    assert_eq!((stream.stdout_offset(), stream.stderr_offset()), (50_000_000, 5));
}

#[tokio::test]
async fn a_flood_that_nobody_reads_holds_up_nothing_else() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let unread = guest.start(&command("cat /dev/zero")).await.expect("a stream");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(guest.call(&command("echo hi")).await.expect("it runs").stdout, "hi\n");
    drop(unread);
}

#[tokio::test]
async fn a_host_that_vanishes_in_half_a_request_leaves_no_mark() {
    let fixture = Fixture::new();
    let old = fixture.connect().await;
    let mut raw = fixture.stream().await;
    // A data frame that declares more bytes than it has: the next bytes on the stream would complete it.
    let half = [&[0, 1, 0, 0, 0, 0, 0, 0, 1][..], b"{\"command\":\"touch /tmp/never\""].concat();
    raw.write_all(&half).await.expect("written");
    drop(raw);
    let new = fixture.connect().await;
    assert_eq!(new.call(&command("echo new")).await.expect("it runs").stdout, "new\n");
    drop(old);
    let newest = fixture.connect().await;
    assert_eq!(newest.call(&command("echo newest")).await.expect("it runs").stdout, "newest\n");
}

#[tokio::test]
async fn many_simultaneous_cancellations_do_not_end_the_connection() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    for _ in 0..3 {
        let endless = command("sleep 1000");
        let calls: Vec<_> = (0..100).map(|_| guest.call(&endless)).collect();
        // Each future is polled once, so that all requests are in progress when all futures are dropped.
        let all = futures_util::future::join_all(calls);
        assert!(tokio::time::timeout(Duration::ZERO, all).await.is_err());
        assert_eq!(guest.call(&command("echo on")).await.expect("it runs").stdout, "on\n");
    }
}

#[tokio::test]
async fn any_number_of_streams_comes_through_one_connection() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    for _ in 0..300 {
        let mut stream = guest.start(&command(":")).await.expect("a stream");
        assert_eq!(read_all(&mut stream).await.2.exit_code, Some(0));
    }
}

#[tokio::test]
async fn unread_streams_of_small_chunks_do_not_end_the_connection() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let chatter =
        command("exec python3 -uc 'import os, time\nwhile True: os.write(1, b\"x\"); time.sleep(1e-6)'");
    let mut unread = Vec::new();
    for _ in 0..6 {
        unread.push(guest.start(&chatter).await.expect("a stream"));
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(guest.call(&command("echo on")).await.expect("it runs").stdout, "on\n");
    drop(unread);
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_its_command() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let endless = command("echo up > started; sleep 1000");
    let started = fixture.dir.path().join("started");
    {
        let call = guest.call(&endless);
        tokio::pin!(call);
        tokio::select! {
            _ = &mut call => panic!("it never ends"),
            () = eventually("it starts", async || started.exists()) => {}
        }
    }
    let groups = || {
        std::fs::read_dir(&fixture.group)
            .map_or(0, |all| all.flatten().filter(|it| it.path().is_dir()).count())
    };
    eventually("the command of a dropped call ends", async || groups() == 0).await;

    let mut stream = guest.start(&command("echo up; sleep 1000")).await.expect("a stream");
    stream.next().await.expect("an event").expect("output");
    assert_eq!(groups(), 1);
    drop(stream);
    eventually("the command of a dropped stream ends", async || groups() == 0).await;
}

#[tokio::test]
async fn a_detached_command_survives_its_waiters() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let text = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 7";
    guest.start_detached("exec_own", &command(text)).await.expect("a start");
    // Both hosts that are connected at first disconnect.
    let impatient =
        tokio::time::timeout(Duration::from_millis(50), guest.wait_for_exit("exec_own", DEADLINE)).await;
    assert!(impatient.is_err(), "it runs");
    drop(guest.attach("exec_own", 0, 0, DEADLINE).await.expect("a stream").detached());
    std::fs::write(fixture.dir.path().join("go"), "").expect("a file");
    let exit = guest.wait_for_exit("exec_own", DEADLINE).await.expect("an end");
    assert_eq!(exit.exit_code, Some(7));
    let mut whole = guest.attach("exec_own", 0, 0, DEADLINE).await.expect("a stream");
    assert_eq!(read_all(&mut whole).await.0, b"one\ntwo\n");
    let unknown = guest.wait_for_exit("exec_other", DEADLINE).await.expect_err("a refusal");
    assert_eq!(unknown.code(), ErrorCode::UnknownExec);
}

#[tokio::test]
async fn a_lost_connection_ends_nothing_and_the_rest_can_be_read() {
    let fixture = Fixture::new();
    let guest = fixture.connect().await;
    let text = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 7";
    let mut stream = guest.start(&command(text)).await.expect("a stream");
    let first = stream.next().await.expect("an event").expect("output");
    assert_eq!(first, ExecEvent::Stdout("one\n".into()));
    let (id, at) = (stream.id().to_owned(), stream.stdout_offset());

    let other = fixture.connect().await;
    guest.closed().await;
    drop(stream);
    drop(guest);
    std::fs::write(fixture.dir.path().join("go"), "").expect("a file");
    let mut again = other.attach(&id, at, 0, DEADLINE).await.expect("a stream");
    let (stdout, _, exit) = read_all(&mut again).await;
    assert_eq!((stdout.as_slice(), exit.exit_code), (b"two\n".as_slice(), Some(7)));
    let mut whole = other.attach(&id, 0, 0, DEADLINE).await.expect("a stream");
    assert_eq!(read_all(&mut whole).await.0, b"one\ntwo\n");
}

#[tokio::test]
async fn an_ended_guest_is_distinguished_from_one_that_times_out() {
    let (host, guest) = UnixStream::pair().expect("a pair");
    let silent = Guest::connect(host, Duration::from_millis(300)).await.expect_err("no guest");
    assert_eq!(silent.code(), ErrorCode::GuestTimeout);
    drop(guest);

    let (host, mut guest) = UnixStream::pair().expect("a pair");
    let echo = tokio::spawn(async move {
        let mut marker = [0; 48];
        guest.read_exact(&mut marker).await.expect("a marker");
        guest.write_all(b"stale bytes").await.expect("written");
        guest.write_all(&marker).await.expect("written");
        guest
    });
    let connected = Guest::connect(host, DEADLINE).await.expect("a connection");
    let guest = echo.await.expect("an echo");
    assert!(!connected.is_closed());
    let call = command("true");
    let call = connected.call(&call);
    tokio::pin!(call);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut call).await.is_err());
    drop(guest);
    let ended = call.await.expect_err("no guest");
    assert_eq!((ended.code(), ended.to_string().as_str()), (ErrorCode::VmEnded, "the VM ended"));
    connected.closed().await;
    assert!(connected.is_closed());
}

#[test]
fn a_stream_of_events_may_move_between_threads() {
    fn is_send<T: Send + Stream>() {}
    is_send::<ExecStream>();
}
