//! Tests of VMs.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;
use skep_api::{
    AccountId, ErrorCode, Patch, VmId,
    egress::EgressPolicy,
    swarm::{BootAnswer, EndReason},
    tickets::{AttemptOutcome, Object},
};

use super::{
    account_named, all_events, boot, booted, counts, default_account, end, events_of, hash, moment, new_key,
    tickets::{call, change, claim, completion, create_ticket},
};
use crate::{
    BootAttempt, ChangeVm, CommandOutcome, DeleteTicket, Dependents, EndVms, EventKind, IdempotentRequest,
    ListVms, ReadTicketHistory, RecordBoots, RecordCommandEnd, Store, TicketSignal, TrimHistory,
    VmAttributes, VmBooted, VmChange, VmEnd, VmFilter, VmRecord, VmSet, VmToEnd, VmWithoutAttempt,
};

pub async fn boots_are_recorded_as_they_were(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vms = [booted(account, 3), booted(account, 4), booted(account, u32::MAX / 2)];
    // Oldest first, independent of the order in the command.
    let reversed = vms.iter().rev().cloned().collect();
    store.record_boots(boot(reversed)).await.unwrap();
    let alive = store.live_vms().await.unwrap();
    let expected: Vec<_> = vms.iter().cloned().map(|vm| record_of(vm, None)).collect();
    assert_eq!(alive, expected);

    let events = events_of(&*store, EventKind::VmBooted).await;
    assert_eq!(events.len(), 3);
    for (event, vm) in events.iter().zip(vms.iter().rev()) {
        assert_eq!(
            serde_json::Value::from(event.body.clone()),
            json!({ "vm": vm.id, "pid": vm.pid, "name": null, "boot": vm.boot })
        );
        assert_eq!((event.at, event.request_id.as_deref()), (moment(500), Some("boot")));
    }
}

pub async fn boots_are_all_or_none(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let twice = booted(account, 4);
    store.record_boots(boot(vec![booted(account, 3), twice.clone(), twice])).await.unwrap_err();
    assert!(store.live_vms().await.unwrap().is_empty());
    assert!(all_events(&*store).await.is_empty());
}

pub async fn what_may_change_of_a_vm_changes_while_it_lives(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (vm, other) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![vm.clone(), other.clone()])).await.unwrap();
    let nothing = ChangeVm { vm: vm.id, change: VmChange::default(), at: moment(550), request_id: None };
    assert_eq!(store.change_vm(nothing.clone()).await.unwrap().vm, vm);
    let changing = |change| ChangeVm { change, ..nothing.clone() };
    let later = changing(VmChange { expires_at: Some(Some(moment(900))), ..VmChange::default() });
    assert_eq!(store.change_vm(later).await.unwrap().vm.attributes.expires_at, Some(moment(900)));
    let metadata = serde_json::Map::from_iter([("job".to_owned(), json!(7))]);
    let written = changing(VmChange { metadata: Some(metadata.clone()), ..VmChange::default() });
    let changed = store.change_vm(written).await.unwrap().vm.attributes;
    assert_eq!((changed.expires_at, changed.metadata), (Some(moment(900)), metadata));
    let egress = EgressPolicy::listing(&["api.example.com"]).unwrap();
    let opened = changing(VmChange { egress: Some(egress.clone()), ..VmChange::default() });
    assert_eq!(store.change_vm(opened).await.unwrap().vm.attributes.egress, egress);
    let never = changing(VmChange { expires_at: Some(None), ..VmChange::default() });
    let changed = store.change_vm(never).await.unwrap().vm;
    assert_eq!((changed.attributes.expires_at, &changed), (None, &store.live_vms().await.unwrap()[0].vm));
    assert_eq!(store.live_vms().await.unwrap()[1].vm, other, "no other VM changes");
    store.record_end(end(vm.id, EndReason::Deleted, 600)).await.unwrap();
    assert_eq!(store.change_vm(nothing).await.unwrap_err().code(), ErrorCode::UnknownVm);
}

