//! Tickets of copies: a copy with one of its own, a copy of that copy, and a VM of a snapshot.

use serde_json::{Value, json};

use crate::{
    copies::{fork, path_of, pid_of},
    forks::inheritance::{TRACES_OF_TICKET, VARIABLES},
    harness::Skep,
};

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
    let parent = boot_for_ticket("/api/swarm/boot").await;
    skep.output(pid_of(&parent), "echo '{}' > $SKEP_RESULT_FILE").await;
    // The control.
    assert_eq!(traces(&parent).await, format!("{VARIABLES}\nresult.json\nticket.json"));
    let key = ticket(&parent).await;

    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    assert_eq!(traces(&copy).await, "");
    assert_eq!(skep.output(pid_of(&copy), "echo $OWN").await, "kept");
    // A copy with a ticket has its own, and no result yet. The next copy has neither.
    let worker = boot_for_ticket(&format!("{}/fork", path_of(&parent))).await;
    assert_eq!(traces(&worker).await, format!("{VARIABLES}\nticket.json"));
    assert_ne!(ticket(&worker).await, key);
    let of_worker = fork(&skep, &worker, &json!({})).await.remove(0);
    assert_eq!(traces(&of_worker).await, "");

    skep.post(&format!("{}/snapshot", path_of(&parent)), &json!({"name": "stored"})).await.ok(201);
    let restored = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
    assert_eq!(traces(&restored["vms"][0]).await, "");
    // The parent has all of its own yet.
    assert_eq!(traces(&parent).await, format!("{VARIABLES}\nresult.json\nticket.json"));
    assert_eq!(ticket(&parent).await, key);
}
