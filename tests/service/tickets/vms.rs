//! Tickets that VMs hold, and the keys of these VMs. The VMs are only rows in the store.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use skep_accounts::{KeySecret, scopes_of};
use skep_api::{
    Environment, Role, TemplateId, VmId,
    swarm::{EndReason, PausedBy},
};
use skep_store::{
    AttemptTimer, ChangeTicket, EndAttempt, NewKey, PauseChange, RecordEnd, RecordPause, TicketCall, VmBooted,
};
use skep_tickets::{Assignee, Claim, Command, Edits};

use super::done;
use crate::{
    clock::advance_clock,
    harness::{Skep, booted, eventually, refused},
};

/// A running VM and its key.
pub(crate) async fn vm(skep: &Skep, number: u8) -> (VmId, String) {
    vm_at(skep, number, format!("10.77.0.{number}")).await
}

/// A running VM with this address, and its key.
pub(crate) async fn vm_at(skep: &Skep, number: u8, ip: String) -> (VmId, String) {
    let booted = VmBooted { ip, ..booted(skep.account.id, 4_000 + u32::from(number)) };
    let id = booted.id;
    skep.record_boots(vec![booted], Timestamp::now(), None).await;
    let secret = KeySecret::from_random(Environment::Test, [number; 32]);
    let key = NewKey {
        account: skep.account.id,
        name: format!("of vm {number}"),
        environment: Environment::Test,
        role: Some(Role::Vm),
        scopes: scopes_of(Role::Vm, "default"),
        vm: Some(id),
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at: None,
        at: Timestamp::now(),
        request_id: None,
    };
    skep.store.create_key(key).await.unwrap();
    (id, secret.expose().to_owned())
}

/// Claims a ticket for a VM, as a boot does.
async fn held_by(skep: &Skep, id: &str, vm: VmId) {
    let claim =
        Claim { assignee: Assignee::Named(format!("{vm}")), vm: Some(vm), attempt: None, lease: None };
    let call =
        TicketCall { account: skep.account.id, key: None, vm: None, at: Timestamp::now(), request_id: None };
    let change = ChangeTicket {
        call,
        id: id.parse().unwrap(),
        expected: None,
        edits: Edits::default(),
        transition: Some(Command::Claim(claim)),
    };
    assert_eq!(skep.store.change_ticket(change).await.unwrap().vm, Some(vm));
}

