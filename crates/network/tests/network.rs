//! Tests with real namespaces, in which veth pairs and processes replace VMs. Needs root.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use skep_network::{API_PORT, Error, KnownAddress, Network, Tap};

/// How often a test looks for what may come late on a machine under load. Each look starts a process.
const ATTEMPTS: u32 = 500;

/// A network that is removed after the test, with a check for leftovers.
struct Fixture {
    name: String,
}

impl Fixture {
    async fn new(purpose: &str) -> (Self, Network) {
        assert!(
            rustix::process::getuid().is_root(),
            "the tests of the network need root: run them with sudo"
        );
        let name = format!("skep-test-{}-{purpose}", std::process::id());
        let network = Network::create(&name, "10.99.0.0/24".parse().unwrap()).await.unwrap();
        (Self { name }, network)
    }

    fn run(&self, command: &str) -> Output {
        Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", command]).output().unwrap()
    }

    fn text(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether a link goes away. A process that another test starts may hold a closed tap until its `execve`.
    fn loses(&self, link: &str) -> bool {
        (0..ATTEMPTS).any(|_| !self.run(&format!("ip link show {link}")).status.success())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        Network::destroy(&self.name).unwrap();
    }
}

#[tokio::test]
async fn a_namespace_comes_and_goes_without_a_trace() {
    let (fixture, network) = Fixture::new("trace").await;
    let path = Path::new("/run/netns").join(&fixture.name);
    assert!(path.exists());
    let taken = Network::create(&fixture.name, network.subnet()).await.unwrap_err();
    assert!(matches!(taken, Error::NamespaceExists(_)), "{taken}");
    assert!(fixture.text("ip -4 -o addr show skep0").contains("10.99.0.1/24"));
    assert_eq!(fixture.text("ip -6 addr"), "");
    assert_eq!(fixture.text("cat /proc/sys/net/ipv4/ip_forward"), "0\n");
    network.close().await.unwrap();
    assert!(!path.exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&fixture.name), "{mounts}");
}

#[tokio::test]
async fn a_tap_is_an_isolated_port_until_it_closes() {
    let (fixture, network) = Fixture::new("tap").await;
    let Tap { fd, port } = network.add_tap().await.unwrap();
    assert_eq!(port.ip, Ipv4Addr::new(10, 99, 0, 2));
    assert_eq!(port.gateway, Ipv4Addr::new(10, 99, 0, 1));
    assert_eq!(port.mac, [2, 0x53, 10, 99, 0, 2]);
    let link = fixture.text(&format!("ip -d link show {}", port.name));
    for wanted in ["master skep0", "isolated on", "tun type tap", "vnet_hdr on", "persist off"] {
        assert!(link.contains(wanted), "{wanted} is missing: {link}");
    }
    let second = network.add_tap().await.unwrap();
    assert_ne!((second.port.ip, second.port.mac), (port.ip, port.mac));

    close(&fixture, fd, &port.name);
    network.remove(port).await.unwrap();
    // Removed while its descriptor is still open.
    let name = second.port.name.clone();
    network.remove(second.port).await.unwrap();
    assert!(!fixture.run(&format!("ip link show {name}")).status.success());
    network.close().await.unwrap();
}

#[tokio::test]
async fn an_address_is_not_used_again_soon() {
    let (_fixture, network) = Fixture::new("again").await;
    let first = network.add_tap().await.unwrap();
    let ip = first.port.ip;
    network.remove(first.port).await.unwrap();
    assert_ne!(network.add_tap().await.unwrap().port.ip, ip);
    network.close().await.unwrap();
}

