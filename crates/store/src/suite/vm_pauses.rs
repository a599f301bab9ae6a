//! Tests of paused VMs.

use std::sync::Arc;

use serde_json::json;
use skep_api::{
    AccountId, ErrorCode, TemplateId, VmId,
    swarm::{EndReason, PausedBy, PausedTo, ResumedBy, VmState},
};

use super::{account_named, all_events, boot, booted, default_account, end, events_of, moment};
use crate::{
    Event, EventKind, ListVms, Pause, PauseChange, RecordPause, RecordUnusableSnapshots, Store,
    UnusableSnapshot, VmFilter, VmSet,
};

fn pause(vm: VmId, paused_to: Option<PausedTo>, step: i64) -> RecordPause {
    let change = match paused_to {
        Some(PausedTo::Memory) => PauseChange::PausedToMemory { by: PausedBy::Request },
        Some(PausedTo::Disk) => {
            PauseChange::PausedToDisk { by: PausedBy::Request, snapshot: TemplateId::generate() }
        }
        None => PauseChange::Runs { by: ResumedBy::Request },
    };
    RecordPause { vm, change, at: moment(step), request_id: Some("pause".to_owned()) }
}

const TO_MEMORY: Option<PausedTo> = Some(PausedTo::Memory);
const ON_DISK: Pause = Pause { to: PausedTo::Disk, by: PausedBy::Memory };

pub async fn a_pause_is_recorded_until_the_vm_is_resumed(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (vm, other) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![vm.clone(), other])).await.unwrap();
    let state = async || {
        let records = store.live_vms().await.unwrap();
        assert_eq!(records[1].pause, None, "another VM was changed");
        records[0].to_api(moment(900)).state
    };
    for round in 0..2 {
        let at = 600 + round * 20;
        // The second command of each kind changes nothing.
        for repeated in 0..2 {
            let paused = store.record_pause(pause(vm.id, TO_MEMORY, at + repeated)).await.unwrap();
            assert_eq!((&paused.vm, paused.pause.map(|pause| pause.to)), (&vm, TO_MEMORY));
            assert_eq!(state().await, VmState::Paused);
        }
        for repeated in 0..2 {
            let resumed = store.record_pause(pause(vm.id, None, at + 10 + repeated)).await.unwrap();
            assert_eq!((&resumed.vm, resumed.pause), (&vm, None));
            assert_eq!(state().await, VmState::Running);
        }
    }
    let with_times = |events: Vec<Event>| {
        let events = events.into_iter().map(|event| (event.at, serde_json::Value::from(event.body)));
        events.collect::<Vec<_>>()
    };
    let body = json!({ "vm": vm.id, "pid": vm.pid, "name": null });
    let mut paused_body = body.clone();
    paused_body["paused_to"] = json!("memory");
    paused_body["paused_by"] = json!("request");
    let paused = events_of(&*store, EventKind::VmPaused).await;
    assert_eq!(paused[0].request_id.as_deref(), Some("pause"));
    assert_eq!(with_times(paused), [(moment(600), paused_body.clone()), (moment(620), paused_body)]);
    let mut resumed_body = body;
    resumed_body["by"] = json!("request");
    let resumed = events_of(&*store, EventKind::VmResumed).await;
    assert_eq!(with_times(resumed), [(moment(610), resumed_body.clone()), (moment(630), resumed_body)]);
}

pub async fn a_vm_that_ended_is_not_paused_or_resumed(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (vm, paused) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![vm.clone(), paused.clone()])).await.unwrap();
    store.record_pause(pause(paused.id, TO_MEMORY, 550)).await.unwrap();
    for vm in [&vm, &paused] {
        let ended = store.record_end(end(vm.id, EndReason::Expired, 600)).await.unwrap();
        let shown = ended.record.to_api(moment(900));
        assert_eq!((shown.state, shown.paused_to), (VmState::Ended, None));
    }
    let before = all_events(&*store).await.len();
    for vm in [vm.id, paused.id, VmId::generate()] {
        for paused_to in [None, TO_MEMORY] {
            let refused = store.record_pause(pause(vm, paused_to, 700)).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::UnknownVm);
        }
    }
    assert_eq!(all_events(&*store).await.len(), before);
}

