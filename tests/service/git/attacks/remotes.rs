//! Settings of a remote, and of the transport to it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{attack, set};

#[tokio::test]
async fn no_setting_of_a_remote_starts_a_program() {
    attack("uploadpack", |path, canary| set(path, "remote.origin.uploadpack", &canary.deaf), &[&["fetch"]])
        .await;
    attack(
        "receivepack",
        |path, canary| set(path, "remote.origin.receivepack", &canary.deaf),
        &[&["push", "origin", "HEAD:x"]],
    )
    .await;
    attack(
        "sshCommand",
        |path, canary| {
            set(path, "core.sshCommand", &canary.deaf);
            set(path, "remote.origin.url", "ssh://127.0.0.1:1/x");
        },
        &[&["fetch"]],
    )
    .await;
    attack(
        "ext",
        |path, canary| {
            set(path, "protocol.allow", "always");
            set(path, "protocol.ext.allow", "always");
            set(path, "remote.origin.url", &format!("ext::{}", canary.deaf));
        },
        &[&["fetch"]],
    )
    .await;
    attack(
        "insteadOf",
        |path, canary| {
            set(path, "protocol.ext.allow", "always");
            set(path, &format!("url.ext::{} .insteadOf", canary.deaf), "/");
        },
        &[&["fetch"]],
    )
    .await;
    attack(
        "alternateRefsCommand",
        |path, canary| {
            let remote = Path::new(path).parent().unwrap().join("remote.git");
            set(remote.to_str().unwrap(), "core.alternateRefsCommand", &canary.deaf);
            let borrowed = Path::new(path).parent().unwrap().join("elsewhere/.git/objects");
            fs::write(remote.join("objects/info/alternates"), format!("{}\n", borrowed.display())).unwrap();
        },
        &[&["push", "-f", "origin", "HEAD:refs/heads/control"]],
    )
    .await;
}

/// The URL of a remote that asks each request for a password, and the number of its requests. The remote runs in threads,
/// which end with the process, because the controls block the runtime.
fn remote_with_password() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x.git", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let requests = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let requests = Arc::clone(&requests);
            std::thread::spawn(move || ask_for_password(stream, &requests));
        }
    });
    (url, asked)
}

fn ask_for_password(mut stream: TcpStream, requests: &AtomicUsize) {
    let head = BufReader::new(&stream).lines().map_while(Result::ok);
    if head.take_while(|line| !line.is_empty()).count() == 0 {
        return;
    }
    requests.fetch_add(1, Ordering::SeqCst);
    let answer = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=x\r\n\
                  content-length: 0\r\nconnection: close\r\n\r\n";
    // The write fails if git has closed the connection.
    let _ = stream.write_all(answer.as_bytes());
}

#[tokio::test]
async fn no_setting_for_passwords_starts_a_program() {
    let (url, asked) = remote_with_password();
    let of_host = format!("credential.{}.helper", url.replace("/x.git", ""));
    for key in ["core.askPass", "credential.helper", &of_host] {
        let before = asked.load(Ordering::SeqCst);
        attack(
            key,
            |path, canary| {
                set(path, key, &canary.deaf);
                set(path, "remote.origin.url", &url);
            },
            &[&["fetch"]],
        )
        .await;
        let requests = asked.load(Ordering::SeqCst) - before;
        // Both callers pull twice, and the control fetches.
        assert!(requests >= 5, "{key}: only {requests} requests got as far as a password");
    }
}
