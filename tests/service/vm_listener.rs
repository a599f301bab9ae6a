//! The listener of the API for VMs. Loopback addresses stand for those of VMs; the packet filter is tested elsewhere.

use std::{net::IpAddr, time::Duration};

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use skep_api::VmId;
use skep_server::{TrustedProxies, tls::Certificates};
use skep_store::{ChangeAccount, RecordEnd};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    harness::{Options, Refused, Skep, eventually, refused},
    tickets::vms::vm_at,
    transport::tls::certificate,
};

/// How long a test waits for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of connections of one VM.
const MAX_CONNECTIONS: usize = 32;
/// A request without a key, and the beginning of its answer, which does not depend on the store.
const REQUEST: &[u8] = b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n\r\n";
const ANSWERED: &str = "HTTP/1.1 401 Un";

/// The address of the VM whose key is used.
const OWN: &str = "127.0.0.2";
const OTHER: &str = "127.0.0.3";

/// A request to the listener from an address, on a connection of its own.
fn request_from(skep: &Skep, ip: &str, method: Method, path: &str) -> RequestBuilder {
    let client = Client::builder().no_proxy().local_address(ip.parse::<IpAddr>().unwrap());
    client.build().unwrap().request(method, format!("http://{}{path}", skep.vm_address))
}

async fn whoami(skep: &Skep, ip: &str, key: &str) -> Result<Value, Refused> {
    let answer = request_from(skep, ip, Method::GET, "/api/whoami").bearer_auth(key).send().await.unwrap();
    if answer.status() == 200 { Ok(answer.json().await.unwrap()) } else { Err(refused(answer).await) }
}

#[track_caller]
fn is_refused(found: Result<Value, Refused>, status: u16, code: &str) {
    let Err(found) = found else { panic!("it was served") };
    assert_eq!((found.status, found.code.as_str()), (status, code), "{}", found.message);
}

async fn two_vms(skep: &Skep) -> [(VmId, String); 2] {
    [vm_at(skep, 2, OWN.to_owned()).await, vm_at(skep, 3, OTHER.to_owned()).await]
}

#[tokio::test]
async fn only_the_key_of_the_vm_that_calls_counts() {
    let skep = Skep::start().await;
    let [(own, own_key), (_, other_key)] = two_vms(&skep).await;
    assert_eq!(whoami(&skep, OWN, &own_key).await.ok().unwrap()["vm"], json!(own));
    assert!(whoami(&skep, OTHER, &other_key).await.is_ok());
    for (ip, key) in [(OWN, &other_key), (OTHER, &own_key), ("127.0.0.1", &own_key), (OWN, &skep.admin)] {
        is_refused(whoami(&skep, ip, key).await, 403, "vm_key_required");
        // The control: the main listener accepts the key.
        let elsewhere = skep.bare(Method::GET, "/api/whoami").bearer_auth(key).send().await.unwrap();
        assert_eq!(elsewhere.status(), 200);
    }
    let unknown = format!("{}0", &own_key[..own_key.len() - 1]);
    let unknown = if unknown == own_key { format!("{}1", &own_key[..own_key.len() - 1]) } else { unknown };
    is_refused(whoami(&skep, OWN, &unknown).await, 401, "invalid_token");
    let none = request_from(&skep, OWN, Method::GET, "/api/whoami").send().await.unwrap();
    assert_eq!(refused(none).await.code, "missing_token");
    // An unknown path requires a key as well.
    let nothing =
        request_from(&skep, OWN, Method::GET, "/api/nothing").bearer_auth(&skep.admin).send().await.unwrap();
    assert_eq!(refused(nothing).await.code, "vm_key_required");

    let end = RecordEnd {
        vm: own,
        reason: skep_api::swarm::EndReason::Deleted,
        at: jiff::Timestamp::now(),
        request_id: None,
        message: None,
    };
    skep.store.record_end(end).await.unwrap();
    is_refused(whoami(&skep, OWN, &own_key).await, 403, "token_expired");
}

#[tokio::test]
async fn a_session_is_ignored() {
    let skep = Skep::start().await;
    let begun = skep.log_in(&skep.admin).send().await.unwrap();
    let cookie = begun.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let ours =
        |request: RequestBuilder| request.header("cookie", &cookie).header("sec-fetch-site", "same-origin");
    let control = ours(skep.bare(Method::GET, "/api/whoami")).send().await.unwrap();
    assert_eq!(control.status(), 200);
    let refusal =
        refused(ours(request_from(&skep, OWN, Method::GET, "/api/whoami")).send().await.unwrap()).await;
    assert_eq!((refusal.status, refusal.code.as_str()), (401, "missing_token"));
}

