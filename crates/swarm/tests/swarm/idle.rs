//! VMs that are idle, and calls that resume them.

use std::time::Duration;

use futures_util::{FutureExt, future::join_all};
use skep_api::{
    ErrorCode, ErrorKind, Failure, VmId, VmRef,
    swarm::{EndReason, OnIdle, PausedBy, PausedTo, Vm, VmState},
};
use skep_harness::eventually;
use skep_store::{VmAttributes, VmChange};

use crate::{
    command,
    fixture::{FREE, Fixture},
};

/// Much longer than a test takes.
const LONG: Duration = Duration::from_secs(300);

async fn boot(fixture: &Fixture, on_idle: OnIdle) -> VmId {
    let attributes = VmAttributes { idle_timeout_ms: Some(1), on_idle, ..VmAttributes::default() };
    let mut order = fixture.boot_spec(1);
    order.attributes = attributes;
    fixture.boot_with(order).await.unwrap().vms[0].id
}

/// A VM that ends when it was idle for [`LONG`].
async fn boot_to_end(fixture: &Fixture) -> VmId {
    let mut order = fixture.boot_spec(1);
    order.attributes = VmAttributes {
        idle_timeout_ms: Some(LONG.as_millis() as u64),
        on_idle: OnIdle::End,
        ..VmAttributes::default()
    };
    fixture.boot_with(order).await.unwrap().vms[0].id
}

async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Waits until all VMs were looked at: another one is idle twice.
async fn looked_at(fixture: &Fixture) {
    let other = boot(fixture, OnIdle::Pause).await;
    for _ in 0..2 {
        paused(fixture, other).await;
        fixture.swarm.resume(&fixture.account, &FREE, other, "r").await.unwrap();
    }
}

async fn record(fixture: &Fixture, vm: VmId) -> Vm {
    fixture.swarm.vm(&fixture.account, VmRef::Id(vm)).await.unwrap()
}

async fn paused(fixture: &Fixture, vm: VmId) {
    let is_paused =
        async || record(fixture, vm).await.paused_by == Some(PausedBy::Idle) && fixture.store.is_paused(vm);
    eventually("a pause for being idle", is_paused).await;
}

#[tokio::test]
async fn a_call_resumes_a_vm_that_was_paused_for_being_idle() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.runs_commands = true);
    let vm = boot(&fixture, OnIdle::Pause).await;
    for _ in 0..2 {
        paused(&fixture, vm).await;
        fixture.call(vm, &command()).await.unwrap();
    }
    paused(&fixture, vm).await;
    // One resume for all that wait.
    let resumes = fixture.keeper(|keeper| keeper.resumes);
    let calls = (0..8).map(|_| fixture.exec_stream(vm, command()));
    let calls = join_all(calls).await;
    assert!(calls.iter().all(Result::is_ok));
    assert_eq!(fixture.keeper(|keeper| keeper.resumes), resumes + 1);
    assert_eq!(record(&fixture, vm).await.state, VmState::Running);
}

#[tokio::test]
async fn a_call_waits_at_most_30_seconds_for_the_resume_of_its_vm() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.runs_commands = true);
    let vm = boot(&fixture, OnIdle::Pause).await;
    paused(&fixture, vm).await;
    let resumes = fixture.keeper(|keeper| {
        keeper.holds_resumes = true;
        keeper.resumes + 1
    });
    let pass_time = async {
        eventually("a resume", async || fixture.keeper(|keeper| keeper.resumes == resumes)).await;
        pass(Duration::from_secs(31)).await;
    };
    let command = command();
    let (refused, ()) = tokio::join!(fixture.call(vm, &command), pass_time);
    let failure = Failure::from(refused.unwrap_err());
    assert_eq!((failure.code, failure.code.kind()), (ErrorCode::Overloaded, ErrorKind::Unavailable));
    assert!(failure.message.contains(&format!("VM {vm} was paused for being idle")), "{failure}");
    assert!(failure.message.contains("30 s; try again"), "{failure}");

    // The resume goes on, and the next call waits for the same one.
    let release = async { fixture.keeper(|keeper| keeper.holds_resumes = false) };
    let (called, ()) = tokio::join!(fixture.call(vm, &command), release);
    called.unwrap();
    assert_eq!(fixture.keeper(|keeper| keeper.resumes), resumes);
}