async fn ended(skep: &Skep, vm: VmId, reason: EndReason) {
    skep.store
        .record_end(RecordEnd { vm, reason, at: Timestamp::now(), request_id: None, message: None })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_ticket_ends_with_its_vm_and_an_operators_act_does_not_count() {
    let skep = Skep::start().await;
    for (number, reason, outcome, counted) in [
        (1, EndReason::Crashed, "vm_ended", true),
        (2, EndReason::Lost, "vm_ended", true),
        (3, EndReason::Deleted, "released", false),
        (4, EndReason::Cleanup, "released", false),
    ] {
        let (vm, _) = vm(&skep, number).await;
        let id = skep.ticket(json!({"title": "a", "max_attempts": 1})).await;
        held_by(&skep, &id, vm).await;
        ended(&skep, vm, reason).await;
        let record = skep.record(&id).await;
        let expected = if counted { "failed" } else { "pending" };
        assert_eq!(record["status"], expected, "{reason:?}");
        let history = skep.read(&format!("/api/tickets/{id}/history")).await;
        assert_eq!(history["attempts"][0]["outcome"], outcome);
        assert_eq!(history["attempts"][0]["vm"], json!(vm));
        let actor = |place: usize| &history["events"][place]["actor"];
        assert_eq!(history["events"][2]["type"], "ticket.claimed");
        assert_eq!(actor(2), &json!({"key": null, "assignee": vm, "vm": vm}));
        assert_eq!(actor(3)["key"], Value::Null, "the server ended the attempt");
    }
}

#[tokio::test]
async fn a_vm_that_lives_keeps_its_ticket() {
    let skep = Skep::start().await;
    let (vm, _) = vm(&skep, 1).await;
    let id = skep.simple("a").await;
    held_by(&skep, &id, vm).await;
    let up = |beats| EndAttempt {
        ticket: id.parse().unwrap(),
        attempt: 1,
        timer: AttemptTimer::Lease { beats },
        at: Timestamp::now(),
    };
    for beats in 0..3 {
        assert!(!skep.store.end_attempt(up(beats)).await.unwrap(), "it is renewed");
    }
    let record = skep.record(&id).await;
    assert_eq!((&record["status"], &record["version"]), (&json!("in_progress"), &json!(2)));
}

#[tokio::test]
async fn the_server_renews_the_lease_of_a_vm_also_while_it_is_paused() {
    let skep = Skep::start().await;
    let (vm, _) = vm(&skep, 1).await;
    let id = skep.simple("a").await;
    held_by(&skep, &id, vm).await;
    // This is the minimum lease.
    let beat = json!({"attempt": 1, "lease_ms": 5_000});
    done(skep.call(Method::POST, &format!("/api/tickets/{id}/heartbeat"), &beat), 200).await;
    let (by, snapshot) = (PausedBy::Request, TemplateId::generate());
    let pauses = [PauseChange::PausedToMemory { by }, PauseChange::PausedToDisk { by, snapshot }];
    for pause in [None].into_iter().chain(pauses.map(Some)) {
        if let Some(change) = pause {
            let pause = RecordPause { vm, change, at: Timestamp::now(), request_id: None };
            skep.store.record_pause(pause).await.unwrap();
        }
        // Twice, because a renewal must set the timer again.
        for _ in 0..2 {
            let before = skep.record(&id).await["lease_expires_at"].clone();
            advance_clock(Duration::from_secs(5)).await;
            eventually("a renewed lease", async || {
                let record = skep.record(&id).await;
                assert_eq!(record["status"], "in_progress", "{pause:?}");
                record["lease_expires_at"] != before
            })
            .await;
        }
    }
    assert_eq!(skep.record(&id).await["attempt"], 1);
    assert_eq!(skep.events(&id).await, ["created", "ready", "claimed"]);
}

#[tokio::test]
async fn a_key_of_a_vm_only_beats_and_finishes_its_own_ticket() {
    let skep = Skep::start().await;
    let ((own_vm, key), (other_vm, _)) = (vm(&skep, 1).await, vm(&skep, 2).await);
    let (own, others, free) =
        (skep.simple("own").await, skep.simple("others").await, skep.simple("free").await);
    held_by(&skep, &own, own_vm).await;
    held_by(&skep, &others, other_vm).await;
    let send = async |method: Method, path: &str, body: Value| {
        skep.bare(method, path).bearer_auth(&key).json(&body).send().await.unwrap()
    };
    let end = json!({"status": "completed"});
    for id in [&others, &free, &skep_api::TicketId::generate().to_string()] {
        let found = refused(send(Method::PATCH, &format!("/api/tickets/{id}"), end.clone()).await).await;
        assert_eq!((found.status, found.code.as_str()), (404, "unknown_ticket"));
        let found =
            refused(send(Method::POST, &format!("/api/tickets/{id}/heartbeat"), json!({})).await).await;
        assert_eq!((found.status, found.code.as_str()), (404, "unknown_ticket"));
    }
    for (method, path, body) in [
        (Method::POST, "/api/tickets".to_owned(), json!({"title": "x"})),
        (Method::POST, "/api/tickets/batch".to_owned(), json!({"tickets": [{"title": "x"}]})),
        (Method::POST, "/api/tickets/claim".to_owned(), json!({})),
        (Method::DELETE, format!("/api/tickets/{own}"), json!({})),
        (Method::PATCH, format!("/api/tickets/{own}"), json!({"title": "x"})),
        (Method::PATCH, format!("/api/tickets/{own}"), json!({"status": "pending"})),
        (Method::PATCH, format!("/api/tickets/{own}"), json!({"status": "completed", "title": "x"})),
    ] {
        let found = refused(send(method.clone(), &path, body).await).await;
        assert_eq!((found.status, found.code.as_str()), (403, "vm_key_limited"), "{method} {path}");
    }
    for path in ["", &format!("/{own}/why"), &format!("/{own}/history")] {
        let found = refused(send(Method::GET, &format!("/api/tickets{path}"), json!({})).await).await;
        assert_eq!((found.status, found.code.as_str()), (403, "vm_key_limited"), "{path}");
    }
    assert_eq!(
        send(Method::POST, &format!("/api/tickets/{own}/heartbeat"), json!({"attempt": 1})).await.status(),
        200
    );
    let done =
        send(Method::PATCH, &format!("/api/tickets/{own}"), json!({"status": "completed", "attempt": 1}))
            .await;
    assert_eq!(done.status(), 200);
    assert_eq!(skep.record(&others).await["status"], "in_progress");
}

#[tokio::test]
async fn a_key_of_a_vm_reads_its_ticket_and_the_direct_prerequisites_of_that() {
    let skep = Skep::start().await;
    let ((own_vm, key), (other_vm, other_key)) = (vm(&skep, 1).await, vm(&skep, 2).await);
    let far = skep.simple("far").await;
    let near = skep.ticket(json!({"title": "near", "dependencies": [far]})).await;
    let own = skep.ticket(json!({"title": "own", "dependencies": [near]})).await;
    let after = skep.ticket(json!({"title": "after", "dependencies": [own]})).await;
    let others = skep.simple("others").await;
    for id in [&far, &near] {
        let body = json!({"status": "in_progress", "assignee": "x"});
        let path = format!("/api/tickets/{id}");
        for body in [body, json!({"status": "completed", "result": {"of": "the prerequisite"}})] {
            let done = skep.request(Method::PATCH, &path).json(&body).send().await.unwrap();
            assert_eq!(done.status(), 200, "{:?}", done.text().await);
        }
    }
    held_by(&skep, &own, own_vm).await;
    held_by(&skep, &others, other_vm).await;
    let read = async |key: &str, id: &str| {
        let path = format!("/api/tickets/{id}");
        skep.bare(Method::GET, &path).bearer_auth(key).send().await.unwrap()
    };
    assert_eq!(read(&key, &own).await.json::<Value>().await.unwrap()["title"], "own");
    let prerequisite: Value = read(&key, &near).await.json().await.unwrap();
    assert_eq!(prerequisite["result"]["of"], "the prerequisite");
    for (key, id) in [(&key, &far), (&key, &after), (&key, &others), (&other_key, &own), (&other_key, &near)]
    {
        let found = refused(read(key, id).await).await;
        assert_eq!((found.status, found.code.as_str()), (404, "unknown_ticket"), "{id}");
    }
}
