//! Tests of the lifecycle of VMs with a fake keeper, engine, guests and store, which fail on demand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adopt;
mod ground;
mod names;
mod records;

use std::time::Duration;

use futures_util::StreamExt;
use skep_api::{ErrorCode, Failure, exec::RunCommand, swarm::EndReason};

use ground::{Ground, eventually};

fn command() -> RunCommand {
    RunCommand {
        command: "true".to_owned(),
        cwd: None,
        env: Default::default(),
        stdin: None.into(),
        timeout_ms: 1000,
    }
}

#[tokio::test]
async fn a_boot_that_fails_begins_no_other_vm_and_leaves_none() {
    let ground = Ground::new().await;
    ground.keeper(|keeper| keeper.launches_until_refusal = Some(2));
    let failure = Failure::from(ground.boot(40).await.unwrap_err());
    assert_eq!((failure.code, failure.message.as_str()), (ErrorCode::Internal, "internal error"));
    assert!(ground.keeper(|keeper| keeper.launched) < 10, "most were begun after the failure");
    ground.holds_nothing().await;
}

#[tokio::test]
async fn a_launch_that_cannot_be_unpacked_leaves_no_vm_with_the_keeper() {
    let ground = Ground::new().await;
    ground.keeper(|keeper| keeper.hands_over_too_little = true);
    let failure = Failure::from(ground.boot(1).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::Internal);
    ground.holds_nothing().await;
}

#[tokio::test]
async fn a_vmm_that_dies_while_it_boots_is_told_without_its_inside() {
    let ground = Ground::new().await;
    ground.keeper(|keeper| keeper.guests_hang_up = usize::MAX);
    let failure = Failure::from(ground.boot(3).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::BootFailed, "{failure}");
    assert!(failure.message.contains("none of this boot is left"), "{failure}");
    ground.holds_nothing().await;
}

#[tokio::test]
async fn a_vm_that_does_not_come_up_is_replaced_once() {
    let ground = Ground::new().await;
    ground.keeper(|keeper| keeper.guests_hang_up = 1);
    assert_eq!(ground.boot(1).await.unwrap().vms.len(), 1);
    assert_eq!((ground.keeper(|keeper| keeper.launched), ground.count().await), (2, 1));
}

#[tokio::test]
async fn vms_that_cannot_be_recorded_are_not_kept() {
    let ground = Ground::new().await;
    ground.store.fail(true);
    ground.boot(3).await.unwrap_err();
    ground.holds_nothing().await;
}

#[tokio::test]
async fn a_boot_goes_on_without_its_caller() {
    let ground = Ground::new().await;
    let boot = ground.boot(2);
    assert!(tokio::time::timeout(Duration::from_millis(1), boot).await.is_err());
    eventually("both VMs", async || ground.count().await == 2).await;
}

#[tokio::test]
async fn two_ends_of_one_vm_are_one() {
    let ground = Ground::new().await;
    let vm = ground.boot(1).await.unwrap().vms[0].id;
    let (swarm, account) = (&ground.swarm, &ground.account);
    let (one, other, cleaned) =
        tokio::join!(swarm.end(account, vm, "a"), swarm.end(account, vm, "b"), swarm.cleanup(account, "c"),);
    one.unwrap();
    other.unwrap();
    assert_eq!(cleaned.unwrap(), 0, "another call ended it");
    assert_eq!(ground.store.ends(), vec![(vm, EndReason::Deleted)]);
    assert_eq!(swarm.end(account, vm, "d").await.unwrap_err().code(), ErrorCode::UnknownVm);
    ground.holds_nothing().await;
}

#[tokio::test]
async fn a_vm_that_the_keeper_cannot_end_keeps_its_place_until_it_can() {
    let ground = Ground::new().await;
    let vm = ground.boot(1).await.unwrap().vms[0].id;
    ground.keeper(|keeper| keeper.refuses_ends = true);
    let refused = ground.swarm.end(&ground.account, vm, "a").await.unwrap_err();
    assert_eq!(Failure::from(refused).message, "internal error");
    assert_eq!(ground.count().await, 1);
    assert!(ground.memory_used().await > 0);
    ground.keeper(|keeper| keeper.refuses_ends = false);
    eventually("its end", async || ground.count().await == 0).await;
    assert_eq!(ground.store.ends(), vec![(vm, EndReason::Deleted)]);
    ground.holds_nothing().await;
}

