//! Forged frames of a guest, captured at three points of the namespace: the guest's tap, which shows that they left the
//! guest, the bridge, and the sibling's tap.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value;

use crate::{
    harness::{Skep, connect_in_namespace, step},
    isolation::{connect, connect_within, listener_in_namespace},
};

/// Sends one frame of each kind. The last one is valid: once it is captured, all earlier ones have been handled.
const FORGE: &str = r#"
import socket, struct, sys
gateway_mac, sibling_mac = (bytes.fromhex(word.replace(":", "")) for word in sys.argv[1:3])
own_ip, sibling_ip, gateway_ip = (socket.inet_aton(word) for word in sys.argv[3:6])
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
own_mac = link.getsockname()[4]
other_mac = b"\x02\x53\xde\xad\xbe\xef"

def checksum(data):
    total = sum(struct.unpack("!10H", data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def ip(name, source, target):
    payload = b"skep-canary:" + name.encode() + b";"
    udp = struct.pack("!4H", 9, 9, 8 + len(payload), 0) + payload
    head = lambda sum: struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, sum, source, target)
    return head(checksum(head(0))) + udp

def arp(name, mac, address):
    return struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 2, mac, address, gateway_mac, gateway_ip) \
        + b"skep-canary:" + name.encode() + b";"

def send(source, target, kind, payload):
    link.send(target + source + struct.pack("!H", kind) + payload)

everybody, group = b"\xff" * 6, b"\x01\x00\x5e\x00\x00\x01"
# First, while the bridge does not know the sibling's port yet.
send(own_mac, sibling_mac, 0x800, ip("to-sibling", own_ip, sibling_ip))
send(own_mac, gateway_mac, 0x800, ip("honest", own_ip, gateway_ip))
send(own_mac, gateway_mac, 0x806, arp("honest-arp", own_mac, own_ip))
send(other_mac, gateway_mac, 0x800, ip("mac-of-nobody", own_ip, gateway_ip))
send(sibling_mac, gateway_mac, 0x800, ip("mac-and-address-of-sibling", sibling_ip, gateway_ip))
send(own_mac, gateway_mac, 0x800, ip("address-of-sibling", sibling_ip, gateway_ip))
send(own_mac, gateway_mac, 0x800, ip("address-of-gateway", gateway_ip, gateway_ip))
send(own_mac, gateway_mac, 0x800, ip("address-of-nobody", socket.inet_aton("192.0.2.1"), gateway_ip))
send(own_mac, gateway_mac, 0x806, arp("arp-for-gateway", own_mac, gateway_ip))
send(own_mac, gateway_mac, 0x806, arp("arp-for-sibling", own_mac, sibling_ip))
send(own_mac, gateway_mac, 0x806, arp("arp-with-other-mac", other_mac, own_ip))
send(other_mac, gateway_mac, 0x806, arp("arp-from-other-mac", own_mac, own_ip))
six = b"skep-canary:six;"
send(own_mac, gateway_mac, 0x86dd, struct.pack("!IHBB16s16s", 6 << 28, len(six), 59, 64, bytes(16), bytes(16)) + six)
send(own_mac, gateway_mac, 0x8100, struct.pack("!HH", 7, 0x800) + ip("vlan", own_ip, gateway_ip))
send(own_mac, gateway_mac, 0x88b5, b"skep-canary:unknown-kind;" + bytes(40))
send(own_mac, everybody, 0x800, ip("broadcast", own_ip, b"\xff" * 4))
send(own_mac, group, 0x800, ip("multicast", own_ip, socket.inet_aton("224.0.0.1")))
send(own_mac, gateway_mac, 0x800, ip("end", own_ip, gateway_ip))
"#;

/// Prints what passes in the namespace: interface, direction, name. Ends with the last frame at the bridge.
const LISTEN: &str = r#"
import re, socket
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
link.settimeout(60)
print("ready", flush=True)
while True:
    frame, (name, _, kind, *_) = link.recvfrom(65536)
    if found := re.search(rb"skep-canary:([a-z-]+);", frame):
        print(name, "out" if kind == 4 else "in", found[1].decode(), flush=True)
        if found[1] == b"end" and name == "skep0": break
"#;

const HONEST: [&str; 5] = ["honest", "honest-arp", "broadcast", "multicast", "end"];
const FORGED: [&str; 12] = [
    "mac-of-nobody",
    "mac-and-address-of-sibling",
    "address-of-sibling",
    "address-of-gateway",
    "address-of-nobody",
    "arp-for-gateway",
    "arp-for-sibling",
    "arp-with-other-mac",
    "arp-from-other-mac",
    "six",
    "vlan",
    "unknown-kind",
];

struct Capture {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Capture {
    fn start(namespace: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "/usr/bin/python3", "-c", LISTEN]).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut ready = String::new();
        lines.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Self { process, lines }
    }

    /// Everything that passed, as `interface direction name`.
    fn seen(mut self) -> BTreeSet<String> {
        let seen: BTreeSet<String> = self.lines.by_ref().lines().map(Result::unwrap).collect();
        assert!(self.process.wait().unwrap().success(), "the last frame never came: {seen:?}");
        seen
    }
}

