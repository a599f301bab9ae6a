//! Ends of connections that stop early, or never read.

use serde_json::json;
use skep_harness::{eventually, temp_dir};

use crate::{
    egress::{OPTIONS, boot, fetch, python, world::World},
    harness::Skep,
};

/// Bytes of a connection whose one direction ends first.
const BYTES: usize = 1 << 20;

/// Ends its own direction, and prints what the host answers after that. Then has the host end its direction first, and
/// prints what it sent; the bytes that follow are counted by the host.
const HALVES: &str = r#"
import socket, sys
size = int(sys.argv[1])
def connect(kind):
    connection = socket.create_connection(("203.0.113.7", 7000), 20)
    connection.sendall(kind)
    return connection
def read(connection):
    received = b""
    while part := connection.recv(100):
        received += part
    return received.decode()
connection = connect(b"c")
connection.sendall(bytes(size))
connection.shutdown(socket.SHUT_WR)
print(read(connection))
connection = connect(b"h")
print(read(connection))
connection.sendall(bytes(size))
connection.close()
"#;

/// Sends by some connections until each has sent as much as this or the host takes no more, and prints which. Whether a host
/// reads is in the first byte. The connections stay open until the input ends.
const SENDER: &str = r#"
import select, socket, sys
kind, size, count = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
sent, chunk = {}, bytes(1 << 16)
for _ in range(count):
    connection = socket.create_connection(("203.0.113.7", 7000), 20)
    connection.sendall(kind)
    connection.setblocking(False)
    sent[connection] = 0
while sent:
    _, writable, _ = select.select([], list(sent), [], 15)
    if not writable:
        break
    for connection in writable:
        sent[connection] += connection.send(chunk)
        if sent[connection] >= size:
            del sent[connection]
print("stuck" if sent else "all", flush=True)
sys.stdin.read()
"#;
/// More than what the buffers of all sockets on the way hold.
const MANY_BYTES: usize = 64 << 20;

#[test]
fn each_end_may_finish_first_and_one_that_never_reads_stops_no_other() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let [vm, other] = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        let halves = python(&skep, vm, HALVES, &BYTES.to_string()).await;
        assert_eq!(halves, format!("{BYTES}\nbye"));
        eventually("the bytes after the host's end", async || {
            fetch(&skep, other, "http://203.0.113.7/counted").await == Ok(BYTES.to_string())
        })
        .await;

        // The control: a host that reads takes them all.
        assert_eq!(python(&skep, vm, SENDER, &format!("c {MANY_BYTES} 1")).await, "all");
        let stay = format!(
            "touch /root/sent
            (sleep 100000 | python3 /root/script.py n {MANY_BYTES} 4 > /root/sent) > /dev/null 2>&1 &"
        );
        skep.output(vm, &stay).await;
        eventually("stuck connections", async || skep.output(vm, "cat /root/sent").await == "stuck").await;
        for guest in [vm, other] {
            assert_eq!(fetch(&skep, guest, "http://203.0.113.7/").await.as_deref(), Ok("world 203.0.113.7"));
        }
    });
}