/// The record of a VM that runs no command and was never paused.
fn record_of(vm: VmBooted, end: Option<VmEnd>) -> VmRecord {
    VmRecord { vm, command_runs: false, pause: None, snapshot: None, resumed_at: None, end }
}

fn named(account: AccountId, pid: u32, name: &str) -> VmBooted {
    let vm = booted(account, pid);
    VmBooted { attributes: VmAttributes { name: Some(name.parse().unwrap()), ..vm.attributes }, ..vm }
}

pub async fn a_name_belongs_to_one_living_vm_of_an_account(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let (web, plain) = (named(own, 3, "web"), booted(own, 4));
    store.record_boots(boot(vec![web.clone(), plain.clone()])).await.unwrap();
    store.record_boots(boot(vec![named(other, 5, "web")])).await.unwrap();
    let before = all_events(&*store).await.len();
    let taken = store.record_boots(boot(vec![booted(own, 6), named(own, 7, "web")])).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::NameTaken);
    assert!(taken.to_string().contains(&web.id.to_string()), "{taken}");
    assert_eq!(all_events(&*store).await.len(), before, "nothing of it is left");
    assert_eq!(store.live_vms().await.unwrap().len(), 3);

    let name = |vm: &VmBooted, name: Option<&str>| ChangeVm {
        vm: vm.id,
        change: VmChange { name: Some(name.map(|name| name.parse().unwrap())), ..VmChange::default() },
        at: moment(550),
        request_id: Some("rename".to_owned()),
    };
    let taken = store.change_vm(name(&plain, Some("web"))).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::NameTaken);
    assert_eq!(store.change_vm(name(&web, Some("web"))).await.unwrap().vm, web, "its own name");
    assert_eq!(store.change_vm(name(&web, None)).await.unwrap().vm.attributes.name, None);
    store.change_vm(name(&plain, Some("web"))).await.unwrap();
    let renamed = events_of(&*store, EventKind::VmRenamed).await;
    let bodies = renamed.iter().map(|event| serde_json::Value::from(event.body.clone())).collect::<Vec<_>>();
    let expected = [
        json!({ "vm": web.id, "pid": web.pid, "name": null, "from": "web" }),
        json!({ "vm": plain.id, "pid": plain.pid, "name": "web", "from": null }),
    ];
    assert_eq!(bodies, expected, "none where the name stays, or is refused");
    assert_eq!((renamed[0].at, renamed[0].request_id.as_deref()), (moment(550), Some("rename")));
    // The name is available again once its VM has ended; the record keeps it.
    store.record_end(end(plain.id, EndReason::Deleted, 600)).await.unwrap();
    store.record_boots(boot(vec![named(own, 8, "web")])).await.unwrap();
    let events = events_of(&*store, EventKind::VmEnded).await;
    assert_eq!(events[0].body["name"], json!("web"));
    let booted = events_of(&*store, EventKind::VmBooted).await;
    assert_eq!(booted.last().unwrap().body["name"], json!("web"));
}

/// Lists VMs with pages of one VM.
async fn pages_of_what_a_filter_leaves(store: &dyn Store, account: AccountId, filter: VmFilter) {
    let query = ListVms { account, set: VmSet::Ended, filter, limit: 1, after: None };
    let first = store.list_vms(query.clone()).await.unwrap();
    assert_eq!((first.vms[0].vm.pid, first.next), (11, Some(first.vms[0].vm.id)));
    let last = store.list_vms(ListVms { after: first.next, ..query }).await.unwrap();
    assert_eq!((last.vms[0].vm.pid, last.next), (10, None));
}

/// Gives the VMs new ids, so that lists have them in this order.
fn in_the_order_of_their_ids(vms: &mut [VmBooted]) {
    let mut last = None;
    for vm in vms {
        vm.id = VmId::generate_after(last);
        last = Some(vm.id);
    }
}

fn with_metadata(vm: VmBooted, metadata: serde_json::Map<String, serde_json::Value>) -> VmBooted {
    VmBooted { attributes: VmAttributes { metadata, ..vm.attributes }, ..vm }
}

