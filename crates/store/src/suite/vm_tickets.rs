//! Tests of VMs that are booted for tickets.

use std::sync::Arc;

use serde_json::json;
use skep_api::{
    ErrorCode, Patch, VmId,
    swarm::EndReason,
    tickets::{AttemptOutcome, Object},
};

use super::{
    all_events, boot, booted, default_account, end, events_of, hash, moment, new_key,
    tickets::{call, change, claim, completion, create_ticket},
};
use crate::{
    BootAttempt, CommandOutcome, DeleteTicket, Dependents, EventKind, ReadTicketHistory, RecordBoots,
    RecordCommandEnd, Store, TicketSignal, VmBooted, VmWithoutAttempt,
};

/// A VM that was booted for a ticket that has been claimed for it.
pub(super) async fn booted_for(store: &dyn Store, pid: u32) -> (VmBooted, RecordBoots) {
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
    assert!(store.had_key(vm.id).await.unwrap());
    // Both end with the VM. An attempt ended by an operator does not count.
    store.record_end(end(vm.id, EndReason::Deleted, 950)).await.unwrap();
    let ticket = store.ticket(account, id, moment(960)).await.unwrap();
    assert_eq!((ticket.status.as_str(), ticket.vm), ("pending", None));
    assert!(store.key(account, key.id).await.unwrap().key.revoked_at.is_some());
}

/// Outcome and stored result of the only attempt at a VM's ticket.
async fn last_attempt(store: &dyn Store, vm: &VmBooted) -> (Option<AttemptOutcome>, Option<Object>) {
    let query = ReadTicketHistory { account: vm.account, id: vm.ticket.unwrap(), limit: 10, after: None };
    let attempt = store.ticket_history(query).await.unwrap().attempts.pop().unwrap();
    (attempt.outcome, attempt.result)
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