#[tokio::test]
async fn a_vm_whose_resume_is_not_recorded_is_resumed_by_the_next_call() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.runs_commands = true);
    let vm = boot(&fixture, OnIdle::Pause).await;
    paused(&fixture, vm).await;
    fixture.store.set_failing(true);
    fixture.call(vm, &command()).await.unwrap_err();
    let seen = record(&fixture, vm).await;
    assert_eq!((seen.state, seen.paused_by), (VmState::Paused, Some(PausedBy::Idle)));
    fixture.store.set_failing(false);
    fixture.call(vm, &command()).await.unwrap();
}

#[tokio::test]
async fn a_vm_with_a_call_is_not_idle() {
    let fixture = Fixture::new().await;
    let (busy, idle) = (boot(&fixture, OnIdle::Pause).await, boot(&fixture, OnIdle::Pause).await);
    let (events, _) = fixture.exec_stream(busy, command()).await.unwrap();
    for _ in 0..2 {
        paused(&fixture, idle).await;
        assert_eq!(record(&fixture, busy).await.state, VmState::Running);
        fixture.swarm.resume(&fixture.account, &FREE, idle, "r").await.unwrap();
    }
    drop(events);
    paused(&fixture, busy).await;
}

#[tokio::test]
async fn a_pause_by_a_request_lasts_until_a_resume_by_one() {
    let fixture = Fixture::new().await;
    let vm = boot(&fixture, OnIdle::Pause).await;
    paused(&fixture, vm).await;
    let paused = fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
    assert_eq!(paused.paused_by, Some(PausedBy::Request));
    let refused = fixture.call(vm, &command()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::VmPaused);
    let never = VmChange { idle_timeout_ms: Some(None), ..VmChange::default() };
    fixture.swarm.change(&fixture.account, vm, never, "c").await.unwrap();
    fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
    fixture.exec_stream(vm, command()).await.unwrap();
}

