//! Tests of the lifecycle of VMs with a fake keeper, engine, guests and store, which fail on demand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adopt;
mod disk_pause;
mod disk_quota;
mod egress;
mod fake_disk;
mod fake_driver;
mod fake_files;
mod fake_guest;
mod fake_keeper;
mod fake_log;
mod fake_store;
mod fake_templates;
mod fixture;
mod idle;
mod names;
#[path = "../../../channel/tests/channel/other_release.rs"]
mod other_release;
mod pause;
mod pool;
mod run_log;
mod templates;

use std::time::Duration;

use futures_util::StreamExt;
use skep_api::{ErrorCode, Failure, exec::RunCommand, swarm::EndReason};
use skep_harness::eventually;
use skep_keeper_protocol::OutOfMemory;
use skep_store::IdempotentRequest;
use skep_swarm::BootSpec;

use fixture::Fixture;

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
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.launches_until_refusal = Some(2));
    let failure = Failure::from(fixture.boot(40).await.unwrap_err());
    assert_eq!((failure.code, failure.message.as_str()), (ErrorCode::Internal, "internal error"));
    assert!(fixture.keeper(|keeper| keeper.launched) < 10, "most were begun after the failure");
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_retry_of_a_boot_whose_command_did_not_start_does_not_get_the_ended_vms() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.refuses_commands = true);
    let once = IdempotentRequest { path: "/api/swarm/boot", key: "first".to_owned(), body_hash: [0; 32] };
    let order = BootSpec { command: Some("true".to_owned()), once: Some(once), ..fixture.boot_spec(2) };
    fixture.boot_with(order).await.unwrap_err();
    assert_eq!(*fixture.store.forgotten_answers.lock().unwrap(), ["first"]);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_launch_that_cannot_be_unpacked_leaves_no_vm_with_the_keeper() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.hands_over_too_little = true);
    let failure = Failure::from(fixture.boot(1).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::Internal);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_vmm_that_dies_during_its_boot_is_reported_without_internals() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.guests_hang_up = usize::MAX);
    let failure = Failure::from(fixture.boot(3).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::BootFailed, "{failure}");
    assert!(failure.message.contains("none of this boot is left"), "{failure}");
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_vm_that_fails_to_start_is_replaced_once() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.guests_hang_up = 1);
    assert_eq!(fixture.boot(1).await.unwrap().vms.len(), 1);
    assert_eq!((fixture.keeper(|keeper| keeper.launched), fixture.count().await), (2, 1));
}

#[tokio::test]
async fn a_vm_whose_guest_confirms_its_identity_in_part_is_ended_and_given_to_nobody() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.guests_keep_randomness = 1);
    let failure = Failure::from(fixture.boot(1).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::BootFailed, "{failure}");
    assert_eq!(fixture.keeper(|keeper| keeper.ended), 1);
    fixture.assert_nothing_left().await;
    // The control: the next guest confirms its complete identity.
    assert!(fixture.boot(1).await.unwrap().vms[0].boot.reseeded);
}

#[tokio::test]
async fn vms_that_cannot_be_recorded_are_ended() {
    let fixture = Fixture::new().await;
    fixture.store.set_failing(true);
    fixture.boot(3).await.unwrap_err();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_boot_goes_on_without_its_caller() {
    let fixture = Fixture::new().await;
    let boot = fixture.boot(2);
    assert!(tokio::time::timeout(Duration::from_millis(1), boot).await.is_err());
    eventually("both VMs", async || fixture.count().await == 2).await;
}

#[tokio::test]
async fn two_requests_to_end_a_vm_end_it_once() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let (one, other, cleaned) =
        tokio::join!(swarm.end(account, vm, "a"), swarm.end(account, vm, "b"), swarm.cleanup(account, "c"),);
    one.unwrap();
    other.unwrap();
    assert_eq!(cleaned.unwrap(), 0, "another call ended it");
    assert_eq!(fixture.store.ends(), vec![(vm, EndReason::Deleted)]);
    assert_eq!(swarm.end(account, vm, "d").await.unwrap_err().code(), ErrorCode::UnknownVm);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_vm_that_the_keeper_cannot_end_stays_listed_until_it_can() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.keeper(|keeper| keeper.refuses_ends = true);
    let refused = fixture.swarm.end(&fixture.account, vm, "a").await.unwrap_err();
    assert_eq!(Failure::from(refused).message, "internal error");
    assert_eq!(fixture.count().await, 1);
    assert!(fixture.memory_used().await > 0);
    fixture.keeper(|keeper| keeper.refuses_ends = false);
    eventually("its end", async || fixture.count().await == 0).await;
    assert_eq!(fixture.store.ends(), vec![(vm, EndReason::Deleted)]);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn an_end_that_the_store_refuses_is_recorded_later() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.store.set_failing(true);
    fixture.swarm.end(&fixture.account, vm, "a").await.unwrap_err();
    fixture.assert_nothing_left().await;
    assert_eq!(fixture.store.ends(), vec![]);
    fixture.store.set_failing(false);
    eventually("the record", async || fixture.store.ends() == vec![(vm, EndReason::Deleted)]).await;
}

