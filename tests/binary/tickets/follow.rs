//! `skep events`: whatever happens to its connection, each event is printed once.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use super::command::command;
use crate::harness::{Skep, eventually, output_of};

/// A proxy to the server whose connections can be cut.
struct CuttableProxy {
    url: String,
    target: Arc<Mutex<String>>,
    under_way: Arc<Mutex<JoinSet<()>>>,
    taking: JoinHandle<()>,
}

impl CuttableProxy {
    async fn to(server: &Skep) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = Arc::new(Mutex::new(address(server)));
        let under_way = Arc::new(Mutex::new(JoinSet::new()));
        let (to, all) = (Arc::clone(&target), Arc::clone(&under_way));
        let taking = tokio::spawn(async move {
            while let Ok((mut caller, _)) = listener.accept().await {
                let to = to.lock().unwrap().clone();
                all.lock().unwrap().spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(to).await {
                        let _ = copy_bidirectional(&mut caller, &mut server).await;
                    }
                });
            }
        });
        Self { url, target, under_way, taking }
    }

    fn cut(&self) {
        self.under_way.lock().unwrap().abort_all();
    }
}

impl Drop for CuttableProxy {
    fn drop(&mut self) {
        self.taking.abort();
    }
}

fn address(server: &Skep) -> String {
    server.url.trim_start_matches("http://").to_owned()
}

async fn make(server: &Skep, title: &str) {
    server.post("/api/tickets", &json!({"title": title})).await.ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_misses_nothing_whatever_happens_to_its_connection() {
    let mut server = Skep::start().await;
    let proxy = CuttableProxy::to(&server).await;
    let arguments = ["events", "--types", "ticket.created", "--json"];
    let mut follower = command(&server, &arguments);
    let mut follower =
        follower.env("SKEP_URL", &proxy.url).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let seen = Arc::new(Mutex::new(Vec::<Value>::new()));
    let noted = Arc::clone(&seen);
    let reading = std::thread::spawn(move || {
        for line in lines {
            noted.lock().unwrap().push(serde_json::from_str(&line.unwrap()).unwrap());
        }
    });
    // Until it follows, nothing is asked of it.
    eventually("the follower", async || {
        make(&server, "before").await;
        !seen.lock().unwrap().is_empty()
    })
    .await;
    let mut titles = Vec::new();
    for round in 0..10 {
        for number in 0..5 {
            let title = format!("{round} {number}");
            make(&server, &title).await;
            titles.push(title);
            if number == 2 {
                proxy.cut();
            }
        }
        if round == 4 {
            server.kill();
            server = Skep::start_on(server.killed(), &[]).await;
            *proxy.target.lock().unwrap() = address(&server);
        }
    }
    let seen_titles = || -> Vec<String> {
        let seen = seen.lock().unwrap();
        let titles = seen.iter().map(|event| event["ticket"]["title"].as_str().unwrap().to_owned());
        titles.filter(|title| title != "before").collect()
    };
    eventually("all events", async || seen_titles().len() >= titles.len()).await;
    assert_eq!(seen_titles(), titles);
    follower.kill().unwrap();
    follower.wait().unwrap();
    reading.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_behind_an_event_and_shows_people_a_line_for_each() {
    let server = Skep::start().await;
    let made = server.post("/api/tickets", &json!({"title": "Port it"})).await.ok(201);
    let id = made["id"].as_str().unwrap();
    let history = server.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    let created = history["events"][0]["id"].as_str().unwrap();
    let ready = output_of(&mut command(&server, &["events", "--after", created, "-n", "1"]));
    let line = String::from_utf8(ready.stdout).unwrap();
    assert!(line.contains("ticket.ready") && line.contains(id), "{line}");
    let current = output_of(&mut command(&server, &["events", "--ticket", id, "-n", "1"]));
    let line = String::from_utf8(current.stdout).unwrap();
    assert!(line.contains("ticket.current") && line.contains("title=Port it"), "{line}");
    let first_event = |arguments: &[&str]| {
        let output = output_of(&mut command(&server, &[&["events", "--json"], arguments].concat()));
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["id"].clone()
    };
    let first = first_event(&["--from-start", "-n", "1"]);
    for since in ["1h", "30d", "2020-01-31", "2020-01-31T12:00:00Z"] {
        assert_eq!(first_event(&["--since", since, "-n", "1"]), first, "{since}");
    }
    assert_eq!(first_event(&["--since", "90s", "--types", "ticket.*", "-n", "1"]), created);
    for wrong in [&["--since", "soon"][..], &["--since", "9999-01-01"], &["--since", "1h", "--from-start"]] {
        let output = output_of(&mut command(&server, &[&["events"], wrong].concat()));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    let wrong = output_of(&mut command(&server, &["events", "--types", "ticket.lost"]));
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("ticket.completed"), "{wrong:?}");
}
