//! Endpoints at addresses that webhooks must not reach.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::Mutex,
};

use serde_json::{Value, json};
use skep_egress::{Lookup, LookupFuture};
use skep_server::WebhookSettings;

use super::{
    all, attempts, options, quick,
    receiver::{Receiver, Reply},
    shared, slow, ticket, until, webhook,
};
use crate::harness::{Options, Skep, refused};

/// Stands for a public address: the operator allows it, in contrast to other loopback addresses.
const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A resolver that answers each list of addresses in turn, and then repeats the last one.
struct ScriptedLookup(Mutex<VecDeque<Vec<IpAddr>>>);

impl Lookup for ScriptedLookup {
    fn look_up<'a>(&'a self, host: &'a str) -> LookupFuture<'a> {
        assert_eq!(host, "hooks.test");
        let mut turns = self.0.lock().unwrap();
        let answer = if turns.len() > 1 { turns.pop_front() } else { turns.front().cloned() };
        Box::pin(async { Ok(answer.unwrap()) })
    }
}

fn with_lookup(allow: &[&str], turns: &[&[IpAddr]]) -> Options {
    let Options { webhooks, .. } = options(allow, quick());
    let lookup = shared(ScriptedLookup(Mutex::new(turns.iter().map(|turn| turn.to_vec()).collect())));
    Options { webhooks: WebhookSettings { lookup, ..webhooks }, ..Options::default() }
}

/// Two endpoints on the same port: one outside, and one inside, to which nothing must be sent.
async fn both() -> (Receiver, Receiver) {
    loop {
        let outside = Receiver::at(SocketAddr::new(OUTSIDE, 0)).await;
        let inside = SocketAddr::new(INSIDE, outside.address.port());
        // The port may be in use at the other address.
        if tokio::net::TcpListener::bind(inside).await.is_ok() {
            return (outside, Receiver::at(inside).await);
        }
    }
}

fn named(receiver: &Receiver) -> String {
    format!("http://hooks.test:{}/hook", receiver.address.port())
}

/// Causes a delivery, and returns it after this number of attempts.
async fn tried(skep: &Skep, made: &Value, times: usize) -> Value {
    let often = |found: &[Value]| !found.is_empty() && attempts(&found[0]).len() >= times;
    until(skep, made, often).await[0].clone()
}

#[tokio::test]
async fn a_name_that_leads_inside_later_is_refused_then() {
    let (outside, inside) = both().await;
    outside.answers([Reply::header(200, "connection", "close")]);
    let skep = Skep::start_with(with_lookup(&["127.0.0.2"], &[&[OUTSIDE], &[INSIDE]])).await;
    let made = webhook(&skep, &named(&outside), &["ticket.created"]).await;
    ticket(&skep, "while it leads outside").await;
    until(&skep, &made, all(1, "delivered")).await;
    ticket(&skep, "when it leads inside").await;
    until(&skep, &made, |found| found.len() == 2).await;
    let delivery = tried(&skep, &made, 3).await;
    for attempt in attempts(&delivery) {
        let error = attempt["error"].as_str().unwrap_or_else(|| panic!("{attempt}"));
        assert!(error.contains("--webhook-allow") && !error.contains("127.0.0"), "{error}");
        assert_eq!(attempt["status"], Value::Null);
    }
    assert_eq!((outside.seen().len(), inside.seen().len()), (1, 0));
    let metrics = skep.get("/metrics").await.text().await.unwrap();
    assert!(!metrics.contains("skep_webhook_attempts_total{outcome=\"refused\"} 0\n"), "{metrics}");
}

#[tokio::test]
async fn a_name_that_leads_to_a_forbidden_address_is_refused() {
    let (outside, _inside) = both().await;
    let reached = with_lookup(&["127.0.0.2"], &[&[OUTSIDE]]);
    let options = Options { egress_deny: vec!["127.0.0.2".to_owned()], ..reached };
    let skep = Skep::start_with(options).await;
    let made = webhook(&skep, &named(&outside), &["ticket.created"]).await;
    ticket(&skep, "to a forbidden address").await;
    let delivery = tried(&skep, &made, 1).await;
    let error = attempts(&delivery)[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("may be reached") && !error.contains("127.0.0"), "{error}");
    assert_eq!(outside.seen().len(), 0);
}

/// The control: the same name, where the operator allows its address.
#[tokio::test]
async fn a_name_that_leads_inside_is_followed_where_the_operator_allows_it() {
    let (outside, inside) = both().await;
    for allow in [&["127.0.0.0/8"][..], &["127.0.0.2", "127.0.0.1"], &["hooks.test"]] {
        let before = (outside.seen().len(), inside.seen().len());
        outside.answers([Reply::header(200, "connection", "close")]);
        inside.answers([Reply::header(200, "connection", "close")]);
        let skep = Skep::start_with(with_lookup(allow, &[&[OUTSIDE], &[INSIDE]])).await;
        let made = webhook(&skep, &named(&outside), &["ticket.created"]).await;
        ticket(&skep, "outside").await;
        until(&skep, &made, all(1, "delivered")).await;
        ticket(&skep, "inside").await;
        until(&skep, &made, all(2, "delivered")).await;
        assert_eq!((outside.seen().len(), inside.seen().len()), (before.0 + 1, before.1 + 1), "{allow:?}");
    }
}

#[tokio::test]
async fn of_many_addresses_only_those_that_were_checked_are_connected_to() {
    let (outside, inside) = both().await;
    drop(outside);
    let address = inside.address;
    // Nothing listens outside: a client that tries the next address would connect inside.
    let skep = Skep::start_with(with_lookup(&["127.0.0.2"], &[&[OUTSIDE, INSIDE]])).await;
    let url = format!("http://hooks.test:{}/hook", address.port());
    let made = webhook(&skep, &url, &["ticket.created"]).await;
    ticket(&skep, "one way only").await;
    tried(&skep, &made, 2).await;
    assert_eq!(inside.seen().len(), 0);
}

