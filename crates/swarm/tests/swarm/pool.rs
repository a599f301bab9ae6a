//! The pool: for whom parked VMs end, and when its VMs are of other templates than those that are booted.

use std::time::Duration;

use skep_api::{
    ErrorCode,
    keys::Limits,
    swarm::BootSource,
    templates::{Template, TemplateSource},
};
use skep_harness::{eventually, eventually_within};
use skep_swarm::{BootFrom, BootSpec};
use tokio::time::timeout;

use crate::{fake_templates::template, fixture::Fixture};

/// Memory for one further VM beside the reserve of 1,000 MB, and too little for parked ones.
const ROOM_FOR_ONE_MB: u64 = 1000 + 64 + 30;

impl Fixture {
    async fn set_available(&self, mb: u64) {
        self.keeper(|keeper| (keeper.available_mb, keeper.freed_by_end_mb) = (Some(mb), 64));
        eventually("the sample", async || {
            self.swarm.metrics().await.capacity.memory_available_mb == Some(mb)
        })
        .await;
    }

    fn ended(&self) -> usize {
        self.keeper(|keeper| keeper.ended)
    }
}

#[tokio::test]
async fn a_boot_that_is_refused_for_its_quota_ends_no_parked_vm() {
    let fixture = Fixture::with_parked(3).await;
    fixture.set_available(ROOM_FOR_ONE_MB).await;
    let none = Limits { max_vms: Some(1), ..Limits::NONE };
    let order = fixture.boot_spec(50);
    let refused = fixture.swarm.boot(&fixture.account, &none, order).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    // More than this machine may promise.
    let refused = fixture.boot(1000).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NoCapacity);
    // More than the end of all parked VMs would make room for.
    let refused = fixture.boot(40).await.unwrap_err();
    assert!(refused.to_string().contains("1094 MiB of memory are available"), "{refused}");
    assert_eq!((fixture.ended(), fixture.parked("base").await), (0, 3));
}

#[tokio::test]
async fn a_boot_that_the_pool_serves_needs_no_further_memory() {
    let fixture = Fixture::with_parked(3).await;
    fixture.set_available(ROOM_FOR_ONE_MB).await;
    let booted = fixture.boot(4).await.unwrap().vms;
    let from_pool = booted.iter().filter(|vm| vm.boot.source == BootSource::Pool).count();
    assert_eq!((from_pool, fixture.ended()), (3, 0));
    assert_eq!(fixture.boot(2).await.unwrap_err().code(), ErrorCode::NoCapacity);
}

#[tokio::test]
async fn a_parked_vm_that_does_not_renew_its_random_numbers_is_ended_and_another_takes_its_place() {
    let fixture = Fixture::with_parked(1).await;
    let parked = fixture.keeper(|keeper| *keeper.vmms.keys().next().unwrap());
    // The pool is refilled only after this boot, so only the parked guest is affected.
    fixture.keeper(|keeper| keeper.guests_keep_randomness = 1);
    let booted = fixture.boot(1).await.unwrap().vms;
    assert_eq!((booted[0].boot.source, booted[0].boot.reseeded), (BootSource::Cold, true));
    assert!(booted[0].id != parked && !fixture.keeper(|keeper| keeper.vmms.contains_key(&parked)));
}

#[tokio::test]
async fn as_many_parked_vms_end_as_a_boot_needs_and_no_more() {
    let fixture = Fixture::with_parked(3).await;
    let big = template(fixture.account, "big", 512);
    fixture.store.templates.lock().unwrap().push(big);
    fixture.set_available(ROOM_FOR_ONE_MB).await;
    let order = BootSpec {
        source: BootFrom::Template { reference: "big".to_owned(), memory: true },
        ..fixture.boot_spec(2)
    };
    assert_eq!(fixture.boot_with(order).await.unwrap().vms.len(), 2);
    assert_eq!((fixture.ended(), fixture.parked("base").await), (1, 2));
}

#[tokio::test]
async fn the_pool_follows_the_boots_and_stays_within_its_size() {
    let fixture = Fixture::with_parked(2).await;
    let big = template(fixture.account, "big", 512);
    fixture.store.templates.lock().unwrap().push(big);
    let order = BootSpec {
        source: BootFrom::Template { reference: "big".to_owned(), memory: true },
        ..fixture.boot_spec(20)
    };
    fixture.boot_with(order).await.unwrap();
    eventually("the other template in the pool", async || {
        (fixture.parked("big").await, fixture.parked("base").await) == (2, 0)
    })
    .await;
    assert_eq!(fixture.keeper(|keeper| keeper.uncommitted()), 2, "parked VMs");
}

#[tokio::test]
async fn the_pool_is_refilled_soon_after_memory_was_short() {
    let fixture = Fixture::with_parked(3).await;
    fixture.set_available(ROOM_FOR_ONE_MB).await;
    fixture.boot(2).await.unwrap();
    assert_eq!((fixture.parked("base").await, fixture.ended()), (1, 0));
    fixture.set_available(4000).await;
    // Less than the half minute after which a pool that does not change is looked at in any case.
    let limit = Duration::from_secs(15);
    eventually_within(limit, "the full pool", async || fixture.parked("base").await == 3).await;
}

#[tokio::test]
async fn a_pool_that_was_ended_for_memory_is_refilled_soon_after_it() {
    let fixture = Fixture::with_parked(3).await;
    fixture.keeper(|keeper| keeper.available_mb = Some(500));
    eventually("the end of the pool", async || (fixture.parked("base").await, fixture.ended()) == (0, 3))
        .await;
    fixture.set_available(4000).await;
    let limit = Duration::from_secs(15);
    eventually_within(limit, "the full pool", async || fixture.parked("base").await == 3).await;
}

#[tokio::test]
async fn boots_at_the_same_time_do_not_wait_for_parked_vms_that_the_other_has_ended() {
    let fixture = Fixture::with_parked(2).await;
    // The machine may promise 100,000 MiB, and each VM takes 48 MiB more. Beside the first VM there is room for both parked VMs,
    // and beside all three for none. The pool has no VMs of snapshots.
    for (name, guest_mb) in [("first", 49_852), ("second", 49_852), ("third", 64)] {
        let snapshot = Template { source: TemplateSource::Vm, ..template(fixture.account, name, guest_mb) };
        fixture.store.templates.lock().unwrap().push(snapshot);
    }
    let boot = |name: &str| {
        let source = BootFrom::Template { reference: name.to_owned(), memory: true };
        fixture.boot_with(BootSpec { source, ..fixture.boot_spec(1) })
    };
    boot("first").await.unwrap();
    fixture.keeper(|keeper| keeper.holds_ends = true);
    let release = async {
        eventually("the ends of both", async || fixture.keeper(|keeper| keeper.ends_held) == 2).await;
        fixture.keeper(|keeper| keeper.holds_ends = false);
    };
    let boots = async { tokio::join!(boot("second"), boot("third"), release) };
    let (second, third, ()) = timeout(Duration::from_secs(30), boots).await.expect("both boots");
    assert_eq!((second.unwrap().vms.len(), third.unwrap().vms.len(), fixture.ended()), (1, 1, 2));
}
