use std::{num::NonZeroU32, sync::Arc};

use skep_api::egress::EgressVerdict;
use skep_egress::Allowlist;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::*;
use crate::{limits::Limits, names::Names, outside::Outside, rules::Rules, vms::Vms};

const VM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// A proxy whose operator allows these addresses.
fn proxy(allow: &[&str]) -> Arc<Proxy> {
    let allow: Vec<String> = allow.iter().map(|&entry| entry.to_owned()).collect();
    let rules = Rules { allow: Allowlist::parse(&allow), ..Rules::default() };
    Arc::new(Proxy {
        vms: Arc::new(Vms::new(Limits { connections: NonZeroU32::new(2).unwrap(), ..Limits::default() })),
        names: Arc::new(Names::open(tempfile::tempfile().unwrap()).unwrap()),
        outside: Outside::new(rules).unwrap(),
        connections: Arc::new(Semaphore::new(10)),
    })
}

/// The VM's end of a connection to this destination.
async fn connect(proxy: &Arc<Proxy>, destination: SocketAddrV4) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let vm = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (guest, _) = listener.accept().await.unwrap();
    let proxy = Arc::clone(proxy);
    tokio::spawn(async move { handle(&proxy, Redirected { guest, source: VM, destination }).await });
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
    proxy.vms.set(VM, EgressPolicy::listing(&["127.0.0.1"]).unwrap());
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
        proxy.vms.set(VM, policy);
        assert_reset(connect(&proxy, destination).await).await;
        assert_eq!(last_reason(&proxy), reason);
    }
    let proxy = proxy(&["198.18.0.0/15"]);
    proxy.vms.set(VM, all);
    assert_reset(connect(&proxy, SocketAddrV4::new([198, 18, 0, 9].into(), 80)).await).await;
    assert_eq!(last_reason(&proxy), "the address stands for no name");
}

#[tokio::test]
async fn a_connection_ends_with_the_policy_that_allowed_it_and_others_stay() {
    let (server, destination) = server().await;
    let (other, elsewhere) = self::server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set(VM, EgressPolicy::All);
    let (vm, mut staying) = (connect(&proxy, destination).await, connect(&proxy, elsewhere).await);
    let (mut outside, _) = server.accept().await.unwrap();
    let (mut outside_elsewhere, _) = other.accept().await.unwrap();
    let ports = serde_json::json!({"allow": ["127.0.0.1"], "ports": [elsewhere.port()]});
    proxy.vms.set(VM, ports.try_into().unwrap());
    assert_reset(vm).await;
    assert_eq!(outside.read(&mut [0; 1]).await.unwrap_or(0), 0);
    staying.write_all(b"x").await.unwrap();
    assert_eq!(outside_elsewhere.read(&mut [0; 1]).await.unwrap(), 1);
    proxy.vms.forget(VM);
    assert_reset(staying).await;
}

#[tokio::test]
async fn first_bytes_must_name_an_allowed_host() {
    let proxy = proxy(&[]);
    proxy.vms.set(VM, EgressPolicy::listing(&["api.test"]).unwrap());
    let vm = proxy.vms.find(VM).unwrap();
    let check = async |parts: &'static [&'static [u8]]| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut guest, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        let write = async {
            for part in parts {
                client.write_all(part).await.unwrap();
                sleep(SILENCE * 2).await;
            }
        };
        let mut first = Vec::new();
        let (checked, ()) = tokio::join!(check_first_bytes(&vm, 80, &mut guest, &mut first), write);
        checked.map_err(|error| error.to_string())
    };
    assert_eq!(check(&[b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n"]).await, Ok(()));
    assert_eq!(check(&[b"SSH-2.0-x\r\n"]).await, Ok(()));
    assert_eq!(check(&[]).await, Ok(()), "a server that speaks first");
    // Also in parts that arrive later than a server that speaks first would be given.
    let other = check(&[b"G", b"ET / HTTP/1.1\r\nHo", b"st: other.test\r\n\r\n"]).await;
    assert_eq!(other.unwrap_err(), "the first bytes name \"other.test\", which the policy does not allow");
    assert!(check(&[b"GET / HTTP/1.1\r\nHo"]).await.is_err());
}

#[tokio::test]
async fn the_connections_of_a_vm_are_limited() {
    let (_server, destination) = server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set(VM, EgressPolicy::All);
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
async fn a_connection_without_bytes_ends_after_the_idle_time() {
    let (server, destination) = server().await;
    let proxy = proxy(&["127.0.0.1"]);
    proxy.vms.set(VM, EgressPolicy::All);
    let mut vm = connect(&proxy, destination).await;
    let (mut outside, _) = server.accept().await.unwrap();
    vm.write_all(b"x").await.unwrap();
    assert_eq!(outside.read(&mut [0; 1]).await.unwrap(), 1);
    // The clock moves only when nothing else happens.
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
    proxy.vms.set(VM, EgressPolicy::All);
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