#[tokio::test]
async fn a_redirect_inside_is_not_followed() {
    let (outside, inside) = both().await;
    outside.answers([307, 302, 308].map(|status| Reply::header(status, "location", inside.url())));
    // Also where the address is allowed.
    for allow in [&["127.0.0.2"][..], &["127.0.0.0/8"]] {
        let skep = Skep::start_with(options(allow, quick())).await;
        let made = webhook(&skep, &outside.url(), &["ticket.created"]).await;
        ticket(&skep, "led astray").await;
        until(&skep, &made, all(1, "delivered")).await;
        assert_eq!(inside.seen().len(), 0, "{allow:?}");
    }
}

/// An allowed address does not replace the check of the certificate.
#[tokio::test]
async fn https_endpoints_without_a_trusted_certificate_are_sent_nothing() {
    let (listener, read) = impostor().await;
    let skep = Skep::start_with(options(&["127.0.0.1"], quick())).await;
    let made = webhook(&skep, &format!("https://{listener}/hook"), &["ticket.created"]).await;
    ticket(&skep, "for somebody else").await;
    until(&skep, &made, |found| !found.is_empty()).await;
    let delivery = tried(&skep, &made, 2).await;
    let error = attempts(&delivery)[0]["error"].as_str().unwrap();
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(read.load(std::sync::atomic::Ordering::SeqCst), 0, "it received nothing");
}

/// A TLS server with an untrusted certificate, which counts the bytes that it reads after the handshake.
async fn impostor() -> (SocketAddr, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    // Fails in all tests but the first, because the provider is global.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![made.cert.der().clone()], key.into()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(shared(config));
    let listener = tokio::net::TcpListener::bind(SocketAddr::new(INSIDE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let read = shared(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&read);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, counted) = (acceptor.clone(), std::sync::Arc::clone(&counted));
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut bytes).await;
                }
                counted.fetch_add(bytes.len(), std::sync::atomic::Ordering::SeqCst);
            });
        }
    });
    (address, read)
}

#[tokio::test]
async fn an_address_that_is_allowed_no_longer_is_sent_nothing() {
    let (_outside, inside) = both().await;
    let skep = Skep::start_with(options(&["127.0.0.1"], slow())).await;
    let made = webhook(&skep, &inside.url(), &["ticket.created"]).await;
    ticket(&skep, "allowed").await;
    until(&skep, &made, all(1, "delivered")).await;
    let data = skep.end().await;
    let skep = Skep::start_on(data, options(&[], quick())).await;
    ticket(&skep, "not allowed").await;
    until(&skep, &made, |found| found.len() == 2).await;
    let delivery = tried(&skep, &made, 2).await;
    assert!(attempts(&delivery)[0]["error"].as_str().unwrap().contains("127.0.0.1"), "{delivery}");
    assert_eq!(inside.seen().len(), 1);
}

#[tokio::test]
async fn a_webhook_that_could_never_be_sent_is_not_made() {
    let skep = Skep::start().await;
    for (url, word) in [
        ("http://hooks.example.com/", "https"),
        ("https://127.0.0.1/", "public"),
        ("https://2130706433/", "public"),
        ("https://[::ffff:10.0.0.1]/", "public"),
        ("https://169.254.169.254/latest", "public"),
        ("https://user:secret@hooks.example.com/", "password"),
        ("gopher://hooks.example.com/", "https"),
        ("hooks.example.com", "URL"),
    ] {
        let answer = refused(skep.post("/api/webhooks", &json!({"url": url}).to_string()).await).await;
        assert_eq!((answer.status, answer.code.as_str()), (400, "invalid_value"), "{url}");
        assert!(
            answer.message.contains(word) && !answer.message.contains("secret"),
            "{url}: {}",
            answer.message
        );
    }
    let made = webhook(&skep, "https://hooks.example.com/", &["ticket.created"]).await;
    let path = format!("/api/webhooks/{}", super::id(&made));
    let change = skep.request(reqwest::Method::PATCH, &path).json(&json!({"url": "https://10.0.0.1/"}));
    assert_eq!(refused(change.send().await.unwrap()).await.code, "invalid_value");
}

/// [`no_proxy_of_the_environment_is_used`] runs this test in a process whose environment names a proxy.
#[ignore = "another test runs it, with its environment"]
#[tokio::test]
async fn delivers_beside_a_proxy() {
    let (skep, receiver) = (super::start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "direct").await;
    until(&skep, &made, all(1, "delivered")).await;
    // The control: a client that obeys the environment connects to the proxy, which ends the connection.
    let obedient = reqwest::Client::new().post(receiver.url()).body("by the proxy").send().await;
    assert!(obedient.is_err() && receiver.seen().len() == 1);
}

#[test]
fn no_proxy_of_the_environment_is_used() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "webhooks::addresses::delivers_beside_a_proxy", "--ignored"]);
    test.env_remove("no_proxy").env_remove("NO_PROXY");
    for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        test.env(name, &url);
    }
    let connections = std::thread::spawn(move || {
        let (stream, _) = proxy.accept().unwrap();
        drop(stream);
        proxy.set_nonblocking(true).unwrap();
        proxy
    });
    let output = test.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" 1 passed"), "{text}");
    let proxy = connections.join().unwrap();
    assert!(proxy.accept().is_err(), "something but the control connected");
}
