//! Logs of commands that work on tickets. The VMs are only rows, and their output is written as the swarm would.

use data_encoding::BASE64;
use jiff::Timestamp;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use skep_accounts::{KeySecret, scopes_of};
use skep_api::{Environment, Role, Scope, TicketId, VmId};
use skep_store::{
    AppendLog, BootAttempt, ChangeTicket, CommandOutcome, LogPosition, NewKey, RecordBoots, RecordCommandEnd,
    TicketCall, VmBooted,
};
use skep_tickets::{Assignee, Claim, Command, Edits};

use crate::harness::{Skep, booted, refused};

/// A VM that was booted with a command for this ticket, and its key.
async fn booted_for(skep: &Skep, ticket: &str, number: u8) -> (VmId, String) {
    let (ticket, account): (TicketId, _) = (ticket.parse().unwrap(), skep.account.id);
    let at = Timestamp::now();
    let claim =
        Claim { assignee: Assignee::Named("booter".to_owned()), vm: None, attempt: None, lease: None };
    let call = TicketCall { account, key: None, vm: None, at, request_id: None };
    let (edits, transition) = (Edits::default(), Some(Command::Claim(claim)));
    let change = ChangeTicket { call, id: ticket, expected: None, edits, transition };
    let attempt = skep.store.change_ticket(change).await.unwrap().attempt;
    let secret = KeySecret::from_random(Environment::Test, [number; 32]);
    let key = NewKey {
        account,
        name: format!("of vm {number}"),
        environment: Environment::Test,
        role: Some(Role::Vm),
        scopes: scopes_of(Role::Vm, "default"),
        vm: None,
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at: None,
        at,
        request_id: None,
    };
    let vm = VmBooted {
        ip: format!("10.77.0.{number}"),
        ticket: Some(ticket),
        exec_id: Some("exec_1".to_owned()),
        ..booted(account, 4_000 + u32::from(number))
    };
    let id = vm.id;
    let work = Some(BootAttempt { ticket, attempt, key, keep_vm: false });
    skep.store
        .record_boots(RecordBoots { vms: vec![vm], at, request_id: None, attempt: work, answer: None })
        .await
        .unwrap();
    (id, secret.expose().to_owned())
}

async fn print(skep: &Skep, vm: VmId, bytes: &[u8]) {
    let append = AppendLog { vm, bytes: bytes.to_vec(), position: LogPosition::default() };
    skep.store.append_log(append).await.unwrap();
}

async fn end(skep: &Skep, vm: VmId) {
    let outcome = CommandOutcome::Completed(Default::default());
    skep.store.record_command_end(RecordCommandEnd { vm, outcome, at: Timestamp::now() }).await.unwrap();
}

#[tokio::test]
async fn a_log_is_read_in_pages_as_text_or_as_its_bytes() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let (vm, _) = booted_for(&skep, &id, 1).await;
    // The last character is not complete yet.
    print(&skep, vm, b"a\xffb\n\xc3").await;
    let page = skep.read(&format!("/api/tickets/{id}/log")).await;
    let expected = json!({
        "ticket": id, "attempt": 1, "vm": vm, "offset": 0, "next_offset": 4, "size_bytes": 5, "output": "a\u{FFFD}b\n",
        "encoding": "utf-8", "running": true, "truncated": false,
    });
    assert_eq!(page, expected);
    print(&skep, vm, b"\xa9!").await;
    let page = skep.read(&format!("/api/tickets/{id}/log?offset=4&vm={vm}")).await;
    assert_eq!((&page["output"], &page["next_offset"]), (&json!("é!"), &json!(7)));
    let page = skep.read(&format!("/api/tickets/{id}/log?encoding=base64&attempt=1")).await;
    assert_eq!(page["output"], BASE64.encode(b"a\xffb\n\xc3\xa9!"));
    print(&skep, vm, &[b'x'; 600_000]).await;
    end(&skep, vm).await;
    let first = skep.read(&format!("/api/tickets/{id}/log")).await;
    assert_eq!((&first["truncated"], &first["next_offset"]), (&json!(true), &json!(512 << 10)));
    let last = skep.read(&format!("/api/tickets/{id}/log?offset={}", first["next_offset"])).await;
    assert_eq!((&last["truncated"], &last["running"]), (&json!(false), &json!(false)));
    assert_eq!(last["next_offset"], 600_007);
    for (query, status, code) in [
        ("attempt=2", 404, "unknown_log"),
        ("vm=vm_01jv0000000000000000000000", 404, "unknown_log"),
        ("vm=4001", 400, "invalid_value"),
        ("offset=-1", 400, "invalid_value"),
        ("encoding=hex", 400, "invalid_value"),
        ("follow=maybe", 400, "invalid_value"),
        ("tail=1", 400, "unknown_field"),
    ] {
        let found = refused(skep.get(&format!("/api/tickets/{id}/log?{query}")).await).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{query}: {}", found.message);
    }
}

