//! Adoption of VMs by a new server.

use skep_api::{VmRef, swarm::EndReason};

use crate::ground::Ground;

#[tokio::test]
async fn vms_are_the_keepers_to_keep_before_they_are_on_record() {
    let ground = Ground::new().await;
    ground.store.fail(true);
    ground.boot(3).await.unwrap_err();
    assert_eq!(ground.keeper(|keeper| keeper.commits), 3);
    ground.holds_nothing().await;

    ground.store.fail(false);
    ground.keeper(|keeper| keeper.refuses_commits = true);
    ground.boot(3).await.unwrap_err();
    ground.holds_nothing().await;
    assert!(ground.store.alive().is_empty());
}

#[tokio::test]
async fn what_both_know_is_taken_over() {
    let ground = Ground::new().await;
    let booted = ground.boot(3).await.unwrap().vms;
    let used = ground.memory_used().await;
    let ground = ground.restart().await;
    let found = ground.swarm.status(&ground.account).await.unwrap().vms;
    for (found, booted) in found.iter().zip(&booted) {
        assert_eq!((found.id, found.pid, found.boot), (booted.id, booted.pid, booted.boot));
        assert!(found.uptime >= booted.uptime, "{found:?}");
    }
    assert_eq!((found.len(), ground.memory_used().await), (3, used));
    assert!(ground.store.ends().is_empty());
    ground.swarm.cleanup(&ground.account, "c").await.unwrap();
    ground.holds_nothing().await;
}

#[tokio::test]
async fn what_only_the_store_knows_or_does_not_answer_is_lost() {
    let ground = Ground::new().await;
    let vms = ground.boot(2).await.unwrap().vms;
    ground.keeper(|keeper| keeper.forget(vms[0].id));
    ground.keeper(|keeper| keeper.guests_hang_up = usize::MAX);
    let ground = ground.restart().await;
    let mut ends = ground.store.ends();
    ends.sort_by_key(|(vm, _)| *vm);
    assert_eq!(ends, [(vms[0].id, EndReason::Lost), (vms[1].id, EndReason::Lost)]);
    ground.holds_nothing().await;
}

#[tokio::test]
async fn what_only_the_keeper_knows_is_ended() {
    let ground = Ground::new().await;
    let vm = ground.boot(1).await.unwrap().vms[0].id;
    ground.store.forget(vm);
    let ground = ground.restart().await;
    ground.swarm.vm(&ground.account, VmRef::Id(vm)).await.unwrap_err();
    ground.holds_nothing().await;
    assert!(ground.store.ends().is_empty());
}