#[tokio::test]
async fn a_network_is_taken_over_with_the_ports_that_live() {
    let (fixture, network) = Fixture::new("adopt").await;
    let [kept, stray, gone] = [
        network.add_tap().await.unwrap(),
        network.add_tap().await.unwrap(),
        network.add_tap().await.unwrap(),
    ];
    let subnet = network.subnet();
    // As when the process ends: the namespace stays.
    drop(network);
    let gone_ip = gone.port.ip;
    close(&fixture, gone.fd, &gone.port.name);
    fixture.text("nft delete table inet skep");
    fixture.text("ip link set skep0 type bridge no_linklocal_learn 0");
    let elsewhere = Ipv4Addr::new(10, 98, 0, 2);

    let wanted = [kept.port.ip, gone_ip, elsewhere]
        .map(|ip| KnownAddress { ip, admitted: true, egress: true })
        .to_vec();
    let (network, ports) = Network::adopt(&fixture.name, subnet, wanted).await.unwrap();
    assert_eq!(ports, std::slice::from_ref(&kept.port));
    let link = fixture.text(&format!("ip -d link show {}", kept.port.name));
    assert!(link.contains("master skep0") && link.contains("isolated on"), "{link}");
    assert!(!fixture.run(&format!("ip link show {}", stray.port.name)).status.success());
    let bridge = fixture.text("ip -d link show skep0");
    assert!(bridge.contains("no_linklocal_learn 1"), "{bridge}");
    let callers = callers(&fixture);
    assert!(
        callers.contains(&format!("elements = {{ {} }}", kept.port.ip)),
        "the filter was not loaded again: {callers}"
    );
    let new = network.add_tap().await.unwrap();
    assert_ne!(new.port.ip, kept.port.ip);
    network.remove(kept.port).await.unwrap();
    network.close().await.unwrap();

    let missing = Network::adopt(&fixture.name, subnet, Vec::new()).await;
    assert!(missing.is_err(), "a namespace that is gone was taken over");
}

/// A namespace that replaces a VM. It is removed on drop.
struct Guest {
    name: String,
}

impl Guest {
    /// One end of a veth pair gets the name of the VM's tap.
    fn new(fixture: &Fixture, tap: Tap) -> Self {
        let Tap { fd, port } = tap;
        close(fixture, fd, &port.name);
        let guest = Self { name: format!("{}-{}", fixture.name, port.name) };
        let mac = port.mac.map(|byte| format!("{byte:02x}")).join(":");
        for command in [
            format!("netns add {}", guest.name),
            format!(
                "-n {} link add {} type veth peer name eth0 netns {}",
                fixture.name, port.name, guest.name
            ),
            format!("-n {} link set {} master skep0 up", fixture.name, port.name),
            format!("-n {} link set {} type bridge_slave isolated on", fixture.name, port.name),
        ] {
            ip(&command);
        }
        guest.ip(&format!("link set eth0 address {mac} up"));
        guest.ip(&format!("addr add {}/{} dev eth0", port.ip, port.prefix_len));
        guest
    }

    fn ip(&self, command: &str) {
        ip(&format!("-n {} {command}", self.name));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Not with `ip`, whose failure would hide that of the test.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}

/// Closes a tap and waits until its name is free.
fn close(fixture: &Fixture, fd: OwnedFd, name: &str) {
    drop(fd);
    assert!(fixture.loses(name), "{name} stays");
}

fn callers(fixture: &Fixture) -> String {
    fixture.text("nft list set inet skep api_callers")
}

/// Whether a ping from this namespace is answered.
fn reaches(from: &str, to: &str) -> bool {
    reaches_port(from, to, 9)
}

/// Whether a packet to a port arrives, so that a connection is accepted or refused.
fn reaches_port(from: &str, to: &str, port: u16) -> bool {
    let script = format!(
        "import socket,sys\n\
         s=socket.socket()\n\
         s.settimeout(1)\n\
         try:\n s.connect(('{to}',{port}))\n\
         except ConnectionRefusedError: sys.exit(0)\n\
         except OSError: sys.exit(1)\n"
    );
    let status = Command::new("ip").args(["netns", "exec", from, "python3", "-c", &script]).status().unwrap();
    status.success()
}

/// Like [`reaches_port`], and tries again if the packet or its answer is late.
fn reaches_port_at_last(from: &str, to: &str, port: u16) -> bool {
    // Each attempt waits for a second.
    (0..30).any(|_| reaches_port(from, to, port))
}

fn reaches_at_last(from: &str, to: &str) -> bool {
    reaches_port_at_last(from, to, 9)
}

/// Checks that data passes in both directions.
fn assert_exchange(listener: &TcpListener, guest: &str, ip: Ipv4Addr) {
    let script = "exec 3<>/dev/tcp/10.99.0.1/7700; echo hello >&3; cat <&3";
    let mut caller = Command::new("ip");
    caller.args(["netns", "exec", guest, "timeout", "60", "bash", "-c", script]);
    let output = std::thread::spawn(move || caller.output().unwrap());
    let mut word = String::new();
    while word.is_empty() {
        // Connections of earlier `reaches_port` checks come first.
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), ip);
        BufReader::new(&stream).read_line(&mut word).unwrap();
        (&stream).write_all(b"and back").unwrap();
    }
    assert_eq!((word.as_str(), output.join().unwrap().stdout.as_slice()), ("hello\n", &b"and back"[..]));
}