#[tokio::test]
async fn an_idle_vm_ends_if_it_is_set_to() {
    let fixture = Fixture::new().await;
    let vm = boot(&fixture, OnIdle::End).await;
    eventually("its end", async || fixture.store.ends() == [(vm, EndReason::Idle)]).await;
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_resume_whose_caller_is_gone_restarts_the_idle_time() {
    let fixture = Fixture::new().await;
    let vm = boot_to_end(&fixture).await;
    fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
    pass(LONG).await;
    // The caller does not wait for the answer.
    let answer = fixture.swarm.resume(&fixture.account, &FREE, vm, "r").now_or_never();
    assert!(answer.is_none());
    eventually("its resume", async || record(&fixture, vm).await.state == VmState::Running).await;
    looked_at(&fixture).await;
    assert_eq!(fixture.store.ends(), []);
}

#[tokio::test]
async fn a_vm_that_is_paused_to_disk_by_a_request_does_not_end_when_its_idle_time_is_over() {
    let fixture = Fixture::new().await;
    let vm = boot_to_end(&fixture).await;
    fixture.keeper(|keeper| keeper.holds_captures = true);
    let during = async {
        eventually("the pause", async || fixture.keeper(|keeper| keeper.captures_held == 1)).await;
        pass(LONG).await;
        looked_at(&fixture).await;
        fixture.keeper(|keeper| keeper.holds_captures = false);
    };
    let pause = fixture.swarm.pause(&fixture.account, vm, PausedTo::Disk, "p");
    let (paused, ()) = tokio::join!(pause, during);
    paused.unwrap();
    // The task of the VM answers this last: it has run all commands that were queued before.
    fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
    assert_eq!(fixture.store.ends(), []);
}

#[tokio::test]
async fn a_change_of_the_idle_rule_restarts_the_idle_time() {
    let fixture = Fixture::new().await;
    let change = async |vm, change| fixture.swarm.change(&fixture.account, vm, change, "c").await.unwrap();
    let timeout = VmChange { idle_timeout_ms: Some(Some(LONG.as_millis() as u64)), ..VmChange::default() };
    let end = VmChange { on_idle: Some(OnIdle::End), ..VmChange::default() };
    let both = VmChange { on_idle: end.on_idle, ..timeout.clone() };
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    // It is too long without one of the changes.
    for rule in [both, timeout.clone(), end.clone(), end] {
        pass(LONG * 2 / 3).await;
        change(vm, rule).await;
        looked_at(&fixture).await;
        assert_eq!(fixture.store.ends(), []);
    }
    // It does not resume a VM, as activity does.
    let vm = boot(&fixture, OnIdle::Pause).await;
    paused(&fixture, vm).await;
    assert_eq!(change(vm, timeout).await.state, VmState::Paused);
}

#[tokio::test]
async fn the_vm_that_is_idle_for_the_longest_time_goes_to_disk_first() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.runs_commands = true);
    let mut vms = Vec::new();
    for _ in 0..3 {
        vms.push(boot(&fixture, OnIdle::Pause).await);
    }
    // Neither the order of the boots nor of the ids.
    let last_active = [vms[1], vms[2], vms[0]];
    for vm in last_active {
        fixture.call(vm, &command()).await.unwrap();
    }
    for vm in vms {
        paused(&fixture, vm).await;
    }
    // Too little for idle VMs.
    fixture.keeper(|keeper| keeper.available_mb = Some(1200));
    let on_disk = || fixture.store.paused_to_disk.lock().unwrap().clone();
    eventually("all pauses to disk", async || on_disk().len() == 3).await;
    assert_eq!(on_disk(), last_active);
    for vm in last_active {
        assert_eq!(record(&fixture, vm).await.paused_by, Some(PausedBy::Memory));
    }
}

/// Waits until a guest is asked to freeze, which it never finishes.
async fn freeze_begun(fixture: &Fixture) {
    eventually("a freeze", async || fixture.keeper(|keeper| keeper.freezes == 1)).await;
}

/// A swarm with an idle VM whose guest never finishes a freeze.
async fn with_a_guest_that_does_not_freeze() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.never_freezes = true);
    let stuck = boot(&fixture, OnIdle::Pause).await;
    paused(&fixture, stuck).await;
    fixture
}

#[tokio::test]
async fn a_guest_that_does_not_freeze_delays_no_pause_of_another_vm() {
    let fixture = with_a_guest_that_does_not_freeze().await;
    // Too little for idle VMs, and enough for a boot.
    fixture.keeper(|keeper| keeper.available_mb = Some(1200));
    freeze_begun(&fixture).await;
    let other = boot(&fixture, OnIdle::Pause).await;
    paused(&fixture, other).await;
    assert_eq!(fixture.keeper(|keeper| (keeper.freezes, keeper.thaws)), (1, 0), "the freeze is over");
}

#[tokio::test]
async fn a_boot_that_lacks_capacity_is_refused_while_a_guest_does_not_freeze() {
    let fixture = with_a_guest_that_does_not_freeze().await;
    let pass_time = async {
        freeze_begun(&fixture).await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11)).await;
        tokio::time::resume();
    };
    // The machine may have 100 VMs and has an idle one, so this boot fits only once that one is on disk.
    let (refused, ()) = tokio::join!(fixture.boot(100), pass_time);
    assert_eq!(refused.unwrap_err().code(), ErrorCode::NoCapacity);
    assert_eq!(fixture.keeper(|keeper| (keeper.freezes, keeper.thaws)), (1, 0), "the freeze is over");
}
