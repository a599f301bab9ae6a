use std::{num::NonZeroU32, sync::Arc};

use skep_api::egress::EgressVerdict;
use skep_egress::Allowlist;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::*;
use crate::{connector::Connector, first_bytes::tests::client_hello, limits::Limits, names::Names, vms::Vms};

const VM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The rules of an operator who allows these addresses.
fn allowing(allow: &[&str]) -> Rules {
    Rules { allow: Allowlist::parse(allow), ..Rules::default() }
}

/// A proxy whose operator allows these addresses.
fn proxy(allow: &[&str]) -> Arc<Proxy> {
    proxy_with(allowing(allow), Limits { connections: NonZeroU32::new(2).unwrap(), ..Limits::default() })
}

fn proxy_with(rules: Rules, limits: Limits) -> Arc<Proxy> {
    Arc::new(Proxy {
        vms: Arc::new(Vms::new(limits)),
        names: Arc::new(Names::open(tempfile::tempfile().unwrap()).unwrap()),
        connector: Connector::new(rules).unwrap(),
        connections: Arc::new(Semaphore::new(10)),
        large_buffers: Arc::new(Semaphore::new(1)),
    })
}

/// The VM's end of a connection to this destination.
async fn connect(proxy: &Arc<Proxy>, destination: SocketAddrV4) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let vm = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (guest, _) = listener.accept().await.unwrap();
    let proxy = Arc::clone(proxy);
    tokio::spawn(
        async move { handle(&proxy, RedirectedConnection { guest, source: VM, destination }).await },
    );
    vm
}

async fn server() -> (TcpListener, SocketAddrV4) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    (server, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

fn last_reason(proxy: &Proxy) -> String {
    let report = proxy.vms.find(VM).unwrap().report();
    report.tries.last().and_then(|tried| tried.reason.clone()).unwrap_or_default()
}

async fn assert_reset(mut vm: TcpStream) {
    let ended = vm.read(&mut [0; 1]).await;
    assert!(ended.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset), "{ended:?}");
}

#[tokio::test]
async fn bytes_are_copied_in_both_directions_and_one_may_end_first() {
    let (server, destination) = server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set_policy(VM, EgressPolicy::listing(&["127.0.0.1"]).unwrap());
    let mut vm = connect(&proxy, destination).await;
    let (mut outside, _) = server.accept().await.unwrap();
    vm.write_all(b"question").await.unwrap();
    vm.shutdown().await.unwrap();
    let mut text = String::new();
    outside.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question");
    outside.write_all(b"answer").await.unwrap();
    drop(outside);
    text.clear();
    vm.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "answer");
    let report = proxy.vms.find(VM).unwrap().report();
    assert_eq!((report.sent_bytes, report.received_bytes, report.refused), (8, 6, 0));
    assert_eq!(report.tries[0].verdict, EgressVerdict::Allowed);
}

#[tokio::test]
async fn what_a_policy_or_the_operator_forbids_is_reset() {
    let (_server, destination) = server().await;
    let all = EgressPolicy::All;
    for (allow, policy, reason) in [
        (&[][..], all.clone(), "the address is not public"),
        (&["127.0.0.1"], EgressPolicy::listing(&["127.0.0.2"]).unwrap(), "the policy does not allow it"),
        (&["127.0.0.1"], EgressPolicy::None, "the policy does not allow it"),
    ] {
        let proxy = proxy(allow);
        proxy.vms.set_policy(VM, policy);
        assert_reset(connect(&proxy, destination).await).await;
        assert_eq!(last_reason(&proxy), reason);
    }
    let proxy = proxy(&["198.18.0.0/15"]);
    proxy.vms.set_policy(VM, all);
    assert_reset(connect(&proxy, SocketAddrV4::new([198, 18, 0, 9].into(), 80)).await).await;
    assert_eq!(
        last_reason(&proxy),
        "the address is a placeholder address of no name that the VM has looked up"
    );
}

#[tokio::test]
async fn a_connection_ends_with_the_policy_that_allowed_it_and_others_stay() {
    let (server, destination) = server().await;
    let (other, elsewhere) = self::server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set_policy(VM, EgressPolicy::All);
    let (vm, mut staying) = (connect(&proxy, destination).await, connect(&proxy, elsewhere).await);
    let (mut outside, _) = server.accept().await.unwrap();
    let (mut outside_elsewhere, _) = other.accept().await.unwrap();
    let ports = serde_json::json!({"allow": ["127.0.0.1"], "ports": [elsewhere.port()]});
    proxy.vms.set_policy(VM, ports.try_into().unwrap());
    assert_reset(vm).await;
    assert_eq!(outside.read(&mut [0; 1]).await.unwrap_or(0), 0);
    staying.write_all(b"x").await.unwrap();
    assert_eq!(outside_elsewhere.read(&mut [0; 1]).await.unwrap(), 1);
    proxy.vms.forget(VM);
    assert_reset(staying).await;
}