pub async fn paused_vms_are_listed_and_counted_apart(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let vms: Vec<_> = [3, 4, 5].map(|pid| booted(own, pid)).into();
    store.record_boots(boot(vms.clone())).await.unwrap();
    store.record_boots(boot(vec![booted(other, 6)])).await.unwrap();
    for vm in &vms[..2] {
        store.record_pause(pause(vm.id, TO_MEMORY, 600)).await.unwrap();
    }
    let pids = async |account: AccountId, set| {
        let query = ListVms { account, set, filter: VmFilter::default(), limit: 100, after: None };
        let listed = store.list_vms(query).await.unwrap().vms;
        let mut pids: Vec<_> = listed.into_iter().map(|record| record.vm.pid).collect();
        pids.sort_unstable();
        pids
    };
    assert_eq!(pids(own, VmSet::Live).await, [3, 4, 5]);
    assert_eq!(pids(own, VmSet::Running).await, [5]);
    assert_eq!(pids(own, VmSet::Paused).await, [3, 4]);
    assert_eq!(pids(other, VmSet::Paused).await, [0; 0]);
    let kept_in = async |place, set| {
        let filter = VmFilter { paused_to: Some(place), ..VmFilter::default() };
        let query = ListVms { account: own, set, filter, limit: 100, after: None };
        store.list_vms(query).await.unwrap().vms.len()
    };
    for set in [VmSet::Live, VmSet::Paused] {
        assert_eq!((kept_in(PausedTo::Memory, set).await, kept_in(PausedTo::Disk, set).await), (2, 0));
    }
    assert_eq!(kept_in(PausedTo::Memory, VmSet::Running).await, 0);
    let figures = async || {
        let all = store.vm_metrics().await.unwrap();
        let of = all.into_iter().find(|one| one.account == "default").unwrap();
        (of.running, of.paused, of.memory_mb)
    };
    assert_eq!(figures().await, (1, 2, 3 * 512), "paused VMs keep their memory");
    store.record_end(end(vms[0].id, EndReason::Deleted, 700)).await.unwrap();
    assert_eq!(pids(own, VmSet::Paused).await, [4]);
    assert_eq!(pids(own, VmSet::Ended).await, [3]);
    assert_eq!(figures().await, (1, 1, 2 * 512));
}

pub async fn a_vm_on_disk_has_no_process_and_gets_another_one(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vm = booted(account, 3);
    store.record_boots(boot(vec![vm.clone()])).await.unwrap();
    let record = async |change, step| {
        let request_id = Some("r".to_owned());
        store.record_pause(RecordPause { vm: vm.id, change, at: moment(step), request_id }).await.unwrap()
    };
    let memory = async || {
        let all = store.vm_metrics().await.unwrap();
        all.into_iter().find(|one| one.account == "default").unwrap().memory_mb
    };
    assert_eq!(memory().await, 512);
    let snapshot = TemplateId::generate();
    record(PauseChange::PausedToMemory { by: PausedBy::Idle }, 600).await;
    let on_disk = record(PauseChange::PausedToDisk { by: PausedBy::Memory, snapshot }, 610).await;
    let shown = on_disk.to_api(moment(900));
    assert_eq!((on_disk.snapshot, on_disk.pause), (Some(snapshot), Some(ON_DISK)));
    assert_eq!((shown.pid, shown.state, shown.paused_to), (None, VmState::Paused, Some(PausedTo::Disk)));
    assert_eq!(memory().await, 0);
    let restored = |pid, by, memory| PauseChange::Restored { pid, by, memory };
    let resumed = record(restored(77, ResumedBy::Activity, true), 620).await;
    let shown = resumed.to_api(moment(900));
    assert_eq!((resumed.snapshot, resumed.vm.pid), (None, 77));
    assert_eq!((shown.pid, shown.resumed_at), (Some(77), Some(moment(620))));
    assert_eq!(memory().await, 512);
    let events = events_of(&*store, EventKind::VmResumed).await;
    assert_eq!((&events[0].body["pid"], &events[0].body["by"]), (&json!(77), &json!("activity")));
    assert!(events[0].body.get("memory").is_none(), "{:?}", events[0].body);
    // A later pause in memory keeps process and time.
    record(PauseChange::PausedToMemory { by: PausedBy::Idle }, 625).await;
    // The same pause for another reason is recorded without an event.
    let paused = events_of(&*store, EventKind::VmPaused).await.len();
    record(PauseChange::PausedToMemory { by: PausedBy::Request }, 630).await;
    assert_eq!(store.live_vms().await.unwrap()[0].pause.unwrap().by, PausedBy::Request);
    assert_eq!(events_of(&*store, EventKind::VmPaused).await.len(), paused);
    let shown = record(PauseChange::Runs { by: ResumedBy::Request }, 640).await.to_api(moment(900));
    assert_eq!((shown.pid, shown.resumed_at), (Some(77), Some(moment(620))));
    // Without its memory.
    record(PauseChange::PausedToDisk { by: PausedBy::Request, snapshot: TemplateId::generate() }, 650).await;
    let resumed = record(restored(78, ResumedBy::Request, false), 660).await;
    assert_eq!((resumed.snapshot, resumed.vm.pid, resumed.resumed_at), (None, 78, Some(moment(660))));
    let events = events_of(&*store, EventKind::VmResumed).await;
    assert_eq!(events.last().unwrap().body["memory"], json!(false));
}

