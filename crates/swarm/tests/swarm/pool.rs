//! The pool: for whom parked VMs end, and when its VMs are of other templates than those that are booted.

use skep_api::{ErrorCode, keys::Limits, swarm::BootSource};
use skep_harness::eventually;
use skep_swarm::{BootFrom, BootSpec};

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
