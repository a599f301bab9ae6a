//! Tokens of git hosts: the server pushes and pulls for VMs with them, and they never enter a VM.

use std::{net::SocketAddr, process::Command, sync::Arc};

use data_encoding::BASE64;
use rustls::ServerConfig;
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::{git, post, remote::Remote, write};
use crate::{files::fixture::Fixture, harness::Skep, webhooks::https::Authority};

const TOKEN: &str = "the-token-that-no-vm-may-have";
/// Content that was written in the VM, and is therefore in its memory.
const CONTENT: &str = "the-content-that-the-vm-has-written";

/// Prints which of the words are in the memory of a process. The memory of a VMM includes that of its guest.
const SEARCH: &str = r#"
import sys
pid, words, found = sys.argv[1], sys.argv[2:], set()
with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
    for line in maps:
        span, rights = line.split()[:2]
        first, end = (int(address, 16) for address in span.split("-"))
        if rights.startswith("rw"):
            memory.seek(first)
            try:
                content = memory.read(end - first)
            except OSError:
                continue
            found.update(word for word in words if word.encode() in content)
print(*sorted(found))
"#;

fn found_in_memory(vmm: u64, words: &[&str]) -> String {
    let mut python = Command::new("python3");
    let output = python.args(["-c", SEARCH, &vmm.to_string()]).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Starts a TLS proxy for a plain server. Returns the address of the proxy.
pub(super) async fn serve_tls(config: ServerConfig, plain: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(plain).await?;
                copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    address
}

/// Asserts that pushes, pulls and clones with a token leave none in the VM. The repository is the only one in /root, so that
/// push and pull need no path.
pub(super) async fn never_enter_a_vm(skep: &Skep, vm: u64, authority: &Authority) {
    let authorization = format!("Basic {}", BASE64.encode(format!("x-access-token:{TOKEN}").as_bytes()));
    let remote = Remote::start_with(&[&authorization]);
    let host = serve_tls(authority.for_server("127.0.0.1"), remote.address()).await;
    let home = Fixture { skep, vm: Some(vm), dir: "/root".to_owned() };
    post(&home, "init", json!({"path": "guarded"}), 201).await;
    git(&home, "guarded", &format!("remote add origin https://{host}/x.git")).await;
    write(&home, "guarded/file", CONTENT).await;
    post(&home, "add", json!({"path": "guarded"}), 200).await;
    let first = post(&home, "commit", json!({"path": "guarded", "message": "First"}), 201).await;
    // The control: the host refuses requests without the token.
    let push = json!({"set_upstream": true});
    home.post("/api/git/push", &push).await.refused(409, "remote_failed");
    let credential = json!({"host": host.to_string(), "token": TOKEN});
    skep.post("/api/git/credentials", &credential).await.ok(201);
    assert_eq!(post(&home, "push", push, 200).await["to"], first["commit"]);
    assert_eq!(remote.git(&["-C", "x.git", "rev-parse", "main"]), first["commit"].as_str().unwrap());
    let theirs = remote.commit("theirs", "theirs");
    assert_eq!(post(&home, "pull", json!({}), 200).await["to"], json!(theirs));
    let cloned = json!({"url": format!("https://{host}/x.git"), "path": "suite/guarded"});
    assert_eq!(post(&home, "clone", cloned, 201).await["head"], json!(theirs));

    assert_eq!(found_in_memory(vm, &[TOKEN, &authorization, CONTENT]), CONTENT);
    let files = |word: &str| format!("grep -rlsF -e {word} /root /run /tmp /etc | sort");
    assert_eq!(home.shell(&files(TOKEN)).await, "");
    let of_content = home.shell(&files(CONTENT)).await;
    assert_eq!(of_content, "/root/guarded/file\n/root/suite/guarded/file", "the control");
}