#[tokio::test]
async fn health_is_the_only_public_route_for_vms() {
    let skep = Skep::start().await;
    let [(_, key), _] = two_vms(&skep).await;
    // It is refused where a write takes longer than two seconds.
    let health = async || request_from(&skep, OWN, Method::GET, "/api/health").send().await.unwrap().status();
    eventually("the health", async || health().await == 200).await;
    for (method, path) in [
        (Method::GET, "/api/openapi.json"),
        (Method::GET, "/docs"),
        (Method::GET, "/ui/"),
        (Method::GET, "/"),
        (Method::POST, "/api/waitlist"),
    ] {
        let ask =
            |request: RequestBuilder| request.json(&json!({"email": "a@example.com"})).bearer_auth(&key);
        let control = ask(skep.bare(method.clone(), path)).send().await.unwrap();
        assert!(control.status().is_success() || control.status().is_redirection(), "{path}: {control:?}");
        let refusal = refused(ask(request_from(&skep, OWN, method, path)).send().await.unwrap()).await;
        assert_eq!((refusal.status, refusal.code.as_str()), (403, "vm_key_required"), "{path}");
    }
}

#[tokio::test]
async fn the_rules_of_the_other_listener_do_not_hold_there() {
    // The main listener has TLS, proxies, and an account with an allowlist of other addresses.
    let proxies = TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()]);
    let certificates = Certificates::new(&certificate(2100)).unwrap();
    let skep = Skep::start_with(Options { proxies, tls: Some(certificates), ..Options::default() }).await;
    let [(own, own_key), (_, other_key)] = two_vms(&skep).await;
    let change = ChangeAccount {
        account: skep.account.id,
        roots: None,
        allowed_ips: Some(vec!["192.0.2.0/24".to_owned()]),
        egress: None,
        git_relay: None,
        max_vms: None,
        max_memory_mb: None,
        max_paused_vms: None,
        max_disk_mb: None,
    };
    skep.store.change_account(change).await.unwrap();
    let as_other = |request: RequestBuilder| {
        let request = request.header("x-forwarded-for", OTHER).header("x-forwarded-proto", "https");
        request.header("host", "elsewhere.example").header("origin", "https://elsewhere.example")
    };
    let request = |key: &str| as_other(request_from(&skep, OWN, Method::GET, "/api/whoami")).bearer_auth(key);
    let answer: Value = request(&own_key).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["vm"], json!(own), "{answer}");
    let refusal = refused(request(&other_key).send().await.unwrap()).await;
    assert_eq!((refusal.status, refusal.code.as_str()), (403, "vm_key_required"));
}

/// Connects from an address and sends some bytes.
async fn connected(skep: &Skep, ip: &str, bytes: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(skep.vm_address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    stream
}

/// The beginning of an answer; empty where the connection was closed.
async fn beginning(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 15];
    match timeout(TIMEOUT, stream.read_exact(&mut bytes)).await.unwrap() {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[tokio::test]
async fn http_2_is_not_spoken_there() {
    let skep = Skep::start().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    assert_eq!(beginning(&mut connected(&skep, OWN, preface).await).await, "");
    let mut control = TcpStream::connect(skep.address).await.unwrap();
    control.write_all(preface).await.unwrap();
    assert_ne!(beginning(&mut control).await, "");
}

#[tokio::test]
async fn all_vms_together_have_a_limit_of_connections() {
    let mut options = Options::default();
    options.limits.max_vm_connections = 3;
    let skep = Skep::start_with(options).await;
    let mut open = Vec::new();
    for ip in [OWN, OTHER, OTHER] {
        let mut stream = connected(&skep, ip, REQUEST).await;
        assert_eq!(beginning(&mut stream).await, ANSWERED);
        open.push(stream);
    }
    assert_eq!(beginning(&mut connected(&skep, "127.0.0.4", REQUEST).await).await, "");
    assert_eq!(skep.get("/api/whoami").await.status(), 200, "other callers are served");
}

#[tokio::test]
async fn one_vm_takes_no_connections_of_others() {
    let mut options = Options::default();
    // The main listener counts its connections separately.
    options.limits.max_connections = 2;
    let skep = Skep::start_with(options).await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = connected(&skep, OWN, REQUEST).await;
        assert_eq!(beginning(&mut stream).await, ANSWERED);
        open.push(stream);
    }
    assert_eq!(beginning(&mut connected(&skep, OWN, REQUEST).await).await, "");
    assert_eq!(beginning(&mut connected(&skep, OTHER, REQUEST).await).await, ANSWERED);
    assert_eq!(skep.get("/api/whoami").await.status(), 200);
    drop(open);
    // The server notices the closed connection with a delay.
    eventually("a free connection", async || {
        beginning(&mut connected(&skep, OWN, REQUEST).await).await == ANSWERED
    })
    .await;
}
