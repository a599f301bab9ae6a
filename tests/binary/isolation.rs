//! What a guest cannot reach. Every check has a control that shows that it could fail.

use std::{io::Read, net::SocketAddr};

use serde_json::Value;

use crate::harness::{Skep, connect_in_namespace, eventually, step};

/// Starts a listener in the background that sends the name of the VM.
const LISTEN: &str = "setsid python3 -c '
import socket
server = socket.create_server((\"0.0.0.0\", 8000))
open(\"/run/listens\", \"w\").close()
while True:
    peer, _ = server.accept()
    peer.sendall(socket.gethostname().encode())
    peer.close()
' >/dev/null 2>&1 </dev/null & ";

pub(crate) fn connect(to: &str) -> String {
    connect_within(5, to)
}

/// For a connection that must succeed, which takes longer on a busy machine.
pub(crate) fn connect_within(seconds: u32, to: &str) -> String {
    format!("timeout {seconds} bash -c 'exec 3<>/dev/tcp/{to} && cat <&3'; echo \" code $?\"")
}

fn ip(vm: &Value) -> &str {
    vm["ip"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_sibling_nor_the_host_is_reached_from_inside() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    step("a sibling", a_sibling(&skep, &vms)).await;
    step("the host", the_host(&skep, &vms[1])).await;
}

async fn a_sibling(skep: &Skep, vms: &[Value]) {
    let [server, sibling] = [0, 1].map(|at| vms[at]["pid"].as_u64().unwrap());
    skep.exec(server, LISTEN).await;
    eventually("the listener", async || skep.exec(server, "test -e /run/listens").await["exit_code"] == 0)
        .await;
    let name = skep.output(server, "hostname").await;

    // The control: it is there, for itself and for the namespace.
    let itself = skep.output(server, &connect_within(60, &format!("{}/8000", ip(&vms[0])))).await;
    assert_eq!(itself, format!("{name} code 0"));
    let address: SocketAddr = format!("{}:8000", ip(&vms[0])).parse().unwrap();
    let mut received = String::new();
    connect_in_namespace(&skep.namespace(), address).await.unwrap().read_to_string(&mut received).unwrap();
    assert_eq!(received, name);

    let reached = skep.output(sibling, &connect(&format!("{}/8000", ip(&vms[0])))).await;
    assert!(!reached.contains(&name) && !reached.ends_with("code 0"), "a sibling reached it: {reached}");
}

async fn the_host(skep: &Skep, vm: &Value) {
    let pid = vm["pid"].as_u64().unwrap();
    let gateway = skep.output(pid, "ip route show default | awk '{print $3}'").await;
    assert!(!gateway.is_empty());
    // A canary on the host's side of the bridge; the control connects to it from that side.
    let canary = listener_in_namespace(&skep.namespace(), &gateway).await;
    connect_in_namespace(&skep.namespace(), canary).await.unwrap();
    // The server itself listens on the host's loopback, which is another network.
    let port = skep.url.rsplit(':').next().unwrap();
    let [to_canary, to_server] =
        [format!("{gateway}/{}", canary.port()), format!("{gateway}/{port}")].map(|to| connect(&to));
    let (canary, server) = tokio::join!(skep.output(pid, &to_canary), skep.output(pid, &to_server));
    assert!(!canary.ends_with("code 0"), "the host's side was reached: {canary}");
    assert!(!server.ends_with("code 0"), "the server was reached: {server}");
    assert_eq!(skep.output(pid, "ip -6 addr 2>/dev/null | wc -l").await, "0");
}

pub(crate) async fn listener_in_namespace(namespace: &str, address: &str) -> SocketAddr {
    let namespace = std::fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    let address: SocketAddr = format!("{address}:0").parse().unwrap();
    let listen = move || {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
            .unwrap();
        let listener = std::net::TcpListener::bind(address).unwrap();
        let bound = listener.local_addr().unwrap();
        // It accepts as long as the test's process lives, in that namespace.
        std::thread::spawn(move || listener.incoming().for_each(drop));
        bound
    };
    tokio::task::spawn_blocking(move || std::thread::spawn(listen).join().unwrap()).await.unwrap()
}