pub async fn lists_of_vms_are_filtered_by_name_template_and_metadata(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let metadata = |value| serde_json::Map::from_iter([("a \"b\".c".to_owned(), value)]);
    let values = [json!("7"), json!(7), json!(true), json!(1.5), json!({"x": 1}), json!(null), json!("süß")];
    let mut vms: Vec<_> =
        (10..).zip(values).map(|(pid, value)| with_metadata(booted(account, pid), metadata(value))).collect();
    vms.push(VmBooted { template: "other".to_owned(), ..named(account, 30, "web") });
    in_the_order_of_their_ids(&mut vms);
    store.record_boots(boot(vms.clone())).await.unwrap();
    let found = async |which, filter| {
        let query = ListVms { account, set: which, filter, limit: 100, after: None };
        let page = store.list_vms(query).await.unwrap();
        page.vms.into_iter().map(|record| record.vm.pid).collect::<Vec<_>>()
    };
    let having = |value: &str| VmFilter {
        metadata: [("a \"b\".c".to_owned(), value.to_owned())].into(),
        ..VmFilter::default()
    };
    let named = |name: &str| VmFilter { name: Some(name.to_owned()), ..VmFilter::default() };
    let from = |template: &str| VmFilter { template: Some(template.to_owned()), ..VmFilter::default() };
    let two = VmFilter { name: Some("web".to_owned()), ..from("base") };
    let unknown = VmFilter { metadata: [("b".to_owned(), "7".to_owned())].into(), ..VmFilter::default() };
    let cases = [
        (VmFilter::default(), vec![30, 16, 15, 14, 13, 12, 11, 10]),
        (having("7"), vec![11, 10]),
        (having("true"), vec![12]),
        (having("1.5"), vec![13]),
        (having("null"), vec![15]),
        (having("süß"), vec![16]),
        (having(""), vec![]),
        (having("' OR 1"), vec![]),
        (unknown, vec![]),
        (named("web"), vec![30]),
        (named("WEB"), vec![]),
        (from("other"), vec![30]),
        (two, vec![]),
    ];
    for (filter, expected) in &cases {
        assert_eq!(&found(VmSet::Live, filter.clone()).await, expected, "{filter:?}");
    }
    for (vm, step) in vms.iter().zip(600..) {
        store.record_end(end(vm.id, EndReason::Deleted, step)).await.unwrap();
    }
    for (filter, expected) in cases {
        assert_eq!(found(VmSet::Ended, filter.clone()).await, expected, "{filter:?}");
    }
    pages_of_what_a_filter_leaves(&*store, account, having("7")).await;
}

pub async fn a_second_end_changes_nothing(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vm = booted(account, 3);
    store.record_boots(boot(vec![vm.clone()])).await.unwrap();
    let first = store.record_end(end(vm.id, EndReason::OutOfMemory, 600)).await.unwrap();
    assert!(first.first);
    assert_eq!(first.record.end, Some(VmEnd { at: moment(600), reason: EndReason::OutOfMemory }));
    let second = store.record_end(end(vm.id, EndReason::Deleted, 700)).await.unwrap();
    assert!(!second.first);
    assert_eq!(second.record, first.record);
    assert!(store.live_vms().await.unwrap().is_empty());

    let events = events_of(&*store, EventKind::VmEnded).await;
    assert_eq!(events.len(), 1);
    let body = json!({ "vm": vm.id, "pid": 3, "name": null, "reason": "out_of_memory" });
    assert_eq!(serde_json::Value::from(events[0].body.clone()), body);
    let unknown = store.record_end(end(VmId::generate(), EndReason::Lost, 1)).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownVm);
}

pub async fn keys_end_with_their_vm(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (vm, other) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![vm.clone(), other.clone()])).await.unwrap();
    let mut keys = Vec::new();
    for (number, bound) in [(1, Some(vm.id)), (2, Some(vm.id)), (3, Some(other.id)), (4, None)] {
        let mut command = new_key(account, &format!("key {number}"), number);
        command.vm = bound;
        keys.push(store.create_key(command).await.unwrap().key.id);
    }
    store.record_end(end(vm.id, EndReason::Poweroff, 600)).await.unwrap();
    for (id, revoked_at) in keys.into_iter().zip([Some(moment(600)), Some(moment(600)), None, None]) {
        assert_eq!(store.key(account, id).await.unwrap().key.revoked_at, revoked_at);
    }
    let counts = counts(&*store).await;
    assert_eq!((counts["vm.ended"], counts["key.revoked"]), (1, 2));
}

