//! Tests of VMs.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;
use skep_api::{
    AccountId, ErrorCode, VmId,
    egress::EgressPolicy,
    swarm::{BootAnswer, EndReason},
};

use super::{
    account_named, all_events, boot, booted, counts, default_account, end, events_of, moment, new_key,
    vm_tickets::booted_for,
};
use crate::{
    ChangeVm, EndVms, EventKind, IdempotentRequest, ListVms, RecordBoots, Store, TrimHistory, VmAttributes,
    VmBooted, VmChange, VmEnd, VmFilter, VmRecord, VmSet, VmToEnd,
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
    for (account, body) in [(other, 1), (own, 2)] {
        store.forget_boot_answer(account, once(body)).await.unwrap();
    }
    assert!(before(own, 1, moment(600)).await.unwrap().is_some());
    store.forget_boot_answer(own, once(1)).await.unwrap();
    assert!(before(own, 1, moment(600)).await.unwrap().is_none());
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