#[tokio::test]
async fn only_admitted_guests_reach_the_api_and_nothing_else() {
    let (fixture, network) = Fixture::new("callers").await;
    let listener = network.listen().await.unwrap();
    assert_eq!(listener.local_addr().unwrap(), "10.99.0.1:7700".parse().unwrap());
    let [first, second] = [network.add_tap().await.unwrap(), network.add_tap().await.unwrap()];
    let [caller, other] = [first.port.clone(), second.port.clone()];
    let guests = [Guest::new(&fixture, first), Guest::new(&fixture, second)];
    let [a, b] = guests.each_ref().map(|guest| guest.name.as_str());
    let gateway = "10.99.0.1";
    assert!(!reaches_port(a, gateway, API_PORT) && !reaches_port(b, gateway, API_PORT));

    network.admit(caller.clone()).await.unwrap();
    network.admit(caller.clone()).await.unwrap();
    assert!(reaches_port_at_last(a, gateway, API_PORT));
    assert_exchange(&listener, a, caller.ip);

    // No other VM, and no other port.
    assert!(!reaches_port(b, gateway, API_PORT), "a guest that was not admitted");
    assert!(!reaches(a, gateway) && !reaches_port(a, gateway, API_PORT + 1), "another port");
    assert!(!reaches_port(a, &other.ip.to_string(), API_PORT), "another guest");
    // Nor with the address of an admitted VM, because the frames come from another port of the bridge.
    guests[1].ip("addr flush dev eth0");
    guests[1].ip(&format!("addr add {}/24 dev eth0", caller.ip));
    assert!(!reaches_port(b, gateway, API_PORT), "by the address of another guest");
    // Control: without the filter it is reachable.
    fixture.text("nft delete table bridge skep; nft add element inet skep api_callers { 10.99.0.3 }");
    guests[1].ip("addr flush dev eth0");
    guests[1].ip(&format!("addr add {}/24 dev eth0", other.ip));
    assert!(reaches_port_at_last(b, gateway, API_PORT));

    network.remove(caller).await.unwrap();
    assert!(!callers(&fixture).contains("10.99.0.2"), "{}", callers(&fixture));
    network.close().await.unwrap();
}

#[tokio::test]
async fn guests_are_reached_and_reach_nobody() {
    let (fixture, network) = Fixture::new("guests").await;
    let first = network.add_tap().await.unwrap();
    let second = network.add_tap().await.unwrap();
    let (one, two) = (first.port.ip.to_string(), second.port.ip.to_string());
    let (first_name, second_name) = (first.port.name.clone(), second.port.name.clone());
    let guests = [Guest::new(&fixture, first), Guest::new(&fixture, second)];
    let [a, b] = guests.each_ref().map(|guest| guest.name.as_str());

    // A refused connection is an answer as well.
    assert!(reaches_at_last(&fixture.name, &one) && reaches_at_last(&fixture.name, &two));
    assert!(!reaches(a, "10.99.0.1"), "a guest reaches the bridge's address");
    assert!(!reaches(a, &two) && !reaches(b, &one), "guests reach each other");

    // Controls: without each of the protections, the same check succeeds.
    fixture.text("nft delete table inet skep");
    assert!(reaches_at_last(a, "10.99.0.1"));
    assert!(!reaches(a, &two), "isolation of the ports alone does not hold");
    for name in [&first_name, &second_name] {
        fixture.text(&format!("ip link set {name} type bridge_slave isolated off"));
    }
    assert!(reaches_at_last(a, &two));

    // Spoofed senders: the own MAC address with another VM's IP address, then the reverse.
    guests[0].ip("addr flush dev eth0");
    guests[0].ip("addr add 10.99.0.77/24 dev eth0");
    assert!(!reaches(a, "10.99.0.1"), "a guest speaks with an address that is not its own");
    guests[0].ip("addr flush dev eth0");
    guests[0].ip(&format!("addr add {one}/24 dev eth0"));
    assert!(reaches_at_last(a, "10.99.0.1"));
    guests[0].ip("link set eth0 address 02:53:0a:63:00:4d");
    assert!(!reaches(a, "10.99.0.1"), "a guest speaks with a hardware address that is not its own");
    fixture.text("nft delete table bridge skep");
    assert!(reaches_at_last(a, "10.99.0.1"));

    network.close().await.unwrap();
}

