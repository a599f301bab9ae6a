//! Tests of monitors with compromised VMMs.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream as Peer,
    time::Duration,
};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);
const GREETING: &[u8] = b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";

fn pair() -> (UnixStream, Peer) {
    let (ours, peer) = Peer::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (UnixStream::from_std(ours).unwrap(), peer)
}

/// An open monitor and its peer.
async fn opened() -> (Monitor, Peer) {
    let (ours, mut peer) = pair();
    peer.write_all(GREETING).unwrap();
    peer.write_all(b"{\"return\": {}, \"id\": 1}\r\n").unwrap();
    (Monitor::open(ours).await.unwrap(), peer)
}

/// The result of a command to which the peer writes this answer.
async fn answered(monitor: &Monitor, mut peer: &Peer, answer: &[u8]) -> Result<Value, Error> {
    peer.write_all(answer).unwrap();
    monitor.call("query-status", json!({})).await
}

#[tokio::test]
async fn answers_reach_the_caller_between_events() {
    let (monitor, peer) = opened().await;
    let mut events = monitor.events();
    let messages =
        b"{\"event\": \"STOP\", \"timestamp\": {}}\n{\"return\": {\"running\": false}, \"id\": 2}\n";
    assert_eq!(answered(&monitor, &peer, messages).await.unwrap(), json!({"running": false}));
    timeout(TIMEOUT, events.changed()).await.unwrap().unwrap();
    let refused =
        answered(&monitor, &peer, b"{\"error\": {\"desc\": \"no\"}, \"id\": 3}\n").await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { reason, .. } if reason == "no"), "{refused}");
    // A late answer or an error without a command id does not close the connection.
    let messages = b"{\"return\": 0, \"id\": 2}\n{\"error\": {}}\n{\"return\": 7, \"id\": 4}\n";
    assert_eq!(answered(&monitor, &peer, messages).await.unwrap(), json!(7));
    drop(peer);
    assert_eq!(timeout(TIMEOUT, monitor.closed()).await.unwrap(), None);
}

#[tokio::test]
async fn an_invalid_message_closes_the_connection() {
    let long = [b"{\"event\": \"".as_slice(), &[b'A'; MAX_EVENT_BYTES + 1], b"\"}\n"].concat();
    for garbage in [
        b"what\n".as_slice(),
        b"\n",
        b"\xff\xff\n",
        b"[]\n",
        b"{}\n",
        b"{\"event\": 7}\n",
        b"{\"id\": 2}\n",
        b"{\"data\": {\"reason\": \"guest-reset\"}}\n",
        long.as_slice(),
        // No line end, but the connection stays open.
        &vec![b' '; MAX_LINE_BYTES],
        &vec![b'['; MAX_LINE_BYTES],
    ] {
        let shown = String::from_utf8_lossy(&garbage[..garbage.len().min(30)]).into_owned();
        let (monitor, mut peer) = opened().await;
        let (read, write) = (peer.try_clone().unwrap(), garbage.to_vec());
        let writing = std::thread::spawn(move || peer.write_all(&write));
        let gone = timeout(TIMEOUT, monitor.closed()).await;
        assert_eq!(gone.ok(), Some(None), "still connected after {shown}");
        writing.join().unwrap().unwrap();
        let refused = monitor.call("stop", json!({})).await.unwrap_err();
        assert!(matches!(refused, Error::MonitorClosed(_)), "{shown}: {refused}");
        // The connection is closed although the monitor still exists.
        let mut rest = Vec::new();
        let _ = { read }.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("stop"), "{shown}");
    }
}

#[tokio::test]
async fn a_flood_leaves_room_for_other_tasks() {
    let (ours, mut peer) = pair();
    peer.set_nonblocking(true).unwrap();
    // As much as the socket buffer holds, so that reads never wait.
    let event = b"{\"event\":\"A\"}\n";
    let chunk = event.repeat(1000);
    let mut written = 0;
    while let Ok(more) = peer.write(&chunk[written % event.len()..]) {
        written += more;
    }
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    let lines = written / event.len();
    assert!(lines > 1_000, "{lines}");
    let opening = tokio::spawn(Monitor::open(ours));
    let mut turns = 0;
    while !opening.is_finished() {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(opening.await.unwrap().is_err());
    // Tokio's budget of a task is 128.
    assert!(turns > lines / 200, "{turns} turns in {lines} lines");
}

#[tokio::test(start_paused = true)]
async fn a_vmm_that_reads_nothing_causes_a_timeout() {
    let (monitor, _peer) = opened().await;
    // More than the socket buffer holds.
    for _ in 0..2_000 {
        let late = timeout(2 * super::ANSWER_TIMEOUT, monitor.call("stop", json!({}))).await;
        let late = late.expect("the command waits for ever").unwrap_err();
        assert!(matches!(late, Error::TimedOut { .. } | Error::MonitorClosed(_)), "{late}");
    }
    assert!(monitor.shared.pending().as_ref().is_none_or(HashMap::is_empty));
}
