//! What a copy does not inherit: ticket, key and times of its parent, and uploads that are under way.

use std::{future::ready, io, time::Duration};

use futures_util::{StreamExt, stream};
use reqwest::{Body, Method};
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::timeout};

use super::host_name;
use crate::{
    copies::{fork, path_of, pid_of},
    harness::{Skep, eventually, send},
    vm_api::status,
};

/// The size of each half of an upload, in bytes: more than one block that the guest writes at once.
const HALF_BYTES: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_neither_ticket_nor_key_nor_times_of_its_parent() {
    let skep = Skep::start().await;
    let made = skep.post("/api/tickets", &json!({"title": "of the parent"})).await.ok(201);
    let ticket = format!("/api/tickets/{}", made["id"].as_str().unwrap());
    let order = json!({
        "ticket": made["id"], "name": "worker", "ttl_ms": 3_600_000,
        "idle_timeout_ms": 3_600_000, "on_idle": "pause_to_disk",
    });
    let parent = skep.post("/api/swarm/boot", &order).await.ok(201)["vms"][0].clone();
    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    let record = skep.get(&path_of(&copy)).await.ok(200);
    for field in ["ticket", "name", "expires_at", "idle_timeout_ms"] {
        assert_ne!(parent[field], Value::Null, "{field}: {parent}");
        assert_eq!((&copy[field], &record[field]), (&Value::Null, &Value::Null), "{field}: {copy} {record}");
    }
    assert_eq!((&parent["on_idle"], &record["on_idle"]), (&json!("pause_to_disk"), &json!("pause")));
    let held = skep.get(&ticket).await.ok(200);
    assert_eq!(
        (&held["status"], &held["vm"], &held["attempt"]),
        (&json!("in_progress"), &parent["id"], &json!(1))
    );
    the_key_is_that_of_the_parent(&skep, &parent, &copy).await;

    // The end of the attempt ends the VM that works on it, not its copy.
    let done = json!({"status": "completed"});
    send(skep.request(Method::PATCH, &ticket).json(&done)).await.ok(200);
    skep.wait_for_end_of(pid_of(&parent)).await;
    assert_eq!(skep.output(pid_of(&copy), "uname -n").await, host_name(&copy));
}

/// Programs of the copy may have the parent's key in memory. It reaches nothing of the copy, and nothing from the copy.
async fn the_key_is_that_of_the_parent(skep: &Skep, parent: &Value, copy: &Value) {
    let key = skep.output(pid_of(parent), "echo $SKEP_API_KEY").await;
    let exec = async |vm: &Value| {
        let request = skep.bare(Method::POST, &format!("{}/exec", path_of(vm))).bearer_auth(&key);
        send(request.json(&json!({"command": "uname -n"}))).await
    };
    let read = async |vm: &Value| {
        let read = format!("/api/files/read?path=/etc/hostname&vm={}", vm["id"].as_str().unwrap());
        send(skep.bare(Method::GET, &read).bearer_auth(&key)).await
    };
    assert_eq!(exec(parent).await.ok(200)["stdout"], format!("{}\n", host_name(parent)));
    read(parent).await.ok(200);
    exec(copy).await.refused(404, "unknown_vm");
    read(copy).await.refused(404, "unknown_vm");

    let whoami = skep.output(pid_of(parent), "echo $SKEP_URL/api/whoami").await;
    assert_eq!(status(skep, pid_of(parent), &whoami, &key).await, "200");
    assert_eq!(status(skep, pid_of(copy), &whoami, &key).await, "000", "the copy made a connection");
    // With a key of its own the copy makes connections, and the parent's key is refused on them.
    let own = json!({"name": "of the copy", "role": "vm", "vm": copy["id"]});
    let own = skep.post("/api/keys", &own).await.ok(201)["key"].as_str().unwrap().to_owned();
    assert_eq!(status(skep, pid_of(copy), &whoami, &own).await, "200");
    assert_eq!(status(skep, pid_of(copy), &whoami, &key).await, "403");
}

/// Prints the names of the variables that skep sets, and the files of the ticket.
const TRACES_OF_TICKET: &str = r"env | sed -n 's/^\(SKEP_[A-Z_]*\)=.*/\1/p' | sort
cd /run/skep; ls result.json ticket.json 2>/dev/null; true";