/// A connection of a VM whose policy allows `api.test`: the VM's end, the process's end, and the host's listener.
struct Checked {
    vm: Arc<Vm>,
    rules: Rules,
    client: TcpStream,
    guest: TcpStream,
    listener: TcpListener,
    first: Vec<u8>,
}

impl Checked {
    async fn new() -> Self {
        let proxy = proxy(&[]);
        proxy.vms.set_policy(VM, EgressPolicy::listing(&["api.test"]).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (guest, _) = listener.accept().await.unwrap();
        let vm = proxy.vms.find(VM).unwrap();
        Self { vm, rules: Rules::default(), client, guest, listener, first: Vec::new() }
    }

    /// Runs the check, with the ends of the VM and of the host.
    async fn run(
        &mut self,
        ends: impl AsyncFnOnce(&mut TcpStream, TcpStream),
    ) -> Result<FirstSender, String> {
        let Self { vm, rules, client, guest, listener, first } = self;
        let check = HostCheck { vm, rules, by_name: true, port: 80 };
        let address = listener.local_addr().unwrap();
        let connected = async { TcpStream::connect(address).await.map_err(connector::Error::Unreachable) };
        let idle = Limits::default().idle;
        let checked = connect_and_check(connected, &check, guest, first, idle);
        let act = async {
            let (host, _) = listener.accept().await.unwrap();
            ends(client, host).await;
        };
        let (checked, ()) = tokio::join!(checked, act);
        checked.map(|(_, sender)| sender).map_err(|error| error.to_string())
    }
}

/// A request for a host that the policy of [`Checked`] does not allow.
const OTHER_HOST: &[u8] = b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n";
const OTHER_HOST_REASON: &str = "the first bytes name \"other.test\", which the policy does not allow";

/// Lets timers of this length fire. The clock is paused, so that it moves only when nothing else happens.
async fn pass(time: Duration) {
    tokio::time::pause();
    sleep(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn first_bytes_must_name_an_allowed_host() {
    let check = async |parts: &'static [&'static [u8]]| {
        let write = async |client: &mut TcpStream, _host: TcpStream| {
            for part in parts {
                client.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
        };
        Checked::new().await.run(write).await
    };
    assert_eq!(check(&[b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n"]).await, Ok(FirstSender::Guest));
    assert_eq!(check(&[b"SSH-2.0-x\r\n"]).await, Ok(FirstSender::Guest));
    assert_eq!(check(&[]).await, Ok(FirstSender::Guest), "the end of the stream");
    for other in [
        &[OTHER_HOST][..],
        &[b"G", b"ET / HTTP/1.1\r\nHo", b"st: other.test\r\n\r\n"],
        &[b"GET ", b" / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        &[b"CONNECT other.test:80 HTTP/1.1\r\nHost: api.test\r\n\r\n"],
    ] {
        assert_eq!(check(other).await.unwrap_err(), OTHER_HOST_REASON);
    }
    for unreadable in [&b"GET / HTTP/1.1\r\nHo"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET "] {
        let parts: &'static [&'static [u8]] = Box::leak(Box::new([unreadable]));
        assert_eq!(check(parts).await.unwrap_err(), "the first bytes name no host that can be read");
    }
    for (host, expected) in
        [("api.test", Ok(FirstSender::Guest)), ("other.test", Err(OTHER_HOST_REASON.to_owned()))]
    {
        let hello: &'static [u8] = client_hello(host).leak();
        let (begin, rest) = hello.split_at(20);
        let whole: &'static [&'static [u8]] = Box::leak(Box::new([hello]));
        let pieces: &'static [&'static [u8]] = Box::leak(Box::new([begin, rest]));
        assert_eq!(check(whole).await, expected, "TLS for {host}");
        assert_eq!(check(pieces).await, expected, "TLS for {host}, in pieces");
    }
}

#[tokio::test]
async fn a_vm_that_waits_before_it_names_another_host_is_refused() {
    let mut checked = Checked::new().await;
    let wait_and_ask = async |client: &mut TcpStream, mut host: TcpStream| {
        pass(Duration::from_secs(60)).await;
        client.write_all(OTHER_HOST).await.unwrap();
        assert_eq!(host.read(&mut [0; 1]).await.unwrap_or(0), 0, "the host gets no byte");
    };
    assert_eq!(checked.run(wait_and_ask).await.unwrap_err(), OTHER_HOST_REASON);

    // The control: a host that speaks first, however late.
    let mut checked = Checked::new().await;
    let greet = async |_: &mut TcpStream, mut host: TcpStream| {
        pass(Duration::from_secs(60)).await;
        host.write_all(b"220 ready\r\n").await.unwrap();
    };
    assert!(checked.run(greet).await.is_ok_and(|sender| sender == FirstSender::Host));
}

#[tokio::test]
async fn a_connection_whose_ends_say_nothing_ends() {
    let hang_up = async |_: &mut TcpStream, host: TcpStream| drop(host);
    assert_eq!(Checked::new().await.run(hang_up).await, Ok(FirstSender::Nobody));
    let wait = async |_: &mut TcpStream, _host: TcpStream| pass(Limits::default().idle * 2).await;
    assert_eq!(Checked::new().await.run(wait).await, Ok(FirstSender::Nobody));
}

#[tokio::test]
async fn a_vm_whose_first_line_never_ends_is_refused() {
    let begin = async |client: &mut TcpStream, mut host: TcpStream| {
        client.write_all(b"GET /").await.unwrap();
        pass(FIRST_BYTES_TIMEOUT * 2).await;
        // Also if the host speaks: the VM spoke first.
        let _ = host.write_all(b"x").await;
    };
    let refused = Checked::new().await.run(begin).await;
    assert_eq!(refused.unwrap_err(), "the first bytes name no host that can be read");
}

#[tokio::test]
async fn a_host_that_the_operator_forbids_is_refused_by_its_name_also_under_all() {
    let (server, destination) = server().await;
    let list = |entry: &str| Allowlist::parse(&[entry]);
    let rules = Rules { allow: list("127.0.0.1"), deny: list("other.test"), ..Rules::default() };
    let proxy = proxy_with(rules, Limits::default());
    for policy in [EgressPolicy::All, EgressPolicy::listing(&["127.0.0.1"]).unwrap()] {
        proxy.vms.set_policy(VM, policy);
        let mut vm = connect(&proxy, destination).await;
        vm.write_all(OTHER_HOST).await.unwrap();
        assert_reset(vm).await;
        assert_eq!(last_reason(&proxy), "the first bytes name \"other.test\", which the operator forbids");
        let (refused, _) = server.accept().await.unwrap();
        drop(refused);
        // The controls: another host, and a host that speaks first.
        let mut vm = connect(&proxy, destination).await;
        vm.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await.unwrap();
        let (mut outside, _) = server.accept().await.unwrap();
        assert_eq!(outside.read(&mut [0; 3]).await.unwrap(), 3);
        drop((vm, outside));
        let mut vm = connect(&proxy, destination).await;
        let (mut outside, _) = server.accept().await.unwrap();
        outside.write_all(b"220 ready\r\n").await.unwrap();
        assert_eq!(vm.read(&mut [0; 20]).await.unwrap(), 11);
        vm.write_all(OTHER_HOST).await.unwrap();
        assert_eq!(outside.read(&mut [0; 3]).await.unwrap(), 3);
    }
}

#[test]
fn the_reason_of_a_refusal_has_little_of_a_guest_and_visible_ascii_only() {
    let guest = "\u{10fffd}\u{1b}[2J\"".repeat(100);
    let Outcome::Refused(_, reason) = Error::OtherHost(shown(&guest)).outcome() else { panic!() };
    assert!(reason.len() < 200 && reason.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{reason}");
    assert!(serde_json::to_string(&reason).unwrap().len() < 300, "{reason}");
}

#[tokio::test]
async fn the_connections_of_a_vm_are_limited() {
    let (_server, destination) = server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set_policy(VM, EgressPolicy::All);
    let vm = proxy.vms.find(VM).unwrap();
    let taken = Arc::clone(&vm.connections).acquire_many_owned(2).await.unwrap();
    assert_reset(connect(&proxy, destination).await).await;
    assert_eq!(last_reason(&proxy), "the VM has too many connections");
    drop(taken);
    let mut open = connect(&proxy, destination).await;
    open.write_all(b"x").await.unwrap();
    while vm.report().tries.last().is_none_or(|tried| tried.verdict != EgressVerdict::Allowed) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_vm_opens_five_times_the_new_connections_of_a_second_at_once_and_no_more() {
    let (_server, destination) = server().await;
    let limits = Limits { new_connections: NonZeroU32::MIN, ..Limits::default() };
    let proxy = proxy_with(allowing(&["127.0.0.1"]), limits);
    proxy.vms.set_policy(VM, EgressPolicy::All);
    let vm = proxy.vms.find(VM).unwrap();
    let mut opened = Vec::new();
    while vm.report().refused == 0 {
        assert!(opened.len() < 50, "no connection is refused");
        opened.push(connect(&proxy, destination).await);
        while vm.report().tries.len() < opened.len() {
            tokio::task::yield_now().await;
        }
    }
    // This is a lower bound, because each second that passes allows one more connection.
    assert!(opened.len() > 5, "connection {} is refused", opened.len());
    assert_eq!(last_reason(&proxy), "the VM opens too many connections at a time");
    assert_reset(opened.pop().unwrap()).await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_of_all_vms_waits_for_the_end_of_another() {
    let proxy = proxy(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let others = Arc::clone(&proxy.connections).acquire_many_owned(10).await.unwrap();
    tokio::spawn(proxy.serve(listener));
    let mut vm = TcpStream::connect(address).await.unwrap();
    // The paused clock advances only when all tasks are idle.
    tokio::time::pause();
    let ended = timeout(Duration::from_secs(60), vm.read(&mut [0; 1])).await;
    assert!(ended.is_err(), "it is not accepted: {ended:?}");
    tokio::time::resume();
    drop(others);
    // No packet filter redirected this connection, so it is reset as soon as it is accepted.
    assert_reset(vm).await;
}

/// Sends 2 MB and closes the stream. Returns the elapsed time of the paused clock, which advances only when all tasks are
/// idle.
async fn send_2_mb(from: &mut TcpStream, to: &mut TcpStream) -> Duration {
    let bytes = vec![0; 2_000_000];
    from.set_nodelay(true).unwrap();
    let begun = Instant::now();
    let send = async {
        from.write_all(&bytes).await.unwrap();
        from.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let (read, ()) = tokio::join!(to.read_to_end(&mut received), send);
    assert_eq!(read.unwrap(), bytes.len());
    begun.elapsed()
}

#[tokio::test]
async fn the_bytes_of_a_vm_take_the_time_of_its_rate_in_each_direction() {
    let (server, destination) = server().await;
    let limits = Limits { mbit: NonZeroU32::new(8).unwrap(), ..Limits::default() };
    let proxy = proxy_with(allowing(&["127.0.0.1"]), limits);
    proxy.vms.set_policy(VM, EgressPolicy::All);
    let mut vm = connect(&proxy, destination).await;
    let (mut outside, _) = server.accept().await.unwrap();
    tokio::time::pause();
    // The rate is 1 MB per second. The burst and the last buffer do not wait.
    let least = Duration::from_millis(1_700);
    let sent = send_2_mb(&mut vm, &mut outside).await;
    assert!(sent >= least, "{sent:?}");
    let received = send_2_mb(&mut outside, &mut vm).await;
    assert!(received >= least, "{received:?}");
}

#[tokio::test]
async fn a_connection_without_bytes_ends_after_the_idle_time() {
    let (server, destination) = server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set_policy(VM, EgressPolicy::All);
    let mut vm = connect(&proxy, destination).await;
    let (mut outside, _) = server.accept().await.unwrap();
    vm.write_all(b"x").await.unwrap();
    assert_eq!(outside.read(&mut [0; 1]).await.unwrap(), 1);
    // The paused clock advances only when all tasks are idle.
    tokio::time::pause();
    let (begun, idle) = (Instant::now(), Limits::default().idle);
    assert_eq!(outside.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(vm.read(&mut [0; 1]).await.unwrap(), 0);
    // A look each idle time finds that no bytes moved since the look before.
    assert!((idle / 2..idle * 3).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_peer_that_never_reads_holds_few_bytes_and_ends_after_the_idle_time() {
    /// More than what sockets of both sides buffer, which the kernel lets grow to some MiB each.
    const MAX_BUFFERED: usize = 64 << 20;
    let (server, destination) = server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set_policy(VM, EgressPolicy::All);
    let mut vm = connect(&proxy, destination).await;
    let (_outside, _) = server.accept().await.unwrap();
    let chunk = vec![0; 64 << 10];
    let mut written = 0;
    while let Ok(sent) = tokio::time::timeout(Duration::from_secs(1), vm.write(&chunk)).await {
        written += sent.unwrap();
        assert!(written < MAX_BUFFERED);
    }
    tokio::time::pause();
    let mut byte = [0; 1];
    assert_eq!(vm.read(&mut byte).await.unwrap_or(0), 0, "the connection ends");
}