/// The events of a stream, up to its end.
async fn events(stream: Response) -> Vec<(String, Value)> {
    assert_eq!(stream.status(), 200);
    let text = stream.text().await.unwrap();
    let line = |event: &str, name: &str| {
        let found = event.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        found.unwrap_or_default()
    };
    let events = text.split("\n\n").filter(|event| event.contains("event:"));
    events
        .map(|event| (line(event, "event: "), serde_json::from_str(&line(event, "data: ")).unwrap()))
        .collect()
}

#[tokio::test]
async fn a_log_that_is_followed_ends_with_its_command() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let (vm, _) = booted_for(&skep, &id, 1).await;
    print(&skep, vm, b"early \xc3").await;
    let stream = skep.get(&format!("/api/tickets/{id}/log?follow=true")).await;
    print(&skep, vm, b"\xa9 ").await;
    let bytes = skep.get(&format!("/api/tickets/{id}/log?follow=true&encoding=base64&offset=6")).await;
    print(&skep, vm, b"late").await;
    end(&skep, vm).await;
    // A later attempt has its own log.
    let received = events(stream).await;
    let text: String = received.iter().filter_map(|(_, data)| data["data"].as_str()).collect();
    assert_eq!(text, "early é late", "{received:?}");
    assert_eq!(received.last().unwrap(), &("end".to_owned(), json!({"attempt": 1, "size_bytes": 13})));
    assert!(received.iter().any(|(name, data)| name == "output" && data["offset"] == 13), "{received:?}");
    let received = events(bytes).await;
    let pieces = received.iter().filter_map(|(_, data)| data["data"].as_str());
    let text: Vec<u8> = pieces.flat_map(|data| BASE64.decode(data.as_bytes()).unwrap()).collect();
    assert_eq!(text, b"\xc3\xa9 late");
    let found = refused(skep.get(&format!("/api/tickets/{id}/log?follow=true&attempt=2")).await).await;
    assert_eq!((found.status, found.code.as_str()), (404, "unknown_log"));
}

#[tokio::test]
async fn a_key_of_a_vm_reads_the_logs_of_its_own_ticket_alone() {
    let skep = Skep::start().await;
    let (need, others) = (skep.simple("need").await, skep.simple("others").await);
    let (of_need, _) = booted_for(&skep, &need, 1).await;
    end(&skep, of_need).await;
    let own = skep.ticket(json!({"title": "own", "dependencies": [need]})).await;
    let (vm, key) = booted_for(&skep, &own, 2).await;
    booted_for(&skep, &others, 3).await;
    print(&skep, vm, b"mine").await;
    let read = async |key: &str, id: &str, query: &str| {
        skep.bare(Method::GET, &format!("/api/tickets/{id}/log{query}"))
            .bearer_auth(key)
            .send()
            .await
            .unwrap()
    };
    let page: Value = read(&key, &own, "").await.json().await.unwrap();
    assert_eq!(page["output"], "mine");
    let account = skep.other_account("acme").await;
    let foreign = skep.key_of(&account, &[Scope::TicketsRead]).await;
    // The key may read the prerequisite of its ticket, but not the log of the prerequisite.
    for (key, id) in [(&key, &need), (&key, &others), (&foreign, &own)] {
        for query in ["", "?follow=true"] {
            let found = refused(read(key, id, query).await).await;
            assert_eq!((found.status, found.code.as_str()), (404, "unknown_ticket"), "{id}");
        }
    }
}