pub async fn a_start_ends_those_that_it_lost(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vms: Vec<_> = (3..7).map(|pid| booted(account, pid)).collect();
    store.record_boots(boot(vms.clone())).await.unwrap();
    store.record_end(end(vms[0].id, EndReason::Deleted, 600)).await.unwrap();
    // One that has ended already and an unknown one, but not the last one.
    let lost = [vms[2].id, VmId::generate(), vms[0].id, vms[1].id];
    let message = |vm| (vm != vms[1].id).then(|| format!("{vm} did not answer"));
    let lost = lost.map(|vm| VmToEnd { vm, message: message(vm) }).into();
    let command = EndVms { vms: lost, reason: EndReason::Lost, at: moment(700) };
    let ended = store.end_vms(command.clone()).await.unwrap();
    let lost = Some(VmEnd { at: moment(700), reason: EndReason::Lost });
    let expected: Vec<_> = [2, 1].map(|at: usize| record_of(vms[at].clone(), lost)).into();
    assert_eq!(ended, expected);
    assert!(store.end_vms(command).await.unwrap().is_empty());
    let events = events_of(&*store, EventKind::VmEnded).await;
    let messages: Vec<_> = events.iter().map(|event| event.body.get("message").cloned()).collect();
    assert_eq!(messages, [None, message(vms[2].id).map(Into::into), None]);
    let alive: Vec<_> = store.live_vms().await.unwrap().into_iter().map(|record| record.vm.id).collect();
    assert_eq!(alive, [vms[3].id]);
    assert_eq!(counts(&*store).await["vm.ended"], 3);
}

/// A VM that was booted for a ticket that has been claimed for it.
async fn booted_for(store: &dyn Store, pid: u32) -> (VmBooted, RecordBoots) {
    let account = default_account(store).await.id;
    let ticket = create_ticket(store, account, Vec::new()).await;
    store.change_ticket(change(account, ticket, claim("booter", None))).await.unwrap();
    let vm = VmBooted { ticket: Some(ticket), ..booted(account, pid) };
    let key = new_key(account, &format!("of vm {pid}"), 7);
    let work = Some(BootAttempt { ticket, attempt: 1, key, keep_vm: false });
    (vm.clone(), RecordBoots { attempt: work, ..boot(vec![vm]) })
}

pub async fn a_vm_that_is_booted_for_a_ticket_holds_it_with_a_key_of_its_own(store: Arc<dyn Store>) {
    let (vm, command) = booted_for(&*store, 3).await;
    let mut signals = store.ticket_signals();
    store.record_boots(command).await.unwrap();
    assert!(matches!(signals.try_recv(), Ok(TicketSignal::Held(open)) if Some(open.ticket) == vm.ticket));
    let (account, id) = (vm.account, vm.ticket.unwrap());
    let alive: Vec<VmBooted> = store.live_vms().await.unwrap().into_iter().map(|record| record.vm).collect();
    assert_eq!(alive, std::slice::from_ref(&vm));
    let ticket = store.ticket(account, id, moment(900)).await.unwrap();
    assert_eq!((ticket.vm, ticket.assignee.as_deref(), ticket.attempt), (Some(vm.id), Some("booter"), 1));
    let events = events_of(&*store, EventKind::TicketUpdated).await;
    assert_eq!(events[0].body["changes"], json!({"vm": [null, vm.id], "version": [2, 3]}));
    assert_eq!(ticket.version, 3);
    let key = store.key_by_hash(hash(7)).await.unwrap().unwrap().record.key;
    assert_eq!(key.vm, Some(vm.id));
    // Both end with the VM. An attempt ended by an operator does not count.
    store.record_end(end(vm.id, EndReason::Deleted, 950)).await.unwrap();
    let ticket = store.ticket(account, id, moment(960)).await.unwrap();
    assert_eq!((ticket.status.as_str(), ticket.vm), ("pending", None));
    assert!(store.key(account, key.id).await.unwrap().key.revoked_at.is_some());
}

