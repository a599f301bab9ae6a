//! Guests that send much more than they should: queries, connections and resets.

use std::fs;

use serde_json::json;
use skep_harness::{eventually, temp_dir};

use super::{OPTIONS, boot, fetch, life::recorded, world::World};
use crate::harness::Skep;

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

/// Connects a number of times to each target, and resets what was connected.
const RESETS: &str = r#"cat > /root/resets.py <<'END'
import socket, struct, sys
targets = [("203.0.113.8", 80), ("203.0.113.7", 81), ("10.9.0.1", 80)]
for _ in range(int(sys.argv[1])):
    for target in targets:
        connection = socket.socket()
        connection.settimeout(20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            connection.connect(target)
            connection.send(b"G")
        except OSError:
            pass
        connection.close()
END
python3 /root/resets.py"#;
const TARGETS: u64 = 3;
const RESETS_OF_EACH: u64 = 400;

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
            assert_eq!(fetch(&skep, other, "-m 20 http://api.test/").await, world);
        }
        skep.output(greedy, "rm /root/flooding; wait").await;

        let refused_before = refused().await;
        skep.output(greedy, &format!("{RESETS} {RESETS_OF_EACH}")).await;
        // The control: the connections arrived. A third of them goes to a forbidden address.
        let arrived = refused().await - refused_before;
        assert!(arrived >= RESETS_OF_EACH, "{arrived} of {} connections", RESETS_OF_EACH * TARGETS);
        assert_eq!(fetch(&skep, other, "http://api.test/").await, world);
        eventually("the end of the connections", async || descriptors(process) <= before).await;
        assert_eq!(recorded(skep.data_dir.path()), process, "it was not started again");
    });
}