#[tokio::test]
async fn an_end_that_the_store_misses_is_recorded_later() {
    let ground = Ground::new().await;
    let vm = ground.boot(1).await.unwrap().vms[0].id;
    ground.store.fail(true);
    ground.swarm.end(&ground.account, vm, "a").await.unwrap_err();
    ground.holds_nothing().await;
    assert_eq!(ground.store.ends(), vec![]);
    ground.store.fail(false);
    eventually("the record", async || ground.store.ends() == vec![(vm, EndReason::Deleted)]).await;
}

#[tokio::test]
async fn a_guest_that_hangs_up_is_ended() {
    let ground = Ground::new().await;
    let vm = ground.boot(1).await.unwrap().vms[0].id;
    ground.hang_up(vm);
    let during = ground.swarm.call(&ground.account, vm, &command()).await.unwrap_err();
    assert_eq!(during.code(), ErrorCode::VmEnded);
    eventually("its end", async || ground.count().await == 0).await;
    assert_eq!(ground.store.ends(), vec![(vm, EndReason::Failed)]);
    let after = ground.swarm.call(&ground.account, vm, &command()).await.unwrap_err();
    assert_eq!(after.code(), ErrorCode::UnknownVm);
    ground.holds_nothing().await;
}

#[tokio::test]
async fn calls_under_way_read_why_their_vm_ended() {
    let ground = Ground::new().await;
    let (swarm, account) = (&ground.swarm, &ground.account);
    for (out_of_memory, expected) in [(true, "the VM ended: out_of_memory"), (false, "the VM ended: crashed")]
    {
        ground.keeper(|keeper| keeper.out_of_memory = out_of_memory);
        let vm = ground.boot(1).await.unwrap().vms[0].id;
        let (mut events, ending) = swarm.exec_stream(account, vm, self::command()).await.unwrap();
        let command = command();
        let call = swarm.call(account, vm, &command);
        let (called, ()) = tokio::join!(call, async { ground.kill(vm) });
        let broken = events.next().await.unwrap().unwrap_err();
        for error in [called.unwrap_err(), ending.explain(broken).await] {
            let failure = Failure::from(error);
            assert_eq!((failure.code, failure.message.as_str()), (ErrorCode::VmEnded, expected));
        }
        let after = swarm.call(account, vm, &command).await.unwrap_err();
        assert_eq!(after.code(), ErrorCode::UnknownVm);
    }
}

#[tokio::test]
async fn calls_under_way_read_that_their_vm_was_deleted() {
    let ground = Ground::new().await;
    let vm = ground.boot(1).await.unwrap().vms[0].id;
    let command = command();
    let call = ground.swarm.call(&ground.account, vm, &command);
    let (called, ended) = tokio::join!(call, ground.swarm.end(&ground.account, vm, "a"));
    ended.unwrap();
    assert_eq!(Failure::from(called.unwrap_err()).message, "the VM ended: deleted");
}

#[tokio::test]
async fn a_time_to_live_that_is_over_at_the_boot_ends_the_vm_at_once() {
    let ground = Ground::new().await;
    let mut order = ground.order(1);
    order.started_at = order.started_at.checked_sub(Duration::from_secs(60)).unwrap();
    order.ttl = Some(Duration::from_secs(1));
    let vm = ground.boot_order(order).await.unwrap().vms[0].id;
    eventually("its end", async || ground.count().await == 0).await;
    assert_eq!(ground.store.ends(), vec![(vm, EndReason::Expired)]);
}

#[tokio::test]
async fn a_keeper_that_goes_away_during_a_boot_is_told_as_a_shutdown() {
    let ground = Ground::new().await;
    ground.keeper(|keeper| keeper.goes_away = true);
    let failure = Failure::from(ground.boot(2).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::ShuttingDown, "{failure}");
    assert_eq!(ground.memory_used().await, 0);
}