pub async fn an_attempt_ends_with_the_command_of_its_boot(store: Arc<dyn Store>) {
    let (_, mut command) = booted_for(&*store, 3).await;
    command.vms[0].exec_id = Some("exec_1".to_owned());
    let vm = command.vms[0].clone();
    let (account, id) = (vm.account, vm.ticket.unwrap());
    store.record_boots(command).await.unwrap();
    let alive = store.live_vms().await.unwrap();
    assert_eq!((alive[0].command_runs, alive[0].vm.exec_id.as_deref()), (true, Some("exec_1")));
    let evidence = serde_json::Map::from_iter([("exit_code".to_owned(), json!(7))]);
    let ended = |vm| {
        let outcome = CommandOutcome::AttemptFailed(evidence.clone());
        RecordCommandEnd { vm, outcome, at: moment(950) }
    };
    store.record_command_end(ended(vm.id)).await.unwrap();
    let ticket = store.ticket(account, id, moment(960)).await.unwrap();
    assert_eq!((ticket.status.as_str(), ticket.vm), ("pending", None));
    let events = events_of(&*store, EventKind::TicketLeaseExpired).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        last_attempt(&*store, &vm).await,
        (Some(AttemptOutcome::CommandEnded), Some(evidence.clone()))
    );
    assert_eq!(ticket.result, None, "it is the attempt's");
    let alive = store.live_vms().await.unwrap();
    assert_eq!((alive.len(), alive[0].command_runs), (1, false), "the VM lives on");
    // A second end changes nothing.
    let before = all_events(&*store).await.len();
    store.record_command_end(ended(vm.id)).await.unwrap();
    assert_eq!(all_events(&*store).await.len(), before);
    let unknown = store.record_command_end(ended(VmId::generate())).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownVm);
}

/// Outcome and stored result of the only attempt at a VM's ticket.
async fn last_attempt(store: &dyn Store, vm: &VmBooted) -> (Option<AttemptOutcome>, Option<Object>) {
    let query = ReadTicketHistory { account: vm.account, id: vm.ticket.unwrap(), limit: 10, after: None };
    let attempt = store.ticket_history(query).await.unwrap().attempts.pop().unwrap();
    (attempt.outcome, attempt.result)
}

pub async fn a_command_completes_its_ticket_or_gives_it_back(store: Arc<dyn Store>) {
    let object = |word: &str| Object::from_iter([("word".to_owned(), json!(word))]);
    let (done, back, kept) =
        (CommandOutcome::Completed(object("a")), CommandOutcome::Released(object("b")), object("c"));
    let mut vms = Vec::new();
    for pid in 3..6 {
        let (_, mut command) = booted_for(&*store, pid).await;
        command.attempt.as_mut().unwrap().key.hash = hash(u8::try_from(pid).unwrap());
        command.vms[0].exec_id = Some(format!("exec_{pid}"));
        vms.push(command.vms[0].clone());
        store.record_boots(command).await.unwrap();
    }
    let account = vms[0].account;
    // The third command finished its ticket before it ended.
    let failed = skep_tickets::FinishRequest {
        resolution: skep_tickets::Resolution::Failed,
        result: Patch::Value(kept.clone()),
        attempt: Some(1),
        assignee: skep_tickets::Assignee::KeyName("key".to_owned()),
    };
    let failed = skep_tickets::Command::Finish(failed);
    store.change_ticket(change(account, vms[2].ticket.unwrap(), failed)).await.unwrap();
    let mut signals = store.ticket_signals();
    for (vm, outcome) in vms.iter().zip([done.clone(), back, done]) {
        let end = RecordCommandEnd { vm: vm.id, outcome, at: moment(950) };
        store.record_command_end(end).await.unwrap();
    }
    let mut records = Vec::new();
    for vm in &vms {
        let ticket = store.ticket(account, vm.ticket.unwrap(), moment(960)).await.unwrap();
        records.push((ticket.status.as_str(), ticket.result, last_attempt(&*store, vm).await));
    }
    let completed = (Some(AttemptOutcome::Completed), Some(object("a")));
    assert_eq!(records[0], ("completed", Some(object("a")), completed));
    let released = (Some(AttemptOutcome::Released), Some(object("b")));
    assert_eq!(records[1], ("pending", None, released));
    let failed = (Some(AttemptOutcome::Failed), Some(kept.clone()));
    assert_eq!(records[2], ("failed", Some(kept), failed), "the result that the agent sent stays");
    let mut ended_vms = Vec::new();
    while let Ok(signal) = signals.try_recv() {
        ended_vms.extend(if let TicketSignal::VmWithoutAttempt(ended) = signal { Some(ended) } else { None });
    }
    let ended = |vm: &VmBooted, finished| VmWithoutAttempt { account, vm: vm.id, finished };
    assert_eq!(ended_vms, [ended(&vms[0], true), ended(&vms[1], false)]);
}

