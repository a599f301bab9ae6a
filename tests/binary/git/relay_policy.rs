//! Which remotes git on the server connects to for a VM: its egress policy, the account's credentials and its `git_relay`
//! decide.

use std::net::SocketAddr;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{git, post, remote::Remote, tokens::serve_tls, write};
use crate::{
    files::fixture::Fixture,
    harness::{Skep, command, output_of, printed, send, temp_dir},
    webhooks::https::Authority,
};

/// Redirects each request to the same path below a URL.
async fn serve_redirects(to: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = redirect(stream, &to).await;
        }
    });
    address
}

async fn redirect(stream: TcpStream, to: &str) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    stream.read_line(&mut first).await?;
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 302 Found\r\nLocation: {to}{path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await
}

/// Whether somebody has connected to this server since the last call.
fn has_connection(server: &std::net::TcpListener) -> bool {
    server.accept().is_ok()
}

/// A VM of a server that may connect to git hosts on loopback.
struct RelayTest<'a> {
    skep: &'a Skep,
    vm: u64,
    fixture: Fixture<'a>,
}

impl RelayTest<'_> {
    async fn set_policy(&self, policy: &Value) {
        let request = self.skep.request(Method::PATCH, &format!("/api/swarm/vm/{}", self.vm));
        send(request.json(&json!({"egress": policy}))).await.ok(200);
    }

    /// Permits these ports of loopback.
    async fn permit(&self, ports: &[u16]) {
        self.set_policy(&json!({"allow": ["127.0.0.1"], "ports": ports})).await;
    }

    async fn set_git_relay(&self, remotes: &str) {
        let account = self.skep.get("/api/whoami").await.ok(200)["account"]["id"].clone();
        let path = format!("/api/accounts/{}", account.as_str().unwrap());
        let request = self.skep.request(Method::PATCH, &path).json(&json!({"git_relay": remotes}));
        assert_eq!(send(request).await.ok(200)["git_relay"], remotes);
    }

    /// Asserts that an operation is refused by the policy, for a remote at this port.
    async fn is_refused(&self, verb: &str, body: Value, port: u16) {
        let answer = self.fixture.post(&format!("/api/git/{verb}"), &body).await;
        let message = answer.refused(403, "remote_forbidden");
        let target =
            format!("is at 127.0.0.1, port {port}, which the egress policy of the VM does not permit");
        for words in [&target, "the VM's `egress`", "`git_relay: \"any\"`"] {
            assert!(message.contains(words), "{verb}: {words}: {message}");
        }
    }

    async fn clone_is_refused(&self, url: &str, port: u16) {
        self.is_refused("clone", json!({"url": url, "path": self.fixture.at("refused")}), port).await;
    }

    async fn clone(&self, url: &str, name: &str) {
        post(&self.fixture, "clone", json!({"url": url, "path": name}), 201).await;
    }

    /// The verdicts, ports and reasons of the report.
    async fn tries(&self) -> Vec<(String, u64, String)> {
        let report = self.skep.get(&format!("/api/swarm/vm/{}/egress", self.vm)).await.ok(200);
        let tries = report["tries"].as_array().unwrap().iter();
        let refused = tries.clone().filter(|tried| tried["verdict"] == "refused").count();
        assert_eq!(report["refused"], refused, "{report}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        tries
            .map(|tried| {
                let by_git = (&tried["git_relay"], &tried["address"], &tried["name"]);
                assert_eq!(by_git, (&json!(true), &json!("127.0.0.1"), &Value::Null), "{report}");
                (text(&tried["verdict"]), tried["port"].as_u64().unwrap(), text(&tried["reason"]))
            })
            .collect()
    }
}