#[tokio::test]
async fn a_guest_that_closes_its_channel_is_ended() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.close_guest_channel(vm);
    let during = fixture.call(vm, &command()).await.unwrap_err();
    assert_eq!(during.code(), ErrorCode::VmEnded);
    eventually("its end", async || fixture.count().await == 0).await;
    assert_eq!(fixture.store.ends(), vec![(vm, EndReason::Failed)]);
    let after = fixture.call(vm, &command()).await.unwrap_err();
    assert_eq!(after.code(), ErrorCode::UnknownVm);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_boot_is_refused_while_memory_is_low() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.available_mb = Some(1050));
    let refused = async || Failure::from(fixture.boot(1).await.unwrap_err());
    eventually("the sample", async || {
        fixture.swarm.metrics().await.capacity.memory_available_mb == Some(1050)
    })
    .await;
    let failure = refused().await;
    assert_eq!(failure.code, ErrorCode::NoCapacity);
    assert!(failure.message.contains("1050 MiB of memory are available"), "{failure}");
    // The machine is asked again before a boot is refused.
    fixture.keeper(|keeper| keeper.available_mb = Some(1064));
    fixture.boot(1).await.unwrap();
}

#[tokio::test]
async fn calls_in_progress_get_the_reason_of_their_vms_end() {
    let fixture = Fixture::new().await;
    let guard = OutOfMemory::Guard { held_mb: 900, share_mb: 300, available_mb: 20 };
    let cases = [
        (Some(OutOfMemory::Kernel), "the VM ended: out_of_memory (the kernel killed its VMM for memory)"),
        (
            Some(guard),
            "the VM ended: out_of_memory (only 20 MiB of the machine's memory were available, and of all VMs this one \
             exceeded its share most: it held 900 MiB, its share was 300 MiB)",
        ),
        (None, "the VM ended: crashed"),
    ];
    for (out_of_memory, expected) in cases {
        fixture.keeper(|keeper| keeper.out_of_memory = out_of_memory);
        let vm = fixture.boot(1).await.unwrap().vms[0].id;
        let (mut events, ending) = fixture.exec_stream(vm, self::command()).await.unwrap();
        let command = command();
        let call = fixture.call(vm, &command);
        let (called, ()) = tokio::join!(call, async { fixture.kill(vm) });
        let broken = events.next().await.unwrap().unwrap_err();
        for error in [called.unwrap_err(), ending.explain(broken).await] {
            let failure = Failure::from(error);
            assert_eq!((failure.code, failure.message.as_str()), (ErrorCode::VmEnded, expected));
        }
        let after = fixture.call(vm, &command).await.unwrap_err();
        assert_eq!(after.code(), ErrorCode::UnknownVm);
    }
}

#[tokio::test]
async fn calls_in_progress_get_that_their_vm_was_deleted() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let command = command();
    let call = fixture.call(vm, &command);
    let (called, ended) = tokio::join!(call, fixture.swarm.end(&fixture.account, vm, "a"));
    ended.unwrap();
    assert_eq!(Failure::from(called.unwrap_err()).message, "the VM ended: deleted");
}

#[tokio::test]
async fn a_time_to_live_that_is_over_at_the_boot_ends_the_vm_at_once() {
    let fixture = Fixture::new().await;
    let mut order = fixture.boot_spec(1);
    order.started_at = order.started_at.checked_sub(Duration::from_secs(60)).unwrap();
    order.ttl = Some(Duration::from_secs(1));
    let vm = fixture.boot_with(order).await.unwrap().vms[0].id;
    eventually("its end", async || fixture.count().await == 0).await;
    assert_eq!(fixture.store.ends(), vec![(vm, EndReason::Expired)]);
}

#[tokio::test]
async fn a_keeper_that_closes_during_a_boot_is_reported_as_a_shutdown() {
    let fixture = Fixture::new().await;
    fixture.keeper(|keeper| keeper.goes_away = true);
    let failure = Failure::from(fixture.boot(2).await.unwrap_err());
    assert_eq!(failure.code, ErrorCode::ShuttingDown, "{failure}");
    assert_eq!(fixture.memory_used().await, 0);
}

#[tokio::test]
async fn records_get_the_last_sample_of_the_keeper() {
    let fixture = Fixture::new().await;
    fixture.boot(1).await.unwrap();
    let sampled = async || fixture.records().await.iter().all(|vm| vm.usage.is_some());
    eventually("a sample", sampled).await;
    let usage = fixture.records().await[0].usage.unwrap();
    assert_eq!((usage.memory_mb, usage.cpu_ms), (60, 7));
}
