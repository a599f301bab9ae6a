//! A copy never speaks as its parent: what its programs still send with the parent's addresses ends at the copy's port of
//! the bridge, and its connections end without a word to the other side.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    copies::{fork, path_of, pid_of},
    harness::{Skep, connect_in_namespace, eventually},
    takeover::assert_in_order,
};

/// Sends without end what it made before a fork: frames with the parent's addresses, ARP among them, and datagrams from the
/// parent's address. Each has the name of the VM that runs it, and a number of its own. Beside them, it sends what a new
/// program would.
const SPEAK: &str = r#"
import os, socket, struct, sys, time
own_ip, gateway_ip, gateway_mac = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3].replace(":", ""))
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
own_mac = link.getsockname()[4]
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bound.bind((own_ip, 0))
connected = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
connected.connect((gateway_ip, 9))
source, target = socket.inet_aton(own_ip), socket.inet_aton(gateway_ip)

def checksum(data):
    total = sum(struct.unpack("!10H", data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def ip(payload):
    udp = struct.pack("!4H", 9, 9, 8 + len(payload), 0) + payload
    head = lambda sum: struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, sum, source, target)
    return head(checksum(head(0))) + udp

def attempt(send, *arguments):
    try: send(*arguments)
    except OSError: pass

number = 0
while True:
    number += 1
    with open("/run/skep/generation") as file: name = file.read().strip()
    word = lambda kind: f"skep-canary:{kind}/{name}/{number};".encode()
    attempt(link.send, gateway_mac + own_mac + b"\x08\x00" + ip(word("frame")))
    attempt(link.send, gateway_mac + own_mac + b"\x08\x06" +
        struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 2, own_mac, source, gateway_mac, target) + word("arp"))
    attempt(bound.sendto, word("bound"), (gateway_ip, 9))
    attempt(connected.send, word("connected"))
    fresh = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    attempt(fresh.sendto, word("fresh"), (gateway_ip, 9))
    fresh.close()
    with open("/dev/shm/spoken.new", "w") as file: file.write(str(number))
    os.rename("/dev/shm/spoken.new", "/dev/shm/spoken")
    time.sleep(0.01)
"#;

/// Prints what passes in the namespace: interface, direction, source address, name. Ends when its input does.
const LISTEN: &str = r#"
import re, select, socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
# SO_RCVBUFFORCE
link.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
lines = []
print("ready", flush=True)
while True:
    readable, _, _ = select.select([link, sys.stdin], [], [])
    if link in readable:
        frame, (name, _, kind, *_) = link.recvfrom(65536)
        if found := re.search(rb"skep-canary:([^;]+);", frame):
            at = 26 if frame[12:14] == b"\x08\x00" else 28
            address = socket.inet_ntoa(frame[at:at + 4])
            lines.append(f"{name} {'out' if kind == 4 else 'in'} {address} {found[1].decode()}")
    elif sys.stdin in readable: break
print("\n".join(lines))
"#;

/// Servers that echo, on all addresses and on the VM's own, and a client of one over the VM's own address, which says how its
/// connection is.
pub(super) const CONNECT: &str = r#"
import os, socket, sys, threading, time
servers = [socket.create_server(("0.0.0.0", 8000)), socket.create_server((sys.argv[1], 8001))]

def echo(peer):
    while data := peer.recv(1000): peer.sendall(data)

def serve(server):
    while True:
        peer, _ = server.accept()
        threading.Thread(target=echo, args=(peer,), daemon=True).start()

def put(text):
    with open("/dev/shm/connection.new", "w") as file: file.write(text)
    os.rename("/dev/shm/connection.new", "/dev/shm/connection")

for server in servers: threading.Thread(target=serve, args=(server,), daemon=True).start()
client, number = socket.create_connection((sys.argv[1], 8000)), 0
try:
    while True:
        number += 1
        client.sendall(b"%d" % number)
        if client.recv(1000) != b"%d" % number: raise OSError("it ended")
        put(f"alive {number}")
        time.sleep(0.02)
except OSError as error:
    put(f"ended {error}")
time.sleep(100000)
"#;

/// What passes in the namespace of the VMs.
struct Capture(Child);

/// A frame that was seen.
#[derive(Debug, Clone)]
struct Seen {
    place: String,
    address: String,
    kind: String,
    vm: String,
    number: String,
}

impl Capture {
    fn start(namespace: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "/usr/bin/python3", "-c", LISTEN]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        process.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"ready\n");
        Self(process)
    }

    fn seen(self) -> Vec<Seen> {
        // Its input ends with this.
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let line = |line: &str| {
            let [interface, direction, address, name] =
                line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let [kind, vm, number] = name.split('/').collect::<Vec<_>>().try_into().unwrap();
            let place = if interface == "skep0" { interface } else { "port" };
            let [address, kind, vm, number] = [address, kind, vm, number].map(str::to_owned);
            Seen { place: format!("{place} {direction}"), address, kind, vm, number }
        };
        String::from_utf8(output.stdout).unwrap().lines().map(line).collect()
    }
}