pub async fn an_unusable_snapshot_is_recorded_once_for_each_reason(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (vm, ended) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![vm.clone(), ended.clone()])).await.unwrap();
    let (first, second) = (TemplateId::generate(), TemplateId::generate());
    let record = async |vm, change, step| {
        let command = RecordPause { vm, change, at: moment(step), request_id: None };
        store.record_pause(command).await.unwrap();
    };
    let on_disk = |snapshot, by| PauseChange::PausedToDisk { by, snapshot };
    let found = async |snapshot, reason: &str, step| {
        let one = |vm| UnusableSnapshot { vm, snapshot, reason: reason.to_owned() };
        let snapshots = vec![one(VmId::generate()), one(ended.id), one(vm.id)];
        let command = RecordUnusableSnapshots { snapshots, at: moment(step) };
        store.record_unusable_snapshots(command).await.unwrap();
        let events = events_of(&*store, EventKind::VmOutdated).await;
        assert!(events.iter().all(|event| event.body["vm"] == json!(vm.id)), "{events:?}");
        events.len()
    };
    record(ended.id, on_disk(first, PausedBy::Request), 590).await;
    store.record_end(end(ended.id, EndReason::Deleted, 595)).await.unwrap();
    assert_eq!(found(first, "qemu 1", 600).await, 0, "it runs");
    record(vm.id, on_disk(first, PausedBy::Idle), 610).await;
    assert_eq!(found(second, "qemu 1", 620).await, 0, "it is in another snapshot");
    assert_eq!(found(first, "qemu 1", 630).await, 1);
    let event = events_of(&*store, EventKind::VmOutdated).await.remove(0);
    let body = json!({ "vm": vm.id, "pid": vm.pid, "name": null, "message": "qemu 1" });
    assert_eq!((serde_json::Value::from(event.body), event.at), (body, moment(630)));
    assert_eq!(event.request_id, None);
    assert_eq!(found(first, "qemu 1", 640).await, 1);
    // Another reason for the pause leaves the VM where it is.
    record(vm.id, on_disk(first, PausedBy::Request), 650).await;
    assert_eq!(found(first, "qemu 1", 660).await, 1);
    assert_eq!(found(first, "qemu 2", 670).await, 2);
    let restored = PauseChange::Restored { pid: 77, by: ResumedBy::Request, memory: false };
    record(vm.id, restored, 680).await;
    assert_eq!(found(first, "qemu 2", 690).await, 2, "it runs again");
    record(vm.id, on_disk(second, PausedBy::Request), 700).await;
    assert_eq!(found(second, "qemu 2", 710).await, 3);
}

pub async fn a_former_process_id_is_that_of_the_vm_that_got_it_last(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let stranger = account_named(&*store, "acme").await.id;
    let (vm, second) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![vm.clone(), second.clone()])).await.unwrap();
    let record = async |vm: VmId, change: PauseChange| {
        let command = RecordPause { vm, change, at: moment(600), request_id: None };
        store.record_pause(command).await.unwrap();
    };
    let to_disk = |by| PauseChange::PausedToDisk { by, snapshot: TemplateId::generate() };
    let restored = |pid| PauseChange::Restored { pid, by: ResumedBy::Request, memory: true };
    let former = async |vm: VmId| {
        let all = store.former_pids().await.unwrap();
        all.into_iter().filter(|(of, _)| *of == vm).map(|(_, pid)| pid).collect::<Vec<_>>()
    };
    assert_eq!(former(vm.id).await, [0; 0]);
    record(vm.id, to_disk(PausedBy::Idle)).await;
    assert_eq!(former(vm.id).await, [3], "on disk");
    record(vm.id, restored(10)).await;
    assert_eq!(former(vm.id).await, [3], "resumed");
    record(vm.id, to_disk(PausedBy::Idle)).await;
    assert_eq!(former(vm.id).await, [3, 10]);
    // By a boot. One of another account does not matter to this one.
    store.record_boots(boot(vec![booted(account, 3), booted(stranger, 10)])).await.unwrap();
    assert_eq!(former(vm.id).await, [10]);
    // By a resume.
    record(second.id, to_disk(PausedBy::Request)).await;
    record(second.id, restored(10)).await;
    assert_eq!((former(vm.id).await, former(second.id).await), (vec![], vec![4]));
    // Neither another reason for the pause nor the end of the other VM gives it back.
    record(vm.id, to_disk(PausedBy::Request)).await;
    store.record_end(end(second.id, EndReason::Deleted, 700)).await.unwrap();
    assert_eq!(store.former_pids().await.unwrap(), []);
    for pid in 100..120 {
        record(vm.id, restored(pid)).await;
        record(vm.id, to_disk(PausedBy::Idle)).await;
    }
    assert_eq!(former(vm.id).await, (104..120).collect::<Vec<_>>());
}