pub async fn a_vm_whose_attempt_has_ended_is_not_recorded(store: Arc<dyn Store>) {
    let (vm, command) = booted_for(&*store, 3).await;
    let (account, id) = (vm.account, vm.ticket.unwrap());
    let release = skep_tickets::Release { attempt: None, assignee: None, retry_after: None, by_status: true };
    store.change_ticket(change(account, id, skep_tickets::Command::Release(release))).await.unwrap();
    store.change_ticket(change(account, id, claim("another", None))).await.unwrap();
    let before = all_events(&*store).await.len();
    let refused = store.record_boots(command).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Superseded);
    assert!(store.live_vms().await.unwrap().is_empty());
    assert!(store.key_by_hash(hash(7)).await.unwrap().is_none());
    assert_eq!(all_events(&*store).await.len(), before, "nothing of it is left");
}

pub async fn a_vm_is_to_end_with_its_attempt_unless_it_is_kept(store: Arc<dyn Store>) {
    let mut vms = Vec::new();
    for pid in 3..8 {
        let (vm, mut command) = booted_for(&*store, pid).await;
        let work = command.attempt.as_mut().unwrap();
        work.keep_vm = pid == 3;
        work.key.hash = hash(u8::try_from(pid).unwrap());
        store.record_boots(command).await.unwrap();
        vms.push(vm);
    }
    let [kept, completed, released, deleted, gone] = vms.try_into().unwrap();
    let account = kept.account;
    let ticket = |vm: &VmBooted| vm.ticket.unwrap();
    assert!(store.vms_without_attempt().await.unwrap().is_empty(), "all attempts go on");
    let mut signals = store.ticket_signals();
    for vm in [&kept, &completed] {
        store.change_ticket(change(account, ticket(vm), completion(Some(1)))).await.unwrap();
    }
    let release = skep_tickets::Release { attempt: None, assignee: None, retry_after: None, by_status: true };
    let release = change(account, ticket(&released), skep_tickets::Command::Release(release));
    store.change_ticket(release).await.unwrap();
    // The next attempt does not belong to the VM.
    store.change_ticket(change(account, ticket(&released), claim("another", None))).await.unwrap();
    let delete = DeleteTicket {
        call: call(account, 50),
        id: ticket(&deleted),
        expected: None,
        force: true,
        dependents: Dependents::Refuse,
    };
    store.delete_ticket(delete).await.unwrap();
    store.record_end(end(gone.id, EndReason::Crashed, 600)).await.unwrap();
    let expected = [(&completed, true), (&released, false), (&deleted, false)]
        .map(|(vm, finished)| VmWithoutAttempt { account, vm: vm.id, finished });
    let mut ended_vms = Vec::new();
    while let Ok(signal) = signals.try_recv() {
        ended_vms.extend(if let TicketSignal::VmWithoutAttempt(ended) = signal { Some(ended) } else { None });
    }
    assert_eq!(ended_vms, expected);
    assert_eq!(store.vms_without_attempt().await.unwrap(), expected, "for a server that missed the signals");
    for vm in [&completed, &released, &deleted] {
        store.record_end(end(vm.id, EndReason::TicketEnded, 700)).await.unwrap();
    }
    assert!(store.vms_without_attempt().await.unwrap().is_empty());
    let claimed = store.ticket(account, ticket(&released), moment(800)).await.unwrap();
    assert_eq!(claimed.assignee.as_deref(), Some("another"), "the end of the VM changes no other attempt");
}