fn in_namespace(skep: &Skep, command: &str) -> String {
    let output =
        Command::new("ip").args(["netns", "exec", &skep.namespace(), "sh", "-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn text<'a>(vm: &'a Value, field: &str) -> &'a str {
    vm[field].as_str().unwrap()
}

/// Starts a program in the background, and waits until it has written this file.
pub(super) async fn start(skep: &Skep, vm: &Value, program: &str, arguments: &str, file: &str) {
    let command = format!(
        "name=$(mktemp); cat > $name; (setsid python3 $name {arguments} >/root/log 2>&1 </dev/null &)
        while [ ! -e {file} ]; do sleep 0.05; done"
    );
    let answer = skep.exec_with(pid_of(vm), &json!({"command": command, "stdin": program})).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
}

async fn speaks_on(skep: &Skep, vm: &Value) {
    let spoken = async || skep.output(pid_of(vm), "cat /dev/shm/spoken").await.parse::<u64>().unwrap();
    let before = spoken().await;
    eventually("more frames", async || spoken().await > before + 10).await;
}

/// The frames of a fork that is made while the parent speaks: those of the parent and those of the copy.
async fn frames_of_a_fork(skep: &Skep, parent: &Value) -> (Vec<Seen>, Value) {
    let capture = Capture::start(&skep.namespace());
    speaks_on(skep, parent).await;
    let copy = fork(skep, parent, &json!({})).await.remove(0);
    speaks_on(skep, &copy).await;
    speaks_on(skep, parent).await;
    (tokio::task::spawn_blocking(move || capture.seen()).await.unwrap(), copy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_never_speaks_as_its_parent_and_ends_its_connections() {
    let skep = Skep::start().await;
    let parent = skep.boot(1).await.remove(0);
    let gateway = skep.output(pid_of(&parent), "ip route show default | awk '{print $3}'").await;
    let gateway_mac = in_namespace(&skep, "cat /sys/class/net/skep0/address").trim().to_owned();
    start(&skep, &parent, CONNECT, text(&parent, "ip"), "/dev/shm/connection").await;
    let mut outside = connect_in_namespace(&skep.namespace(), listener(&parent)).await.unwrap();
    is_echoed(&mut outside);
    let arguments = format!("{} {gateway} {gateway_mac}", text(&parent, "ip"));
    start(&skep, &parent, SPEAK, &arguments, "/dev/shm/spoken").await;

    let (seen, copy) = frames_of_a_fork(&skep, &parent).await;
    no_frame_is_of_another(&seen, &parent, &copy);
    its_connections_end(&skep, &copy).await;
    those_of_the_parent_go_on(&skep, &parent, &mut outside).await;
    assert_in_order(&skep).await;
    skep.delete(&path_of(&copy)).await.ok(200);
    is_echoed(&mut outside);

    // The control: without the filter, frames of a copy arrive with the address of its parent.
    in_namespace(&skep, "nft delete table bridge skep");
    let (seen, copy) = frames_of_a_fork(&skep, &parent).await;
    let as_parent =
        |one: &Seen| one.place == "skep0 in" && one.vm == copy["id"] && one.address == parent["ip"];
    assert!(seen.iter().any(as_parent), "the capture cannot see it");
}

fn no_frame_is_of_another(seen: &[Seen], parent: &Value, copy: &Value) {
    let has = |place: &str, vm: &Value, kind: &str| {
        seen.iter().any(|one| one.place == place && one.vm == vm["id"] && one.kind == kind)
    };
    for kind in ["frame", "arp", "bound", "connected", "fresh"] {
        assert!(has("skep0 in", parent, kind), "the bridge has no `{kind}` of the parent");
    }
    assert!(has("port in", copy, "frame") && has("port in", copy, "arp"), "the copy has not tried");
    assert!(has("skep0 in", copy, "fresh"), "the copy cannot speak at all");
    for one in seen.iter().filter(|one| one.place != "port in") {
        let of_copy = one.address == text(copy, "ip");
        // The copy sends the word that the fork interrupted: it has the name of the parent, and a new socket has the address
        // of the copy.
        let interrupted = of_copy && one.kind == "fresh" && one.vm == parent["id"];
        assert!(of_copy == (one.vm == copy["id"]) || interrupted, "with the address of another: {one:?}");
        assert!(of_copy || one.address == text(parent, "ip"), "with the address of nobody: {one:?}");
    }
    // A frame that was under way during the fork, in both, arrives once.
    let mut arrived: BTreeMap<[&str; 4], u32> = BTreeMap::new();
    for one in seen.iter().filter(|one| one.place == "skep0 in") {
        *arrived.entry([&one.address, &one.kind, &one.vm, &one.number]).or_default() += 1;
    }
    let twice: Vec<_> = arrived.into_iter().filter(|(_, times)| *times > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

fn listener(vm: &Value) -> SocketAddr {
    format!("{}:8000", text(vm, "ip")).parse().unwrap()
}

async fn its_connections_end(skep: &Skep, copy: &Value) {
    eventually("the end of the copy's connection", async || {
        skep.output(pid_of(copy), "cat /dev/shm/connection").await.starts_with("ended")
    })
    .await;
    let left = skep.output(pid_of(copy), "cat /proc/net/tcp").await;
    assert!(!left.lines().skip(1).any(|line| line.split_whitespace().nth(3) == Some("01")), "{left}");
    // Its listener serves its own address.
    is_echoed(&mut connect_in_namespace(&skep.namespace(), listener(copy)).await.unwrap());
}

async fn those_of_the_parent_go_on(skep: &Skep, parent: &Value, outside: &mut TcpStream) {
    let alive = async || skep.output(pid_of(parent), "cat /dev/shm/connection").await;
    let number = |text: &str| text.strip_prefix("alive ").unwrap().parse::<u64>().unwrap();
    let before = number(&alive().await);
    eventually("the parent's connection", async || number(&alive().await) > before + 5).await;
    is_echoed(outside);
}

pub(super) fn is_echoed(connection: &mut TcpStream) {
    connection.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    connection.write_all(b"word").unwrap();
    let mut answer = [0; 4];
    connection.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"word");
}