pub(crate) fn in_namespace(skep: &Skep, command: &str) -> String {
    let output =
        Command::new("ip").args(["netns", "exec", &skep.namespace(), "sh", "-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The names of frames that entered at a tap, that reached the bridge, and that left at a tap.
fn sorted(seen: &BTreeSet<String>) -> [BTreeSet<&str>; 3] {
    let names = |wanted: fn(&str, &str) -> bool| {
        seen.iter()
            .filter_map(|line| {
                let (place, name) = line.rsplit_once(' ')?;
                let (interface, direction) = place.split_once(' ')?;
                wanted(interface, direction).then_some(name)
            })
            .collect()
    };
    [
        names(|interface, direction| interface.starts_with("vm") && direction == "in"),
        names(|interface, direction| interface == "skep0" && direction == "in"),
        names(|interface, direction| interface.starts_with("vm") && direction == "out"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_speaks_neither_as_another_nor_to_a_sibling_nor_to_metadata_services() {
    let skep = Skep::start().await;
    let vms = skep.boot(3).await;
    // Nobody forges frames in its name, after which the host might send its answers elsewhere.
    let pid = vms[2]["pid"].as_u64().unwrap();
    let target = metadata_service(&skep).await;
    step("the address of metadata services", async {
        let reached = skep.output(pid, &connect(&target)).await;
        assert!(!reached.ends_with("code 0"), "it was reached: {reached}");
    })
    .await;
    // It deletes the tables of the packet filter at its end.
    step("forged frames", forged_frames(&skep, &vms)).await;
    step("the control of the address", async {
        let reached = skep.output(pid, &connect_within(60, &target)).await;
        assert!(reached.ends_with("code 0"), "it cannot be reached at all: {reached}");
    })
    .await;
}

/// Address and port of a server at the address of metadata services, on the bridge.
async fn metadata_service(skep: &Skep) -> String {
    let address = "169.254.169.254";
    in_namespace(skep, &format!("ip addr add {address}/32 dev skep0"));
    let canary = listener_in_namespace(&skep.namespace(), address).await;
    connect_in_namespace(&skep.namespace(), canary).await.unwrap();
    format!("{address}/{}", canary.port())
}

async fn forged_frames(skep: &Skep, vms: &[Value]) {
    let pid = vms[0]["pid"].as_u64().unwrap();
    let ip = |vm: &Value| vm["ip"].as_str().unwrap().to_owned();
    let mac_of =
        async |vm: &Value| skep.output(vm["pid"].as_u64().unwrap(), "cat /sys/class/net/eth0/address").await;
    let gateway = skep.output(pid, "ip route show default | awk '{print $3}'").await;
    let gateway_mac = in_namespace(skep, "cat /sys/class/net/skep0/address").trim().to_owned();
    let sibling_mac = mac_of(&vms[1]).await;
    let command = format!(
        "cat > /run/forge.py && python3 /run/forge.py {gateway_mac} {sibling_mac} {} {} {gateway}",
        ip(&vms[0]),
        ip(&vms[1])
    );
    let forge = async || {
        let capture = Capture::start(&skep.namespace());
        let request = serde_json::json!({"command": command, "stdin": FORGE});
        let answer = skep.exec_with(pid, &request).await;
        assert_eq!(answer["exit_code"], 0, "{answer}");
        tokio::task::spawn_blocking(move || capture.seen()).await.unwrap()
    };

    let seen = forge().await;
    let [sent, at_the_bridge, at_a_sibling] = sorted(&seen);
    let all: BTreeSet<&str> = HONEST.into_iter().chain(FORGED).chain(["to-sibling"]).collect();
    assert_eq!(sent, all, "not all of them have left the guest");
    assert_eq!(at_the_bridge, BTreeSet::from(HONEST));
    assert_eq!(at_a_sibling, BTreeSet::new());
    assert_eq!(skep.output(vms[1]["pid"].as_u64().unwrap(), "echo alive").await, "alive");

    // The control: without filters and isolation the same frames are seen where they were not. The table of addresses
    // too: where the kernel shows it bridged frames, it stands between siblings as well.
    in_namespace(skep, "nft delete table bridge skep; nft delete table inet skep");
    in_namespace(
        skep,
        "for tap in /sys/class/net/vm*; do ip link set ${tap##*/} type bridge_slave isolated off; done",
    );
    let seen = forge().await;
    let [_, at_the_bridge, at_a_sibling] = sorted(&seen);
    for name in FORGED.iter().filter(|name| !name.starts_with("mac-and-address")) {
        assert!(at_the_bridge.contains(name), "`{name}` cannot be seen at the bridge at all: {seen:?}");
    }
    for name in ["broadcast", "to-sibling"] {
        assert!(at_a_sibling.contains(name), "`{name}` cannot be seen at a sibling at all: {seen:?}");
    }
}