pub async fn the_answer_of_a_named_boot_is_kept_with_it_for_a_day(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let once = |body: u8| IdempotentRequest {
        path: "/api/swarm/boot",
        key: "first".to_owned(),
        body_hash: [body; 32],
    };
    let answer = BootAnswer { vms: Vec::new(), elapsed_ms: 7.5 };
    let before = async |account, body, at| store.stored_boot_answer(account, once(body), at).await;
    assert!(before(own, 1, moment(500)).await.unwrap().is_none());
    let (_, mut failing) = booted_for(&*store, 9).await;
    failing.vms.push(booted(AccountId::generate(), 10));
    failing.answer = Some((once(1), answer.clone()));
    store.record_boots(failing).await.unwrap_err();
    assert!(before(own, 1, moment(500)).await.unwrap().is_none(), "nothing of what failed is kept");
    let kept = Some((once(1), answer.clone()));
    store.record_boots(RecordBoots { answer: kept, ..boot(vec![booted(own, 3)]) }).await.unwrap();
    let found = before(own, 1, moment(600)).await.unwrap().unwrap();
    assert_eq!((found.vms.len(), found.elapsed_ms), (0, 7.5));
    assert_eq!(before(own, 2, moment(600)).await.unwrap_err().code(), ErrorCode::IdempotencyMismatch);
    assert!(before(other, 1, moment(600)).await.unwrap().is_none());
    assert!(before(own, 1, moment(86_400_000 + 501)).await.unwrap().is_none());
}

pub async fn records_of_vms_that_ended_are_kept_as_long_as_events(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vms: Vec<_> = (3..9).map(|pid| booted(account, pid)).collect();
    store.record_boots(boot(vms.clone())).await.unwrap();
    // One VM has a key that refers to it, and one is running.
    let mut bound = new_key(account, "bound", 1);
    bound.vm = Some(vms[1].id);
    store.create_key(bound).await.unwrap();
    for (vm, step) in vms.iter().zip(600..605) {
        store.record_end(end(vm.id, EndReason::Deleted, step)).await.unwrap();
    }
    let ended = async || {
        let filter = VmFilter::default();
        let query = ListVms { account, set: VmSet::Ended, filter, limit: 100, after: None };
        let page = store.list_vms(query).await.unwrap();
        page.vms.into_iter().map(|record| record.vm.pid).collect::<Vec<_>>()
    };
    assert_eq!(ended().await, [7, 6, 5, 4, 3]);
    let command = TrimHistory { before: moment(603), bytes: 1 << 40, batch: 1 };
    while !store.trim_history(command).await.unwrap().is_empty() {}
    assert_eq!(ended().await, [7, 6, 4], "what ended before, but for the VM of a key");
    let alive = store.live_vms().await.unwrap();
    assert_eq!(alive.into_iter().map(|record| record.vm.pid).collect::<Vec<_>>(), [8]);
}

pub async fn those_that_live_are_counted_by_account(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let (stays, ends) = (booted(own, 3), booted(own, 4));
    store.record_boots(boot(vec![stays, ends.clone(), booted(other, 5)])).await.unwrap();
    let figures = async || {
        let figures = store.vm_metrics().await.unwrap().into_iter();
        let figures = figures.map(|one| (one.account, one.running, one.memory_mb));
        // The accounts may have been created in the same millisecond, and then their ids are in no order.
        figures.collect::<BTreeSet<_>>()
    };
    let of = |account: &str, vms| (account.to_owned(), vms, vms * 512);
    assert_eq!(figures().await, BTreeSet::from([of("default", 2), of("acme", 1)]));
    store.record_end(end(ends.id, EndReason::Deleted, 600)).await.unwrap();
    assert_eq!(figures().await, BTreeSet::from([of("default", 1), of("acme", 1)]));
}
