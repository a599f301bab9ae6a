//! VMs that are idle, and calls that resume them.

use futures_util::future::join_all;
use skep_api::{
    ErrorCode, VmId, VmRef,
    swarm::{EndReason, OnIdle, PausedBy, PausedTo, Vm, VmState},
};
use skep_harness::eventually;
use skep_store::{VmAttributes, VmChange};

use crate::{
    command,
    fixture::{FREE, Fixture},
};

async fn boot(fixture: &Fixture, on_idle: OnIdle) -> VmId {
    let attributes = VmAttributes { idle_timeout_ms: Some(1), on_idle, ..VmAttributes::default() };
    let mut order = fixture.boot_spec(1);
    order.attributes = attributes;
    fixture.boot_with(order).await.unwrap().vms[0].id
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
