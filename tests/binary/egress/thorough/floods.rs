//! Guests that send much more than they should: queries, connections and resets.

use std::{fs, pin::pin};

use serde_json::json;
use skep_harness::{eventually, temp_dir};

use crate::{
    egress::{OPTIONS, boot, fetch, python, recorded, world::World},
    harness::Skep,
};

/// Sends queries for names of its own to the forwarder until its file is removed, without reading the answers.
const QUERIES: &str = r#"cat > /root/flood.py <<'END'
import os, re, socket
forwarder = re.search(r"nameserver (\S+)", open("/etc/resolv.conf").read())[1]
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.setblocking(False)
number = 0
while os.path.exists("/root/flooding"):
    number += 1
    name = b"n%07d" % number
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name + b"\4wild\4test\0\0\1\0\1"
    try:
        asked.sendto(query, (forwarder, 53))
    except BlockingIOError:
        pass
END
touch /root/flooding
python3 /root/flood.py > /dev/null 2>&1 &"#;

/// Connects a number of times: to a host that answers, to one whose connections are reset after a byte, to one that is
/// forbidden, and to a port that is closed. Prints how many connections were answered.
const CONNECTIONS: &str = r#"
import socket, struct, sys
answering, closed, forbidden = ("203.0.113.8", 7000), ("203.0.113.7", 81), ("10.9.0.1", 80)
kinds = [(answering, b"e")] * 7 + [(answering, b""), (closed, b"G"), (forbidden, b"G")]
answered = 0
for number in range(int(sys.argv[1])):
    target, message = kinds[number % len(kinds)]
    connection = socket.socket()
    connection.settimeout(20)
    try:
        connection.connect(target)
        connection.send(message or b"G")
        if message == b"e":
            answered += len(connection.recv(4)) > 0
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    connection.close()
print(answered)
"#;
/// The connections are made by several commands, because a busy machine takes long for them.
const COMMANDS: u64 = 10;
/// The connections of one command.
const CONNECTIONS_EACH: u64 = 1_000;
/// Of each ten connections, those that are answered and those that are forbidden.
const ANSWERED_EACH: u64 = CONNECTIONS_EACH / 10 * 7;
const FORBIDDEN: u64 = COMMANDS * CONNECTIONS_EACH / 10;

/// Limits that the guest does not reach first.
const LARGE: [&str; 2] = ["--egress-new-connections", "100000"];

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

#[test]
fn a_guest_that_floods_the_process_stops_no_other_and_leaves_no_descriptor() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &[&OPTIONS[..], &LARGE].concat()).await;
        let [greedy, other] = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        let world = Ok("world api.test".to_owned());
        assert_eq!(fetch(&skep, other, "http://api.test/").await, world);
        let process = recorded(skep.data_dir.path());
        let before = descriptors(process);

        skep.output(greedy, QUERIES).await;
        let refused = async || {
            skep.get(&format!("/api/swarm/vm/{greedy}/egress")).await.ok(200)["refused"].as_u64().unwrap()
        };
        eventually("queries over the limit", async || refused().await > 0).await;
        for _ in 0..3 {
            assert_eq!(fetch(&skep, other, "http://api.test/").await, world);
        }
        skep.output(greedy, "rm /root/flooding; wait").await;

        let refused_before = refused().await;
        let count = CONNECTIONS_EACH.to_string();
        for _ in 0..COMMANDS {
            let mut connect = pin!(python(&skep, greedy, CONNECTIONS, &count));
            let answered = loop {
                tokio::select! {
                    answered = &mut connect => break answered,
                    reached = fetch(&skep, other, "http://api.test/") => assert_eq!(reached, world),
                }
            };
            assert_eq!(answered, ANSWERED_EACH.to_string());
        }
        // The control: also those arrived that were not answered.
        let arrived = refused().await - refused_before;
        assert!(arrived >= FORBIDDEN, "{arrived} of {FORBIDDEN} connections");
        assert_eq!(fetch(&skep, other, "http://api.test/").await, world);
        eventually("the end of the connections", async || descriptors(process) <= before).await;
        assert_eq!(recorded(skep.data_dir.path()), process, "it was not started again");
    });
}
