//! `POST /api/admin/restart`: no request fails, VMs and commands continue, and an invalid restart is refused first.

use std::{
    fs,
    io::ErrorKind,
    net::{Ipv6Addr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::json;

use crate::harness::{Skep, eventually, send, stdout_on_server as run, with_vms};

/// A server without VMs, so that it starts at once, and its file of settings.
async fn start() -> Skep {
    let dir = tempfile::Builder::new().prefix("skep-test-").tempdir_in("/var/tmp").unwrap();
    let settings = dir.path().join("skep.toml");
    fs::write(&settings, "").unwrap();
    if !with_vms() {
        fs::set_permissions(&settings, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    }
    Skep::start_as(dir, |command| {
        command.env("PATH", "/nonexistent").arg("--config").arg(settings);
    })
    .await
}

/// Uses a new connection, because a stopping server may close an idle one just when it is used.
async fn uptime(skep: &Skep) -> f64 {
    let mut uptime = None;
    // While the disk stalls, the health has no uptime.
    eventually("an uptime", async || {
        let request = reqwest::Client::new().get(format!("{}/api/health", skep.url));
        uptime = send(request).await.body["uptime"].as_f64();
        uptime.is_some()
    })
    .await;
    uptime.unwrap()
}

/// A moment at which the server that answers had started.
async fn started_by(skep: &Skep) -> Instant {
    let uptime = uptime(skep).await;
    Instant::now() - Duration::from_secs_f64(uptime)
}

/// Waits until a server answers that started after this moment. A request may take as long as the earlier server had run for by
/// then.
async fn is_restarted(skep: &Skep, started: Instant) {
    eventually("the restart", async || {
        // Taken before the question: a late answer of the earlier server must not count.
        let asked = Instant::now();
        asked - Duration::from_secs_f64(uptime(skep).await) > started
    })
    .await;
}

/// Browsers try both loopback addresses for `localhost`.
#[tokio::test]
async fn no_other_program_gets_the_port_at_the_other_loopback_address() {
    if let Err(error) = TcpListener::bind("[::1]:0") {
        eprintln!("this machine has no IPv6, so nothing was checked: {error}");
        return;
    }
    let skep = start().await;
    let port = reqwest::Url::parse(&skep.url).unwrap().port().unwrap();
    let attack = || TcpListener::bind((Ipv6Addr::LOCALHOST, port)).map(drop).map_err(|error| error.kind());
    assert_eq!(attack(), Err(ErrorKind::AddrInUse));
    let started = started_by(&skep).await;
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    is_restarted(&skep, started).await;
    assert_eq!(attack(), Err(ErrorKind::AddrInUse));
    skep.stop();
    assert_eq!(attack(), Ok(()), "the control");
}

#[tokio::test]
async fn no_request_fails_and_running_commands_continue() {
    let skep = Arc::new(start().await);
    eventually("some uptime", async || uptime(&skep).await > 2.0).await;
    let pid = skep.pid();
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = Vec::new();
    for held in [true, true, false, false] {
        let (skep, stop, asked) = (Arc::clone(&skep), Arc::clone(&stop), Arc::clone(&asked));
        callers.push(tokio::spawn(async move {
            let client =
                reqwest::Client::builder().pool_max_idle_per_host(usize::from(held)).build().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let request = client.get(format!("{}/api/whoami", skep.url)).bearer_auth(&skep.key);
                let answer = request.send().await.unwrap();
                assert_eq!(answer.status(), 200);
                answer.bytes().await.unwrap();
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let long = json!({"command": "for i in 1 2 3 4; do echo $i; sleep 1; done", "stream": true});
    let mut stream = skep.request(Method::POST, "/api/exec").json(&long).send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());

    let started = started_by(&skep).await;
    assert_eq!(skep.post("/api/admin/restart", &json!({})).await.ok(202), json!({"restarting": true}));
    let before = asked.load(Ordering::Relaxed);
    let mut text = String::new();
    while let Some(chunk) = stream.chunk().await.unwrap() {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(text.contains(r#""data":"4\n""#) && text.contains("event: exit"), "{text}");
    eventually("callers after it", async || asked.load(Ordering::Relaxed) > before + 100).await;
    is_restarted(&skep, started).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(skep.pid(), pid);
    assert_eq!(skep.post("/api/exec", &json!({"command": "echo here"})).await.ok(200)["stdout"], "here\n");
}

#[tokio::test]
async fn the_new_server_follows_the_settings_as_they_are_now() {
    let skep = start().await;
    fs::write(skep.data_dir.path().join("skep.toml"), "max_headers = 12\n").unwrap();
    let many = || (0..40).fold(skep.bare(Method::GET, "/"), |ask, n| ask.header(format!("x-{n}"), "y"));
    assert_eq!(send(many()).await.status, 200);
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    eventually("the new limit", async || send(many()).await.status == 431).await;
}

#[tokio::test]
async fn an_invalid_restart_is_refused_and_the_server_keeps_serving() {
    let skep = start().await;
    let settings = skep.data_dir.path().join("skep.toml");
    run(&skep, "echo > alive; sleep 600 &").await;
    for (text, named) in [
        ("max_vms = ", "TOML"),
        ("max_vms = 0", "max-vms"),
        ("bogus = 1", "bogus"),
        ("max_vms = 7", "`max_vms`"),
        ("metrics_listen = \"127.0.0.1:0\"", "`metrics_listen`"),
        ("root = \"/nonexistent/root\"", "/nonexistent/root"),
        ("tls_cert = \"/etc/hosts\"\ntls_key = \"/etc/hosts\"", "/etc/hosts"),
        ("tls_cert = \"/nonexistent\"\ntls_key = \"/nonexistent\"", "/nonexistent"),
    ] {
        fs::write(&settings, text).unwrap();
        let before = uptime(&skep).await;
        let answer = skep.post("/api/admin/restart", &json!({})).await;
        let message = answer.refused(409, "restart_refused");
        assert!(message.contains(named), "{text}: {message}");
        assert!(uptime(&skep).await > before, "{text}");
    }
    fs::write(&settings, "").unwrap();
    eventually("some uptime", async || uptime(&skep).await > 1.0).await;
    let started = started_by(&skep).await;
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    is_restarted(&skep, started).await;
    assert_eq!(run(&skep, "echo ok").await, "ok\n");
}

#[tokio::test]
async fn restarts_that_are_asked_for_at_once_share_their_outcome() {
    let skep = start().await;
    let settings = skep.data_dir.path().join("skep.toml");
    // On separate connections, as from independent callers.
    let asked = || {
        let request = reqwest::Client::new().post(format!("{}/api/admin/restart", skep.url));
        send(request.bearer_auth(&skep.key).json(&json!({})))
    };
    fs::write(&settings, "bogus = 1").unwrap();
    let (first, second, third) = tokio::join!(asked(), asked(), asked());
    for answer in [first, second, third] {
        assert!(answer.refused(409, "restart_refused").contains("bogus"), "{answer:?}");
    }
    fs::write(&settings, "").unwrap();
    for _ in 0..2 {
        eventually("some uptime", async || uptime(&skep).await > 2.0).await;
        let started = started_by(&skep).await;
        let (first, second, third) = tokio::join!(asked(), asked(), asked());
        for answer in [first, second, third] {
            assert_eq!(answer.ok(202), json!({"restarting": true}));
        }
        is_restarted(&skep, started).await;
    }
    assert_eq!(run(&skep, "echo ok").await, "ok\n");
}

#[tokio::test]
async fn a_signal_during_a_restart_ends_the_server() {
    let skep = start().await;
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    drop(skep.stop());
}

/// What needs root.
mod root {
    use super::*;

    #[tokio::test]
    async fn vms_live_on() {
        let skep = Skep::start().await;
        let pid = skep.boot_one().await;
        assert_eq!(
            skep.output(pid, "echo before > /root/file; cat /proc/sys/kernel/random/boot_id > /root/id")
                .await,
            ""
        );
        skep.post("/api/admin/restart", &json!({})).await.ok(202);
        assert_eq!(
            skep.output(pid, "cat /root/file; cmp /root/id /proc/sys/kernel/random/boot_id").await,
            "before"
        );
        skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
        skep.boot_one().await;
    }
}
