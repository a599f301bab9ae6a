//! Pausing and resuming VMs.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use proptest::prelude::*;
use skep_api::{
    ErrorCode, Failure, VmId, VmRef,
    swarm::{EndReason, PausedBy, PausedTo, Vm, VmState},
};
use skep_harness::eventually;
use skep_store::Pause;

use crate::{
    command,
    fixture::{FREE, Fixture},
};

async fn record(fixture: &Fixture, vm: VmId) -> Vm {
    fixture.swarm.vm(&fixture.account, VmRef::Id(vm)).await.unwrap()
}

/// Asserts that processors, record and what callers see agree.
async fn assert_state(fixture: &Fixture, vm: VmId, expected: VmState) {
    let is_paused = expected == VmState::Paused;
    let seen = record(fixture, vm).await;
    assert_eq!((seen.state, seen.paused_to), (expected, is_paused.then_some(PausedTo::Memory)));
    assert_eq!(fixture.keeper(|keeper| keeper.runs(vm)), !is_paused, "processors");
    assert_eq!(fixture.store.is_paused(vm), is_paused, "record");
    let call = fixture.exec_stream(vm, command()).await;
    match call {
        Ok((events, _)) => {
            assert!(!is_paused, "a paused VM took a command");
            events.detach();
        }
        Err(error) => {
            let failure = Failure::from(error);
            assert_eq!((failure.code, is_paused), (ErrorCode::VmPaused, true), "{failure}");
            assert!(failure.message.contains(&format!("VM {vm} is paused")), "{failure}");
        }
    }
}

#[tokio::test]
async fn a_paused_vm_takes_calls_only_after_its_resume() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let used = fixture.memory_used().await;
    for round in 1..=2 {
        // The second request of each kind changes nothing.
        for _ in 0..2 {
            assert_eq!(swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap().state, VmState::Paused);
            assert_state(&fixture, vm, VmState::Paused).await;
        }
        assert_eq!(fixture.memory_used().await, used, "its memory is still in use");
        for _ in 0..2 {
            assert_eq!(swarm.resume(account, &FREE, vm, "r").await.unwrap().state, VmState::Running);
            assert_state(&fixture, vm, VmState::Running).await;
        }
        // More than one message of the time if this machine is slow.
        assert!(fixture.keeper(|keeper| keeper.clocks_set) >= round);
    }
    swarm.cleanup(account, "c").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_transition_that_fails_leaves_the_state_before() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;

    fixture.store.set_failing(true);
    swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap_err();
    assert_state(&fixture, vm, VmState::Running).await;
    fixture.store.set_failing(false);
    fixture.keeper(|keeper| keeper.refuses_stops = true);
    swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap_err();
    assert_state(&fixture, vm, VmState::Running).await;

    fixture.keeper(|keeper| keeper.refuses_stops = false);
    swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap();
    fixture.store.set_failing(true);
    swarm.resume(account, &FREE, vm, "r").await.unwrap_err();
    assert_state(&fixture, vm, VmState::Paused).await;
    fixture.store.set_failing(false);
    fixture.keeper(|keeper| keeper.refuses_starts = true);
    swarm.resume(account, &FREE, vm, "r").await.unwrap_err();
    assert_state(&fixture, vm, VmState::Paused).await;

    fixture.keeper(|keeper| keeper.refuses_starts = false);
    swarm.resume(account, &FREE, vm, "r").await.unwrap();
    assert_state(&fixture, vm, VmState::Running).await;
}

#[tokio::test]
async fn a_pause_that_could_not_be_undone_is_recorded_by_the_next_request() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.store.set_failing(true);
    fixture.keeper(|keeper| keeper.refuses_starts = true);
    swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap_err();
    assert_eq!((record(&fixture, vm).await.state, fixture.store.is_paused(vm)), (VmState::Paused, false));
    fixture.store.set_failing(false);
    swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap();
    assert_state(&fixture, vm, VmState::Paused).await;
}

