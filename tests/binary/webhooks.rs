//! Webhooks by command, and of a server that is killed while it sends.

mod https;

use std::{
    collections::BTreeMap,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::harness::{Skep, binary, eventually, output_of, try_send};

/// A few in `make test`, more in a soak.
const ROUNDS: u64 = if cfg!(feature = "soak") { 30 } else { 4 };

/// The number of deliveries and the data of each event, by event id.
type Seen = Arc<Mutex<BTreeMap<String, (usize, Value)>>>;

/// An endpoint that takes everything, and where it is.
async fn endpoint() -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let seen = Seen::default();
    let taken = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(take(stream, Arc::clone(&taken)));
        }
    });
    (url, seen)
}

/// Takes one request.
async fn take(mut stream: TcpStream, seen: Seen) -> Option<()> {
    let (head, body) = request(&mut stream).await?;
    let message: Value = serde_json::from_slice(&body).unwrap();
    {
        let mut seen = seen.lock().unwrap();
        let known = seen.entry(header(&head, "webhook-id")).or_insert((0, message.clone()));
        assert_eq!(known.1, message, "an id is of one message");
        known.0 += 1;
    }
    accept(&mut stream).await
}

/// Reads the head and the body of a request; `None` where it is incomplete because the sender was killed.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8(read[..end].to_vec()).unwrap();
            let length: usize = header(&head, "content-length").parse().unwrap();
            if read.len() >= end + 4 + length {
                return Some((head, read.split_off(end + 4)));
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

/// Answers 200, whole before the stream is dropped.
async fn accept(stream: &mut (impl AsyncWrite + Unpin)) -> Option<()> {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.flush().await.ok()
}

fn header(head: &str, name: &str) -> String {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).unwrap().1.to_owned()
}

async fn start(data_dir: TempDir) -> Skep {
    Skep::start_on(data_dir, &["--webhook-allow", "127.0.0.1"]).await
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("skep-test-").tempdir().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_event_is_lost_by_a_server_that_is_killed() {
    let (url, seen) = endpoint().await;
    let mut skep = start(folder()).await;
    let body = json!({"url": url, "types": ["ticket.created"]});
    skep.post("/api/webhooks", &body).await.ok(201);
    let mut made = Vec::new();
    for round in 0..ROUNDS {
        let running = Arc::new(skep);
        let others = Arc::clone(&running);
        let working = tokio::spawn(async move {
            let mut made = Vec::new();
            for number in 0.. {
                let request = others.request(Method::POST, "/api/tickets");
                let title = format!("{round} {number}");
                let Ok(answer) = try_send(request.json(&json!({"title": title}))).await else { break };
                made.push(answer.ok(201)["id"].as_str().unwrap().to_owned());
            }
            made
        });
        let before = seen.lock().unwrap().len();
        eventually("something is sent", async || seen.lock().unwrap().len() > before).await;
        // At a different time in each round, whatever is in progress then.
        tokio::time::sleep(Duration::from_millis(round * 7_919 % 400)).await;
        running.kill();
        made.extend(working.await.unwrap());
        skep = start(Arc::into_inner(running).unwrap().killed()).await;
    }
    let told = || -> Vec<String> {
        let seen = seen.lock().unwrap();
        seen.values()
            .map(|(_, message)| message["data"]["ticket"]["id"].as_str().unwrap().to_owned())
            .collect()
    };
    eventually("every ticket that was answered is told of", async || {
        let told = told();
        made.iter().all(|id| told.contains(id))
    })
    .await;
    assert!(made.len() > 20, "{} tickets were made", made.len());
}

fn run(server: &Skep, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("webhook").args(arguments).env("SKEP_URL", &server.url).env("SKEP_API_KEY", &server.key);
    output_of(command.stdin(Stdio::null()))
}

#[track_caller]
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim_end().to_owned()
}

#[track_caller]
fn answer(output: &Output) -> Value {
    serde_json::from_str(&printed(output)).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_made_used_and_removed_by_command() {
    let (url, seen) = endpoint().await;
    let server = start(folder()).await;
    let skep = |words: &[&str]| run(&server, words);
    let made = printed(&skep(&["create", &url, "--type", "ticket.created,vm.*", "-d", "tells the board"]));
    let (id, secret) = made.split_once('\n').unwrap();
    assert!(id.starts_with("wh_") && secret.starts_with("whsec_"), "{made}");
    let list = printed(&skep(&["list"]));
    assert!(list.contains(id) && list.contains("enabled") && list.contains("ticket.created,vm.*"), "{list}");
    let shown = printed(&skep(&["show", id]));
    assert!(shown.contains(&url) && shown.contains("tells the board") && !shown.contains(secret), "{shown}");
    assert_eq!(answer(&skep(&["show", id, "--json"]))["url"], json!(url));
    printed(&skep(&["test", id]));
    eventually("the test is sent", async || seen.lock().unwrap().len() == 1).await;
    let mut delivery = Value::Null;
    eventually("it is noted", async || {
        delivery = answer(&skep(&["deliveries", id, "--json"]))["deliveries"][0].clone();
        delivery["state"] == "delivered"
    })
    .await;
    let table = printed(&skep(&["deliveries", id]));
    assert!(table.contains("webhook.test") && table.contains("200 in "), "{table}");
    printed(&skep(&["redeliver", id, delivery["id"].as_str().unwrap()]));
    eventually("it is sent again", async || seen.lock().unwrap().values().any(|(times, _)| *times == 2))
        .await;
    let rotated = answer(&skep(&["rotate", id, "--overlap", "1h", "--json"]));
    assert_ne!(rotated["secret"], json!(secret));
    let updated = answer(&skep(&["update", id, "--disable", "--description", "", "--json"]));
    assert_eq!((&updated["enabled"], &updated["description"]), (&json!(false), &Value::Null));
    assert!(printed(&skep(&["list"])).contains("disabled (requested)"));
    let refused = skep(&["test", id]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("is disabled"), "{said}");
    assert_eq!(skep(&["update", id]).status.code(), Some(1), "nothing to change");
    assert_eq!(printed(&skep(&["rm", id])), format!("{id} is deleted"));
    let gone = skep(&["show", id]);
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

/// The control of `--webhook-allow`: without it nothing of this machine is reached.
#[tokio::test]
async fn nothing_of_this_machine_is_reached_unless_it_is_allowed() {
    let (url, seen) = endpoint().await;
    let server = Skep::start().await;
    let refused = server.post("/api/webhooks", &json!({"url": url})).await;
    assert!(refused.refused(400, "invalid_value").contains("--webhook-allow"));
    assert!(seen.lock().unwrap().is_empty());
}