/// What a command reads of its ticket: the id in the environment, the id in the file, and the key.
const TICKET: &str = "echo $SKEP_TICKET_ID $(python3 -c \"import json
print(json.load(open('/run/skep/ticket.json'))['ticket']['id'])\") $SKEP_API_KEY";

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_copy_find_nothing_of_the_ticket_of_its_parent() {
    let skep = Skep::start().await;
    let boot_for_ticket = async |path: &str| {
        let made = skep.post("/api/tickets", &json!({"title": "a"})).await.ok(201);
        let order = json!({"ticket": made["id"], "env": {"OWN": "kept"}});
        skep.post(path, &order).await.ok(201)["vms"][0].clone()
    };
    let traces = async |vm: &Value| skep.output(pid_of(vm), TRACES_OF_TICKET).await;
    let ticket = async |vm: &Value| {
        let read = skep.output(pid_of(vm), TICKET).await;
        let [variable, file, key] = read.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((variable, file), (vm["ticket"].as_str().unwrap(), variable), "{vm}");
        key.to_owned()
    };
    let variables =
        "SKEP_API_KEY\nSKEP_RESULT_FILE\nSKEP_TICKET_ATTEMPT\nSKEP_TICKET_FILE\nSKEP_TICKET_ID\nSKEP_URL";
    let parent = boot_for_ticket("/api/swarm/boot").await;
    skep.output(pid_of(&parent), "echo '{}' > $SKEP_RESULT_FILE").await;
    // The control.
    assert_eq!(traces(&parent).await, format!("{variables}\nresult.json\nticket.json"));
    let key = ticket(&parent).await;

    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    assert_eq!(traces(&copy).await, "");
    assert_eq!(skep.output(pid_of(&copy), "echo $OWN").await, "kept");
    // A copy with a ticket has its own, and no result yet. The next copy has neither.
    let worker = boot_for_ticket(&format!("{}/fork", path_of(&parent))).await;
    assert_eq!(traces(&worker).await, format!("{variables}\nticket.json"));
    assert_ne!(ticket(&worker).await, key);
    let of_worker = fork(&skep, &worker, &json!({})).await.remove(0);
    assert_eq!(traces(&of_worker).await, "");

    skep.post(&format!("{}/snapshot", path_of(&parent)), &json!({"name": "stored"})).await.ok(201);
    let restored = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
    assert_eq!(traces(&restored["vms"][0]).await, "");
    // The parent has all of its own yet.
    assert_eq!(traces(&parent).await, format!("{variables}\nresult.json\nticket.json"));
    assert_eq!(ticket(&parent).await, key);
}

/// The body of an upload: a half of one letter, then one more of these in each second, so that the server does not take the
/// body for stalled, and the last half when it is sent.
fn body(last_half: oneshot::Receiver<Vec<u8>>) -> Body {
    let first_half = stream::once(ready(Ok(vec![b'a'; HALF_BYTES])));
    let rest = stream::unfold(Some(last_half), |last_half| async move {
        let mut last_half = last_half?;
        match timeout(Duration::from_secs(1), &mut last_half).await {
            Err(_) => Some((Ok(vec![b'a']), Some(last_half))),
            Ok(half) => Some((half.map_err(io::Error::other), None)),
        }
    });
    Body::wrap_stream(first_half.chain(rest))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_under_way_breaks_off_in_a_copy_and_completes_in_its_parent() {
    let skep = Skep::start().await;
    let parent = skep.boot(1).await.remove(0);
    let put = |vm: &Value, body: Body| {
        let path = format!("/api/files/raw?path=/root/upload/file&vm={}", vm["id"].as_str().unwrap());
        send(skep.request(Method::PUT, &path).body(body))
    };
    let (last_half, receiver) = oneshot::channel();
    let upload = tokio::spawn(put(&parent, body(receiver)));
    // The folder comes with the upload.
    let begun = "cat /root/upload/.skep-* 2>/dev/null | wc -c";
    eventually("the upload's beginning", async || skep.output(pid_of(&parent), begun).await != "0").await;

    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    let files = async |vm: &Value| skep.output(pid_of(vm), "ls -A /root/upload").await;
    eventually("the upload's end in the copy", async || files(&copy).await.is_empty()).await;
    last_half.send(vec![b'b'; HALF_BYTES]).unwrap();
    let written = upload.await.unwrap().ok(201);
    assert_eq!(files(&parent).await, "file");
    // The whole size, all letters in order, and the size of the last half.
    let sizes = "cd /root/upload; echo $(stat -c %s file) $(tr -s ab < file) $(tr -d a < file | wc -c)";
    let expected = format!("{} ab {HALF_BYTES}", written["size_bytes"]);
    assert_eq!(skep.output(pid_of(&parent), sizes).await, expected);
    assert_eq!(files(&copy).await, "");

    // The copy takes an upload of its own to the same path.
    put(&copy, Body::from("own")).await.ok(201);
    assert_eq!(skep.output(pid_of(&copy), "cat /root/upload/file").await, "own");
}
