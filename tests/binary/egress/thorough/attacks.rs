//! What a guest tries to reach a forbidden host, each with its control.

use std::process::Command;

use serde_json::{Value, json};
use skep_harness::temp_dir;

use super::egress_process;
use crate::{
    egress::{
        OPTIONS, assert_policies, boot, closed::OTHER_RESOLVER, fetch, is_refusal, policy, python,
        world::World,
    },
    harness::Skep,
};

/// Sends a TLS ClientHello, whose server name is the first argument, to port 8000 of the second one, in pieces of so many
/// bytes, and prints what happened. The server speaks no TLS, so that it answers with an error of HTTP.
const HELLO: &str = r#"
import socket, ssl, sys, time
name, target, piece = sys.argv[1], sys.argv[2], int(sys.argv[3])
coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = ssl.create_default_context().wrap_bio(coming, going, server_hostname=name)
try:
    tls.do_handshake()
except ssl.SSLWantReadError:
    hello = going.read()
try:
    connection = socket.create_connection((target, 8000), 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(hello), piece):
        connection.sendall(hello[at:at + piece])
        time.sleep(0.02)
    connection.sendall(b"\r\n\r\n")
    print("answered" if connection.recv(100) else "ended")
except OSError as error:
    print("refused" if isinstance(error, (ConnectionResetError, BrokenPipeError)) else error)
"#;

/// Sends requests to port 80 of `api.test` in pieces with pauses of a second, and prints what happened to each.
const PIECES: &str = r#"
import socket, time
front = "GET / HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"
attacks = [["", front], ["GET ", front[3:]], ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], [front.replace(" ", "\t", 1)]]
control = ["", "GET ", front[3:].replace("other.test", "api.test")]
for pieces in attacks + [control]:
    try:
        connection = socket.create_connection(("api.test", 80), 20)
        for piece in pieces:
            connection.sendall(piece.encode())
            time.sleep(1)
        print("answered" if connection.recv(100) else "ended")
    except OSError as error:
        print("refused" if isinstance(error, (ConnectionResetError, BrokenPipeError)) else error)
"#;

/// Fills the list of tries with refusals whose reasons have as many bytes as a guest can cause.
const LARGE_REASONS: &str = r#"
import socket
request = "GET / HTTP/1.1\r\nHost: " + chr(0x10fffd) * 64 + "\r\n\r\n"
for i in range(100):
    connection = socket.create_connection(("api.test", 80), 20)
    try:
        connection.sendall(request.encode())
        connection.recv(1)
    except OSError:
        pass
    connection.close()
"#;

#[test]
fn a_guest_that_hides_the_host_is_refused() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let [listed, other, all] = [
            boot(&skep, policy()).await,
            boot(&skep, json!({"allow": ["b.test"]})).await,
            boot(&skep, json!("all")).await,
        ];
        // The server name of a ClientHello, whole and in pieces that arrive late. The control: the name of the address.
        for piece in ["10000", "40"] {
            let hello =
                async |vm, name: &str| python(&skep, vm, HELLO, &format!("{name} api.test {piece}")).await;
            assert_eq!(hello(listed, "other.test").await, "refused", "{piece}");
            assert_eq!(hello(listed, "api.test").await, "answered", "{piece}");
        }
        // Requests that are begun late, split where no parser can tell what follows, or of another version of HTTP.
        let outcomes = python(&skep, listed, PIECES, "").await;
        assert_eq!(outcomes, "refused\nrefused\nrefused\nrefused\nanswered");
        // A report that would be too large for the keeper. The control: the process answers, and was not replaced.
        let process = egress_process(&skep);
        python(&skep, listed, LARGE_REASONS, "").await;
        let report = skep.get(&format!("/api/swarm/vm/{listed}/egress")).await.ok(200);
        let newest = report["tries"].as_array().unwrap().last().unwrap();
        assert!(
            newest["reason"].as_str().unwrap().starts_with("the first bytes name \"\\u{10fffd}"),
            "{newest}"
        );
        assert_eq!(egress_process(&skep), process);
        // The placeholder address of a name of another VM's policy. The control: the VM whose policy has the name.
        let address = skep.output(listed, "getent ahostsv4 api.test | head -n 1 | cut -d ' ' -f 1").await;
        let url = format!("-H 'Host: api.test' http://{}/", address.trim());
        assert!(address.starts_with("198.18.") || address.starts_with("198.19."), "{address}");
        assert_eq!(fetch(&skep, listed, &url).await.as_deref(), Ok("world api.test"));
        assert!(is_refusal(&fetch(&skep, other, &url).await));
        assert_other_resolvers_open_nothing(&skep, listed, all).await;
    });
}

/// Asserts that a VM reaches a name server only as any other host, and no further host by what it answers. The control is
/// a VM that may reach all hosts.
async fn assert_other_resolvers_open_nothing(skep: &Skep, listed: u64, all: u64) {
    // Never over UDP; over TCP by a policy that allows its address.
    assert_eq!(python(skep, listed, OTHER_RESOLVER, "203.0.113.53").await, "False False");
    assert_eq!(python(skep, all, OTHER_RESOLVER, "203.0.113.53").await, "False True");
    // Over HTTP, by an allowed host that resolves names, and by another one.
    let asked = fetch(skep, listed, "http://api.test/dns-query?name=other.test").await;
    assert_eq!(asked.as_deref(), Ok("203.0.113.7"));
    let connect = "--resolve other.test:80:203.0.113.7 http://other.test/";
    assert!(is_refusal(&fetch(skep, listed, connect).await));
    assert_eq!(fetch(skep, all, connect).await.as_deref(), Ok("world other.test"));
    let ask_another = "http://other.test/dns-query?name=b.test";
    assert!(is_refusal(&fetch(skep, listed, ask_another).await));
    assert_eq!(fetch(skep, all, ask_another).await.as_deref(), Ok("203.0.113.7"));
}

/// What the packet filter, the routes and the settings of the machine are, as a text to compare.
fn rules_of_machine() -> String {
    let commands = [
        &["nft", "list", "ruleset"][..],
        &["ip", "-4", "route", "show", "table", "all"],
        &["ip", "rule"],
        &["sysctl", "net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"],
    ];
    commands.map(output).join("\n")
}

fn output(command: &[&str]) -> String {
    let done = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Drops whatever the machine forwards, as the rules of Docker and of many administrators do.
const FORWARD_DROP: &str =
    "add table ip test; add chain ip test forward { type filter hook forward priority 0; policy drop; }";

#[test]
fn the_rules_of_the_machine_do_not_matter_and_are_left_alone() {
    World::run(async || {
        output(&["nft", FORWARD_DROP]);
        for through_ip_rules in ["1", "0"] {
            output(&["sysctl", "-w", &format!("net.bridge.bridge-nf-call-iptables={through_ip_rules}")]);
            let before = rules_of_machine();
            let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
            let policies: [Value; 3] = [policy(), json!("all"), json!("none")];
            let mut vms = [0; 3];
            for (vm, policy) in vms.iter_mut().zip(policies) {
                *vm = boot(&skep, policy).await;
            }
            assert_policies(&skep, vms).await;
            assert_eq!(rules_of_machine(), before);
            drop(skep);
        }
    });
}
