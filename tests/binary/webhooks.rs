//! Webhooks by command, and of a server that is killed while it sends.

pub(crate) mod https;

use std::{
    collections::BTreeMap,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Receiver, Skep, answer, command, eventually, output_of, printed, temp_dir, try_send};

/// Number of kills.
const ROUNDS: u64 = 4;

/// Tickets that each round makes at least, however slow the disk is.
const LEAST: usize = 5;

/// The number of deliveries and the data of each event, by event id.
fn events(endpoint: &Receiver) -> BTreeMap<String, (usize, Value)> {
    let mut events = BTreeMap::new();
    for request in endpoint.seen() {
        let event = events.entry(request.id().to_owned()).or_insert((0, request.json()));
        assert_eq!(event.1, request.json(), "an id is of one message");
        event.0 += 1;
    }
    events
}

async fn start(data_dir: TempDir) -> Skep {
    Skep::start_on(data_dir, &["--webhook-allow", "127.0.0.1"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_event_is_lost_by_a_server_that_is_killed() {
    let endpoint = Receiver::start().await;
    let url = endpoint.url();
    let mut skep = start(temp_dir()).await;
    let body = json!({"url": url, "types": ["ticket.created"]});
    skep.post("/api/webhooks", &body).await.ok(201);
    let mut made = Vec::new();
    let answers = Arc::new(AtomicUsize::new(0));
    for round in 0..ROUNDS {
        let running = Arc::new(skep);
        let (others, counted) = (Arc::clone(&running), Arc::clone(&answers));
        let working = tokio::spawn(async move {
            let mut made = Vec::new();
            for number in 0.. {
                let request = others.request(Method::POST, "/api/tickets");
                let title = format!("{round} {number}");
                let Ok(answer) = try_send(request.json(&json!({"title": title}))).await else { break };
                made.push(answer.ok(201)["id"].as_str().unwrap().to_owned());
                counted.fetch_add(1, Ordering::Relaxed);
            }
            made
        });
        let (before, answered) = (endpoint.seen().len(), made.len());
        eventually("some tickets, and something that is sent", async || {
            endpoint.seen().len() > before && answers.load(Ordering::Relaxed) > answered + LEAST
        })
        .await;
        // At a different time in each round, whatever is in progress then.
        tokio::time::sleep(Duration::from_millis(round * 7_919 % 400)).await;
        running.kill();
        made.extend(working.await.unwrap());
        skep = start(Arc::into_inner(running).unwrap().killed()).await;
    }
    let delivered = || -> Vec<String> {
        let events = events(&endpoint);
        let ids = events.values().map(|(_, message)| message["data"]["ticket"]["id"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    };
    eventually("every ticket that was answered is delivered", async || {
        let delivered = delivered();
        made.iter().all(|id| delivered.contains(id))
    })
    .await;
    assert!(made.len() > 20, "{} tickets were made", made.len());
}

fn run(server: &Skep, arguments: &[&str]) -> Output {
    output_of(&mut command(server, &[&["webhook"], arguments].concat()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_made_used_and_removed_by_command() {
    let endpoint = Receiver::start().await;
    let url = endpoint.url();
    let server = start(temp_dir()).await;
    let skep = |arguments: &[&str]| run(&server, arguments);
    let made = printed(&skep(&["create", &url, "--type", "ticket.created,vm.*", "-d", "tells the board"]));
    let (id, secret) = made.split_once('\n').unwrap();
    assert!(id.starts_with("wh_") && secret.starts_with("whsec_"), "{made}");
    let list = printed(&skep(&["list"]));
    assert!(list.contains(id) && list.contains("enabled") && list.contains("ticket.created,vm.*"), "{list}");
    let shown = printed(&skep(&["show", id]));
    assert!(shown.contains(&url) && shown.contains("tells the board") && !shown.contains(secret), "{shown}");
    assert_eq!(answer(&skep(&["show", id, "--json"]))["url"], json!(url));
    printed(&skep(&["test", id]));
    eventually("the test is sent", async || events(&endpoint).len() == 1).await;
    let mut delivery = Value::Null;
    eventually("it is noted", async || {
        delivery = answer(&skep(&["deliveries", id, "--json"]))["deliveries"][0].clone();
        delivery["state"] == "delivered"
    })
    .await;
    let table = printed(&skep(&["deliveries", id]));
    assert!(table.contains("webhook.test") && table.contains("200 in "), "{table}");
    printed(&skep(&["redeliver", id, delivery["id"].as_str().unwrap()]));
    eventually("it is sent again", async || events(&endpoint).values().any(|(times, _)| *times == 2)).await;
    let rotated = answer(&skep(&["rotate", id, "--overlap", "1h", "--json"]));
    assert_ne!(rotated["secret"], json!(secret));
    let updated = answer(&skep(&["update", id, "--disable", "--description", "", "--json"]));
    assert_eq!((&updated["enabled"], &updated["description"]), (&json!(false), &Value::Null));
    assert!(printed(&skep(&["list"])).contains("disabled (requested)"));
    let refused = skep(&["test", id]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && message.contains("is disabled"), "{message}");
    assert_eq!(skep(&["update", id]).status.code(), Some(1), "nothing to change");
    assert_eq!(printed(&skep(&["rm", id])), format!("{id} is deleted"));
    let gone = skep(&["show", id]);
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

/// The control of `--webhook-allow`: without it nothing of this machine is reached.
#[tokio::test]
async fn nothing_of_this_machine_is_reached_unless_it_is_allowed() {
    let endpoint = Receiver::start().await;
    let url = endpoint.url();
    let server = Skep::start().await;
    let refused = server.post("/api/webhooks", &json!({"url": url})).await;
    assert!(refused.refused(400, "invalid_value").contains("--webhook-allow"));
    assert!(endpoint.seen().is_empty());
}