/// Sends frames to all reserved addresses, with this MAC address as their sender.
fn send_reserved_frames(guest: &str, mac: &str) {
    let script = format!(
        "import socket\n\
         link=socket.socket(socket.AF_PACKET,socket.SOCK_RAW)\n\
         link.bind(('eth0',0))\n\
         for last in range(16):\n\
         \x20link.send(bytes([1,0x80,0xc2,0,0,last])+bytes.fromhex('{}')+bytes([0x88,0xcc])+bytes(46))\n",
        mac.replace(':', "")
    );
    let status =
        Command::new("ip").args(["netns", "exec", guest, "python3", "-c", &script]).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_guest_cannot_take_the_frames_of_another() {
    let (fixture, network) = Fixture::new("frames").await;
    let [first, second] = [network.add_tap().await.unwrap(), network.add_tap().await.unwrap()];
    let [victim, other] = [first.port.clone(), second.port.clone()];
    let mac = victim.mac.map(|byte| format!("{byte:02x}")).join(":");
    let guests = [Guest::new(&fixture, first), Guest::new(&fixture, second)];
    // The first guest gets the address of the host here: an ARP request of it would move the entry of the bridge back.
    guests[0].ip("neigh replace 10.99.0.1 lladdr 02:53:0a:63:00:01 dev eth0");
    let is_at = |port: &str| {
        fixture.text("bridge fdb show br skep0").contains(&format!("{mac} dev {port} master skep0"))
    };

    assert!(reaches_at_last(&fixture.name, &victim.ip.to_string()) && is_at(&victim.name));
    send_reserved_frames(&guests[1].name, &mac);
    assert!(is_at(&victim.name) && !is_at(&other.name), "the bridge learned an address that it must not");
    // Control: without the protection, the guest gets the frames of the other one.
    fixture.text("ip link set skep0 type bridge no_linklocal_learn 0");
    send_reserved_frames(&guests[1].name, &mac);
    assert!((0..ATTEMPTS).any(|_| is_at(&other.name)));

    network.close().await.unwrap();
}

/// Whether a frame with the canary has arrived at a tap.
fn has_arrived(tap: &Tap) -> bool {
    let mut frames = File::from(tap.fd.try_clone().unwrap());
    rustix::fs::fcntl_setfl(&frames, rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut frame = [0; 4096];
    let mut arrived = false;
    while let Ok(length) = frames.read(&mut frame) {
        arrived |= frame[..length].windows(6).any(|part| part == b"canary");
    }
    arrived
}

#[tokio::test]
async fn frames_to_a_guest_that_was_silent_for_long_reach_no_other() {
    let (fixture, network) = Fixture::new("silent").await;
    let [silent, other] = [network.add_tap().await.unwrap(), network.add_tap().await.unwrap()];
    let port = &silent.port;
    let mac = port.mac.map(|byte| format!("{byte:02x}")).join(":");
    // The host knows the guest, which has sent no frame.
    fixture.text(&format!("ip neigh replace {} lladdr {mac} dev skep0", port.ip));
    let send = || fixture.text(&format!("bash -c 'echo canary > /dev/udp/{}/9'", port.ip));

    send();
    assert!(has_arrived(&silent) && !has_arrived(&other));
    // Control: with what the bridge knows by itself.
    for name in [&port.name, &other.port.name] {
        fixture.text(&format!("ip link set {name} type bridge_slave flood on"));
    }
    fixture.text(&format!("bridge fdb del {mac} dev {} master", port.name));
    send();
    assert!(has_arrived(&silent) && has_arrived(&other));

    // A network that is taken over has what an earlier release has not set.
    let (subnet, known) = (network.subnet(), KnownAddress { ip: port.ip, admitted: false, egress: false });
    let known = vec![known, KnownAddress { ip: other.port.ip, ..known }];
    drop(network);
    let (network, _ports) = Network::adopt(&fixture.name, subnet, known).await.unwrap();
    send();
    assert!(has_arrived(&silent) && !has_arrived(&other));
    network.close().await.unwrap();
}

/// Opens this many connections to addresses outside the subnet and drops the answers, so that they stay half open.
fn half_open(guest: &str, connections: u32) {
    let drop_answers = "nft 'table inet t { chain c { type filter hook input priority 0; tcp flags & (syn | ack) == (syn | ack) drop; }; }'";
    // The SYN is sent even though the socket is closed at once. The destinations vary so that source ports do not run out.
    let script = format!(
        "import socket\n\
         for number in range({connections}):\n\
         \x20s=socket.socket()\n\
         \x20s.setblocking(False)\n\
         \x20try: s.connect((f'203.0.113.{{number%250+1}}',1000+number%250))\n\
         \x20except BlockingIOError: pass\n\
         \x20s.close()\n"
    );
    let command = format!("{drop_answers} && python3 -c \"{script}\"");
    let status = Command::new("ip").args(["netns", "exec", guest, "sh", "-c", &command]).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn half_open_connections_of_a_guest_are_limited_and_leave_others_alone() {
    let (fixture, network) = Fixture::new("half-open").await;
    let listeners = network.listen_for_egress().await.unwrap();
    let [first, second] = [network.add_tap().await.unwrap(), network.add_tap().await.unwrap()];
    let [flooding, other] = [first.port.clone(), second.port.clone()];
    let guests = [Guest::new(&fixture, first), Guest::new(&fixture, second)];
    for (port, guest) in [(&flooding, &guests[0]), (&other, &guests[1])] {
        network.set_egress(port.clone(), true).await.unwrap();
        guest.ip("route add default via 10.99.0.1");
    }
    let tracked = || -> u32 {
        let entries = fixture.text("cat /proc/net/nf_conntrack");
        // The kernel also keeps closed connections for a few seconds; they do not count.
        let half_open =
            |line: &&str| line.contains(" SYN_") && line.contains(&format!("src={} ", flooding.ip));
        entries.lines().filter(half_open).count() as u32
    };
    // Resolve the MAC address of the gateway first: the kernel drops packets of a flood while ARP is pending.
    assert!(reaches_port_at_last(&guests[0].name, "203.0.113.1", 443));
    half_open(&guests[0].name, 5_000);
    let kept = tracked();
    assert!((3_000..=4_096).contains(&kept), "{kept} connections are tracked");
    assert!(reaches_port_at_last(&guests[1].name, "203.0.113.1", 443), "another guest is cut off");
    // Control: without the limit all of them are tracked.
    fixture.text("nft flush chain inet skep connection_limit");
    half_open(&guests[0].name, 5_000);
    assert!(tracked() > 4_096, "{} connections are tracked", tracked());

    drop(listeners);
    network.close().await.unwrap();
}

#[tokio::test]
async fn calls_of_the_api_and_dns_queries_are_not_tracked() {
    let (fixture, network) = Fixture::new("untracked").await;
    let _api = network.listen().await.unwrap();
    let listeners = network.listen_for_egress().await.unwrap();
    let dns = UdpSocket::from(listeners.dns_udp);
    dns.set_nonblocking(false).unwrap();
    dns.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let tap = network.add_tap().await.unwrap();
    let port = tap.port.clone();
    let guest = Guest::new(&fixture, tap);
    network.admit(port.clone()).await.unwrap();
    network.set_egress(port.clone(), true).await.unwrap();
    guest.ip("route add default via 10.99.0.1");
    let is_tracked = |protocol: &str, to: u16| {
        let entries = fixture.text("cat /proc/net/nf_conntrack");
        let (from, to) = (format!("src={} ", port.ip), format!(" dport={to} "));
        entries.lines().any(|line| line.contains(protocol) && line.contains(&from) && line.contains(&to))
    };
    let query = "import socket\n\
                 s=socket.socket(type=socket.SOCK_DGRAM)\n\
                 s.sendto(b'x', ('10.99.0.1', 53))\n\
                 s.recv(1)";
    let tracks_query = || {
        let mut guest_program = Command::new("ip");
        guest_program.args(["netns", "exec", &guest.name, "timeout", "60", "python3", "-c", query]);
        let asking = std::thread::spawn(move || guest_program.status().unwrap());
        let mut datagram = [0; 1];
        let (_, from) = dns.recv_from(&mut datagram).unwrap();
        dns.send_to(&datagram, from).unwrap();
        assert!(asking.join().unwrap().success());
        is_tracked("udp", 53)
    };
    // The table is read at once, because the kernel removes a refused connection from it after some seconds.
    let tracks = |to: &str, port: u16| {
        assert!(reaches_port_at_last(&guest.name, to, port), "{to}:{port}");
        is_tracked("tcp", port)
    };
    let gateway = "10.99.0.1";
    assert!(!tracks_query() && !tracks(gateway, 53) && !tracks(gateway, API_PORT));
    // Control: connections to the outside are tracked, and without the rules all of them are.
    assert!((0..ATTEMPTS).any(|_| tracks("203.0.113.1", 443)));
    fixture.text("nft flush chain inet skep requests && nft flush chain inet skep answers");
    for port in [53, API_PORT] {
        assert!((0..ATTEMPTS).any(|_| tracks(gateway, port)), "{port}");
    }
    assert!((0..ATTEMPTS).any(|_| tracks_query()));

    network.close().await.unwrap();
}
