//! The service: its settings, its start, its log, its end.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    process::Output,
    time::Duration,
};

use reqwest::Method;
use serde_json::Value;

use crate::harness::{Skep, eventually, output_of, send, serve, serve_anywhere, temp_dir};

/// The exit code and the message of a server that must not start with these settings, variables and flags.
fn refusal(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> (i32, String) {
    let dir = temp_dir();
    let config = dir.path().join("skep.toml");
    fs::write(&config, file).unwrap();
    let mut command = serve_anywhere(dir.path());
    command.env("SKEP_CONFIG", &config).envs(variables.iter().copied()).args(flags);
    let Output { status, stderr, .. } = output_of(&mut command);
    (status.code().unwrap(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn a_flag_wins_over_the_variable_and_that_over_the_file() {
    // An address that is refused is named, so it is seen which one counted.
    let file = "listen = \"192.0.2.1:1\"";
    let variable: &[(&str, &str)] = &[("SKEP_LISTEN", "192.0.2.2:2")];
    let flag: &[&str] = &["--listen", "192.0.2.3:3"];
    for (variables, flags, counts) in
        [(&[][..], &[][..], "192.0.2.1:1"), (variable, &[], "192.0.2.2:2"), (variable, flag, "192.0.2.3:3")]
    {
        let (code, message) = refusal(file, variables, flags);
        assert_eq!(code, 1, "{message}");
        assert!(message.contains(counts), "{counts} should count: {message}");
    }
}

#[tokio::test]
async fn a_server_starts_by_its_file_alone() {
    let dir = temp_dir();
    let config = dir.path().join("skep.toml");
    fs::write(&config, "log-format = \"json\"\nlog_level = \"debug\"").unwrap();
    let skep = Skep::start_as(dir, |command| _ = command.env("SKEP_CONFIG", &config)).await;
    skep.get("/api/whoami").await.ok(200);
    assert!(skep.log().contains(r#""level":"#), "{}", skep.log());
}

#[test]
fn a_setting_that_cannot_be_is_refused_by_name() {
    for (file, named) in [
        ("lisen = \"127.0.0.1:0\"", "`lisen`"),
        ("listen = \"localhost\"", "localhost"),
        ("max_vms = 0", "--max-vms"),
        ("max_vms = \"many\"", "many"),
        ("log_format = \"xml\"", "xml"),
        ("root = [[\"/a\"]]", "`root`"),
        ("log_level = ", "log_level"),
    ] {
        let (code, message) = refusal(file, &[], &[]);
        assert_eq!(code, 1, "{file}: {message}");
        assert!(message.contains(named) && message.contains("skep.toml"), "{file}: {message}");
    }
    for (variables, flags, named) in [
        (&[("SKEP_MAX_VMS", "none")][..], &[][..], "none"),
        (&[("SKEP_LOG_LEVEL", "loud")], &[], "loud"),
        (&[], &["--log-level", "info,skep_server=loud"], "skep_server=loud"),
        (&[], &["--memory-mb", "-1"], "-1"),
        (&[], &["--lisen", "127.0.0.1:0"], "--lisen"),
        (&[], &["--config", "/nowhere/skep.toml"], "/nowhere/skep.toml"),
    ] {
        let (code, message) = refusal("listen = \"127.0.0.1:0\"", variables, flags);
        assert_ne!(code, 0, "{variables:?} {flags:?}: {message}");
        assert!(message.contains(named), "{variables:?} {flags:?}: {message}");
    }
}

#[test]
fn an_address_that_others_reach_is_refused_with_the_way_out() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7700"] {
        let (code, message) = refusal("", &[], &["--listen", address]);
        assert_eq!(code, 1, "{message}");
        assert!(message.contains(address) && message.contains("127.0.0.1"), "{message}");
    }
}

#[tokio::test]
async fn a_log_in_json_is_an_object_a_line_with_the_requests_id() {
    let dir = temp_dir();
    // Standard output and standard error together, as a journal has them.
    let path = dir.path().join("test.log");
    let skep = Skep::start_as(dir, |command| _ = command.args(["--log-format", "json"])).await;
    send(skep.bare(Method::GET, "/api/nothing").header("x-request-id", "of-this-test")).await;
    let lines = || {
        let text = fs::read_to_string(&path).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole).to_owned();
        whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    eventually("the request's line", async || {
        lines().iter().any(|line| line["request_id"] == "of-this-test")
    })
    .await;
    let _dir = skep.stop();
    let of_request: Vec<Value> =
        lines().into_iter().filter(|line| line["request_id"] == "of-this-test").collect();
    assert_eq!(of_request.len(), 1, "{of_request:?}");
    assert_eq!(of_request[0]["status"], 401);
    assert!(lines().iter().any(|line| line["message"].as_str().unwrap_or_default().contains("admin.key")));
    for line in lines() {
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn a_request_under_way_is_finished_before_the_server_ends() {
    let mut skep = Skep::start().await;
    let (mut wire, rest) = skep.begin_request().await;
    skep.ask_to_stop();
    eventually("the shutdown", async || skep.log().contains("shutting down")).await;
    wire.send(rest).await;
    let made = wire.answer().await.ok(201);
    let skep = Skep::start_on(skep.stop(), &[]).await;
    skep.get(&format!("/api/keys/{}", made["id"].as_str().unwrap())).await.ok(200);
}

#[tokio::test]
async fn connections_that_ask_for_nothing_hold_no_server_up() {
    let mut skep = Skep::start().await;
    let silent = skep.raw_connection().await;
    let mut kept = skep.raw_connection().await;
    kept.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    kept.expect("HTTP/1.1 200 OK\r\n").await;
    let (mut under_way, rest) = skep.begin_request().await;
    skep.ask_to_stop();
    // They are closed while the server waits for a request: when its time is over, that one would be cut off with them.
    assert_eq!(silent.rest().await, "");
    kept.rest().await;
    under_way.send(rest).await;
    under_way.answer().await.ok(201);
    skep.stop();
}

#[tokio::test]
async fn a_service_manager_is_told_of_readiness_and_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    // A keeper without root is another user than the tests.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let notifications = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut skep = Skep::start_as(temp_dir(), |command| _ = command.env("NOTIFY_SOCKET", &path)).await;
    assert!(notifications().lines().any(|line| line == "READY=1"));
    skep.get("/api/whoami").await.ok(200);
    skep.ask_to_stop();
    assert!(notifications().lines().any(|line| line == "STOPPING=1"));
}

#[tokio::test]
async fn a_second_server_on_the_data_directory_names_the_first() {
    let skep = Skep::start().await;
    let Output { status, stderr, .. } = output_of(&mut serve(skep.data_dir.path(), &[]));
    let message = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains(&skep.pid().to_string()), "{message}");
    assert!(message.contains(skep.url.trim_start_matches("http://")), "{message}");
    skep.get("/api/whoami").await.ok(200);
}