#[tokio::test]
async fn git_connects_for_a_vm_to_what_its_policy_permits_only() {
    let remote = Remote::start();
    let plain: SocketAddr = remote.address();
    let authority = Authority::new("of git hosts");
    let (_folder, trusted) = authority.file();
    let skep = Skep::start_as(temp_dir(), |command| {
        command.args(["--git-allow", "127.0.0.1"]).env("SSL_CERT_FILE", &trusted);
    })
    .await;
    let vm = skep.boot_one().await;
    let test = RelayTest { skep: &skep, vm, fixture: Fixture::in_vm(&skep, vm).await };
    post(&test.fixture, "init", json!({"path": "work"}), 201).await;
    git(&test.fixture, "work", &format!("remote add origin {}", remote.url)).await;
    write(&test.fixture, "work/file", "one\n").await;
    post(&test.fixture, "add", json!({"path": "work"}), 200).await;
    let first = post(&test.fixture, "commit", json!({"path": "work", "message": "First"}), 201).await;

    // No verb reaches a remote from a VM without a policy.
    let path = json!({"path": test.fixture.at("work"), "branch": "main"});
    test.is_refused("push", path.clone(), plain.port()).await;
    test.is_refused("pull", path.clone(), plain.port()).await;
    test.is_refused("fetch", json!({"path": path["path"]}), plain.port()).await;
    test.clone_is_refused(&remote.url, plain.port()).await;
    assert_eq!(remote.git(&["-C", "x.git", "for-each-ref"]), "", "nothing was pushed");
    let tries = test.tries().await;
    assert_eq!(tries.len(), 4, "{tries:?}");
    for (verdict, port, reason) in &tries {
        assert_eq!((verdict.as_str(), *port), ("refused", u64::from(plain.port())));
        assert!(reason.contains("the egress policy of the VM does not permit"), "{reason}");
    }

    // The control: the policy permits it.
    test.permit(&[plain.port()]).await;
    let pushed = post(&test.fixture, "push", json!({"path": "work", "branch": "main"}), 200).await;
    assert_eq!(pushed["to"], first["commit"]);
    let expected = ("allowed".to_owned(), u64::from(plain.port()), String::new());
    assert_eq!(test.tries().await.last(), Some(&expected));
    let text = printed(&output_of(&mut command(&skep, &["egress", &vm.to_string()])));
    let line = format!(" allowed 127.0.0.1 port {} by git on the server", plain.port());
    assert!(text.lines().any(|printed| printed.ends_with(&line)), "{text}");

    hosts_with_tls(&test, &authority, plain).await;
}

/// Redirects, credentials and `git_relay`.
async fn hosts_with_tls(test: &RelayTest<'_>, authority: &Authority, plain: SocketAddr) {
    let host = serve_tls(authority.for_server("127.0.0.1"), plain).await;
    let url = format!("https://{host}/x.git");
    let redirecting = serve_redirects(format!("https://{host}")).await;
    let redirecting = serve_tls(authority.for_server("127.0.0.1"), redirecting).await;
    let redirected = format!("https://{redirecting}/x.git");
    test.permit(&[redirecting.port()]).await;
    test.clone_is_refused(&url, host.port()).await;
    test.clone_is_refused(&redirected, host.port()).await;
    test.permit(&[redirecting.port(), host.port()]).await;
    test.clone(&redirected, "redirected").await;

    // A host for which the account has a credential, but no other port of it.
    test.set_policy(&json!("none")).await;
    let credential = json!({"host": host.to_string(), "token": "a-token"});
    test.skep.post("/api/git/credentials", &credential).await.ok(201);
    test.clone(&url, "with_credential").await;
    test.clone_is_refused(&redirected, redirecting.port()).await;
    test.clone_is_refused(&format!("http://{plain}/x.git"), plain.port()).await;

    // A server that takes connections and answers nothing would keep git waiting: it is asked only while it is refused.
    let canary = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let port = canary.local_addr().unwrap().port();
    test.clone_is_refused(&format!("https://127.0.0.1:{port}/x.git"), port).await;
    assert!(!has_connection(&canary));
    test.set_git_relay("any").await;
    test.clone(&redirected, "any").await;
    test.set_git_relay("known").await;
    test.clone_is_refused(&redirected, redirecting.port()).await;
}
