//! What a copy does not inherit: ticket, key and times of its parent.

use reqwest::Method;
use serde_json::{Value, json};

use super::host_name;
use crate::{
    copies::{fork, path_of, pid_of},
    harness::{Skep, send, step},
    swarm::lifetime_s,
    vm_api::status,
};

/// Prints the names of the variables that skep sets, and the files of the ticket.
pub(crate) const TRACES_OF_TICKET: &str = r"env | sed -n 's/^\(SKEP_[A-Z_]*\)=.*/\1/p' | sort
cd /run/skep; ls result.json ticket.json 2>/dev/null; true";
/// The variables of a command that works on a ticket.
pub(crate) const VARIABLES: &str =
    "SKEP_API_KEY\nSKEP_RESULT_FILE\nSKEP_TICKET_ATTEMPT\nSKEP_TICKET_FILE\nSKEP_TICKET_ID\nSKEP_URL";

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_neither_ticket_nor_key_nor_times_of_its_parent() {
    let skep = Skep::start().await;
    let made = skep.post("/api/tickets", &json!({"title": "of the parent"})).await.ok(201);
    let ticket = format!("/api/tickets/{}", made["id"].as_str().unwrap());
    let order = json!({
        "ticket": made["id"], "name": "worker", "ttl_ms": 3_600_000,
        "idle_timeout_ms": 3_600_000, "on_idle": "pause_to_disk", "env": {"OWN": "kept"},
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
    step("a copy with its own", has_what_its_order_names(&skep, &parent)).await;
    commands_find_nothing_of_the_ticket(&skep, &parent, &copy).await;
    the_key_is_that_of_the_parent(&skep, &parent, &copy).await;

    // The end of the attempt ends the VM that works on it, not its copy.
    let done = json!({"status": "completed"});
    send(skep.request(Method::PATCH, &ticket).json(&done)).await.ok(200);
    skep.wait_for_end_of(pid_of(&parent)).await;
    assert_eq!(skep.output(pid_of(&copy), "uname -n").await, host_name(&copy));
}

/// A fork accepts the fields of a boot. They apply to the copy, and the parent is unchanged.
async fn has_what_its_order_names(skep: &Skep, parent: &Value) {
    let made = skep.post("/api/tickets", &json!({"title": "of the copy"})).await.ok(201);
    let [own, of_parent] = [&made["id"], &parent["ticket"]].map(|id| id.as_str().unwrap());
    let recorded = json!({
        "ticket": own, "name": "copy", "idle_timeout_ms": 1_800_000, "on_idle": "end", "metadata": {"x": 1},
        "egress": "all",
    });
    let mut order = recorded.clone();
    order["ttl_ms"] = json!(600_000);
    order["env"] = json!({"OWN": "other"});
    order["command"] = json!("echo $OWN $SKEP_TICKET_ID > /root/new; mv /root/new /root/ran; sleep 3000");
    let copy = fork(skep, parent, &order).await.remove(0);
    let record = skep.get(&path_of(&copy)).await.ok(200);
    let of_parent_now = skep.get(&path_of(parent)).await.ok(200);
    for (field, wanted) in recorded.as_object().unwrap() {
        assert_eq!((&copy[field], &record[field]), (wanted, wanted), "{field}: {copy} {record}");
        assert_eq!(of_parent_now[field], parent[field], "{field}");
    }
    assert_eq!((lifetime_s(&copy), lifetime_s(&of_parent_now)), (600, 3600));

    let look = format!(
        "while [ ! -e /root/ran ]; do sleep 0.1; done; cat /root/ran; echo $OWN $SKEP_TICKET_ID
        grep -ohe {own} -e {of_parent} /run/skep/ticket.json | sort -u; echo $SKEP_API_KEY\n{TRACES_OF_TICKET}"
    );
    let found = skep.output(pid_of(&copy), &look).await;
    let key = skep.output(pid_of(parent), "echo $SKEP_API_KEY").await;
    assert!(!found.contains(&key) && found.contains("\nsk-skep-"), "{found}");
    let found: Vec<&str> = found.lines().filter(|line| !line.starts_with("sk-skep-")).collect();
    let words = format!("other {own}");
    assert_eq!(found.join("\n"), format!("{words}\n{words}\n{own}\n{VARIABLES}\nticket.json"));
}

async fn commands_find_nothing_of_the_ticket(skep: &Skep, parent: &Value, copy: &Value) {
    let traces = async |vm: &Value| {
        skep.output(pid_of(vm), &format!("echo $OWN $SKEP_TICKET_ID\n{TRACES_OF_TICKET}")).await
    };
    let of_parent = format!("kept {}\n{VARIABLES}\nticket.json", parent["ticket"].as_str().unwrap());
    assert_eq!(traces(parent).await, of_parent, "the control");
    assert_eq!(traces(copy).await, "kept");
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