#[tokio::test]
async fn a_paused_vm_ends_for_every_reason() {
    let reasons =
        [EndReason::Deleted, EndReason::Cleanup, EndReason::Expired, EndReason::Crashed, EndReason::Failed];
    for reason in reasons {
        let fixture = Fixture::new().await;
        let (swarm, account) = (&fixture.swarm, &fixture.account);
        let vm = fixture.boot(1).await.unwrap().vms[0].id;
        swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap();
        match reason {
            EndReason::Deleted => drop(swarm.end(account, vm, "d").await.unwrap()),
            EndReason::Cleanup => assert_eq!(swarm.cleanup(account, "c").await.unwrap(), 1),
            EndReason::Expired => {
                let expires_at = Some(Some(jiff::Timestamp::now()));
                let change = skep_store::VmChange { expires_at, ..Default::default() };
                let changed = swarm.change(account, vm, change, "x").await.unwrap();
                assert_eq!(changed.state, VmState::Paused);
            }
            EndReason::Crashed => fixture.kill(vm),
            _ => fixture.close_guest_channel(vm),
        }
        eventually("its end", async || fixture.store.ends() == [(vm, reason)]).await;
        for refused in [
            swarm.pause(account, vm, PausedTo::Memory, "p").await,
            swarm.resume(account, &FREE, vm, "r").await,
        ] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::UnknownVm);
        }
        fixture.assert_nothing_left().await;
    }
}

#[tokio::test]
async fn an_adopted_vm_gets_the_state_on_record() {
    for (paused, runs) in [(false, true), (false, false), (true, false), (true, true)] {
        let fixture = Fixture::new().await;
        let vm = fixture.boot(1).await.unwrap().vms[0].id;
        fixture.store.set_paused(vm, paused.then_some(Pause { to: PausedTo::Memory, by: PausedBy::Request }));
        fixture.keeper(|keeper| keeper.set_running(vm, runs));
        let used = fixture.memory_used().await;
        let fixture = fixture.restart().await;
        assert_eq!(fixture.store.ends(), [], "paused {paused}, runs {runs}");
        let (state, clocks) = if paused { (VmState::Paused, 0) } else { (VmState::Running, 1) };
        assert_state(&fixture, vm, state).await;
        assert_eq!(fixture.memory_used().await, used);
        if !runs {
            assert!(fixture.keeper(|keeper| keeper.clocks_set) >= clocks, "it stood still");
        }
        // A paused VM has a connection to its guest only after its resume.
        fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
        assert_state(&fixture, vm, VmState::Running).await;
        fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
        assert_state(&fixture, vm, VmState::Paused).await;
        fixture.swarm.end(&fixture.account, vm, "d").await.unwrap();
        fixture.assert_nothing_left().await;
    }
}

#[tokio::test]
async fn a_paused_vm_that_was_adopted_has_two_attempts_at_its_resume() {
    // With 2, both streams of the first resume are closed.
    for (hang_ups, state) in [(1, VmState::Running), (2, VmState::Paused)] {
        let fixture = Fixture::new().await;
        let vm = fixture.boot(1).await.unwrap().vms[0].id;
        fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
        fixture.keeper(|keeper| keeper.guests_hang_up = hang_ups);
        let fixture = fixture.restart().await;
        let resumed = fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await;
        assert_eq!(resumed.is_ok(), state == VmState::Running, "{hang_ups}: {resumed:?}");
        assert_state(&fixture, vm, state).await;
        assert_eq!(fixture.keeper(|keeper| keeper.guests_hang_up), 0, "{hang_ups}");
        // A later request has a stream of its own.
        fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
        assert_state(&fixture, vm, VmState::Running).await;
        fixture.swarm.end(&fixture.account, vm, "d").await.unwrap();
        fixture.assert_nothing_left().await;
    }
}

/// Takes as long as the first attempt may.
#[tokio::test]
async fn a_paused_vm_that_was_adopted_is_resumed_although_its_first_stream_stays_silent() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
    fixture.keeper(|keeper| keeper.guests_stay_silent = 1);
    let fixture = fixture.restart().await;
    fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
    assert_eq!(fixture.keeper(|keeper| keeper.guests_stay_silent), 0);
    assert_state(&fixture, vm, VmState::Running).await;
    fixture.swarm.end(&fixture.account, vm, "d").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_paused_vm_that_was_adopted_expires_and_ends_with_its_vmm() {
    for (ttl, reason) in [(Some(Duration::from_millis(1)), EndReason::Expired), (None, EndReason::Crashed)] {
        let fixture = Fixture::new().await;
        let vm = fixture.boot(1).await.unwrap().vms[0].id;
        fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
        let fixture = fixture.restart().await;
        match ttl {
            Some(ttl) => {
                let expires_at = Some(jiff::Timestamp::now().checked_add(ttl).ok());
                let change = skep_store::VmChange { expires_at, ..Default::default() };
                fixture.swarm.change(&fixture.account, vm, change, "x").await.unwrap();
            }
            None => fixture.keeper(|keeper| keeper.kill_process(vm)),
        }
        eventually("its end", async || fixture.store.ends() == [(vm, reason)]).await;
        fixture.assert_nothing_left().await;
    }
}

#[tokio::test]
async fn the_clock_of_a_guest_of_an_earlier_release_is_set_by_a_command() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.keeper(|keeper| keeper.agents_lack_clock = true);
    fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
    fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
    assert_state(&fixture, vm, VmState::Running).await;
    let commands = fixture.keeper(|keeper| keeper.commands.clone());
    assert!(matches!(commands.as_slice(), [one] if one.starts_with("date -s @")), "{commands:?}");
}

#[tokio::test]
async fn a_clock_is_set_again_while_messages_take_long_but_not_without_end() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let sent_while = async |slow: usize| {
        fixture.keeper(|keeper| (keeper.clocks_set, keeper.slow_clocks) = (0, slow));
        fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
        fixture.swarm.resume(&fixture.account, &FREE, vm, "r").await.unwrap();
        fixture.keeper(|keeper| keeper.clocks_set)
    };
    assert_eq!(sent_while(usize::MAX).await, 5);
    // On a busy machine, further messages may take long too.
    for slow in [0, 2] {
        eventually("no message after the first quick one", async || sent_while(slow).await == slow + 1).await;
    }
}

/// A request of a caller, or a fault from now on.
#[derive(Debug, Clone, Copy)]
enum Step {
    Pause,
    Resume,
    End,
    Store { fails: bool },
    Stops { refused: bool },
    Starts { refused: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Pause),
        8 => Just(Step::Resume),
        1 => Just(Step::End),
        1 => any::<bool>().prop_map(|fails| Step::Store { fails }),
        1 => any::<bool>().prop_map(|refused| Step::Stops { refused }),
        1 => any::<bool>().prop_map(|refused| Step::Starts { refused }),
    ]
}

/// Sends requests at once, with faults in between, and asserts one consistent state when all faults are over.
async fn run_steps(steps: Vec<Step>) {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let requests = steps.into_iter().map(|step| -> BoxFuture<'_, Option<ErrorCode>> {
        let fixture = &fixture;
        async move {
            let outcome = match step {
                Step::Pause => swarm.pause(account, vm, PausedTo::Memory, "p").await,
                Step::Resume => swarm.resume(account, &FREE, vm, "r").await,
                Step::End => swarm.end(account, vm, "d").await,
                Step::Store { fails } => {
                    return {
                        fixture.store.set_failing(fails);
                        None
                    };
                }
                Step::Stops { refused } => {
                    return {
                        fixture.keeper(|keeper| keeper.refuses_stops = refused);
                        None
                    };
                }
                Step::Starts { refused } => {
                    return {
                        fixture.keeper(|keeper| keeper.refuses_starts = refused);
                        None
                    };
                }
            };
            outcome.err().map(|error| error.code())
        }
        .boxed()
    });
    let codes: BTreeSet<_> = join_all(requests).await.into_iter().flatten().map(ErrorCode::as_str).collect();
    // `unknown_account` is the failure of the fake store.
    assert!(codes.is_subset(&["internal", "unknown_account", "unknown_vm"].into()), "{codes:?}");
    fixture.store.set_failing(false);
    fixture.keeper(|keeper| (keeper.refuses_stops, keeper.refuses_starts) = (false, false));
    if let Ok(found) = swarm.vm(account, VmRef::Id(vm)).await {
        // What a failed undo left behind is put right by the next request.
        match found.state {
            VmState::Paused => swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap(),
            _ => swarm.resume(account, &FREE, vm, "r").await.unwrap(),
        };
        assert_state(&fixture, vm, found.state).await;
        swarm.end(account, vm, "d").await.unwrap();
    }
    eventually("its end", async || fixture.store.ends() == [(vm, EndReason::Deleted)]).await;
    fixture.assert_nothing_left().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn requests_at_once_end_in_one_state(steps in prop::collection::vec(step(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run_steps(steps));
    }
}
