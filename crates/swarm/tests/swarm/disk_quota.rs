//! The disk quota of an account: each VM of the fake keeper has a disk layer of 5 MiB.

use futures_util::future::join_all;
use skep_api::{ErrorCode, keys::Limits, swarm::PausedTo};

use crate::fixture::Fixture;

const LIMITED: Limits = Limits { max_disk_mb: Some(20), ..Limits::NONE };

impl Fixture {
    /// Sets the limits on record, and what templates of the account occupy.
    fn limit_disk(&self, limits: Limits, templates_mb: u64) {
        let mut disk = self.store.disk.lock().unwrap();
        (disk.limits, disk.templates_bytes) = (limits, templates_mb << 20);
    }

    async fn boot_limited(&self, count: u32) -> Result<usize, skep_swarm::Error> {
        let booted = self.swarm.boot(&self.account, &LIMITED, self.boot_spec(count)).await;
        booted.map(|booted| booted.vms.len())
    }
}

#[tokio::test]
async fn the_disks_of_vms_and_templates_are_one_sum() {
    let fixture = Fixture::new().await;
    fixture.limit_disk(LIMITED, 8);
    fixture.boot_limited(2).await.unwrap();
    assert_eq!(fixture.swarm.status(&fixture.account).await.unwrap().disk_used_mb, 18);
    // The layers of its VMs are known when they have started, so they are ended again.
    let refused = fixture.boot_limited(1).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    let message = refused.to_string();
    assert!(
        message.contains("5 MiB of disk space") && message.contains("18 MiB of this account's 20"),
        "{message}"
    );
    assert_eq!((fixture.count().await, fixture.keeper(|keeper| keeper.running())), (2, 2));
    for (templates_mb, fits) in [(10, false), (9, true)] {
        fixture.limit_disk(LIMITED, templates_mb);
        assert_eq!(fixture.swarm.reserve_template(&fixture.account, 1).await.is_ok(), fits, "{templates_mb}");
    }
    // What is reserved counts until it is dropped.
    let kept = fixture.swarm.reserve_template(&fixture.account, 1).await.unwrap();
    assert!(fixture.swarm.reserve_template(&fixture.account, 1).await.is_err());
    drop(kept);
    fixture.swarm.reserve_template(&fixture.account, 1).await.unwrap();
    // An end makes room.
    let vm = fixture.records().await[0].id;
    fixture.swarm.end(&fixture.account, vm, "end").await.unwrap();
    fixture.boot_limited(1).await.unwrap();
    fixture.swarm.cleanup(&fixture.account, "end").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn the_files_of_the_workspace_are_in_the_sum_of_an_account_with_a_limit() {
    let fixture = Fixture::new().await;
    let reserve = async |memory_mb| fixture.swarm.reserve_template(&fixture.account, memory_mb).await;
    let files = |counted_mb: u64, present_mb: u64| {
        let mut files = fixture.store.files.lock().unwrap();
        (files.counted, files.present) = (counted_mb << 20, present_mb << 20);
    };
    let used_mb = async || fixture.swarm.status(&fixture.account).await.unwrap().disk_used_mb;
    fixture.limit_disk(LIMITED, 8);
    files(7, 7);
    assert_eq!(used_mb().await, 15);
    let refused = reserve(6).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    assert!(refused.to_string().contains("15 MiB of this account's 20"), "{refused}");
    let reserved = reserve(5).await.unwrap();
    // Uploads compare what they write with this.
    assert_eq!(fixture.store.files.lock().unwrap().outside, 13 << 20);
    assert_eq!(fixture.swarm.bytes_outside_workspace(&fixture.account).await.unwrap(), 13 << 20);
    drop(reserved);
    assert_eq!(fixture.swarm.bytes_outside_workspace(&fixture.account).await.unwrap(), 8 << 20);
    // Files that are removed make room at once.
    files(7, 1);
    reserve(11).await.unwrap();
    files(1, 1);
    reserve(12).await.map(drop).unwrap_err();
    fixture.limit_disk(Limits::NONE, 8);
    assert_eq!(used_mb().await, 8);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn boots_at_the_same_time_do_not_exceed_the_quota() {
    let fixture = Fixture::new().await;
    fixture.limit_disk(LIMITED, 0);
    let booted = join_all((0..8).map(|_| fixture.boot_limited(1))).await;
    let count = booted.iter().filter(|booted| booted.is_ok()).count();
    assert!((1..=4).contains(&count), "{count} VMs of 5 MiB were booted where 20 MiB are allowed");
    assert_eq!(fixture.count().await as usize, count);
    assert_eq!(fixture.keeper(|keeper| keeper.running()), count);
    fixture.swarm.cleanup(&fixture.account, "end").await.unwrap();
    // One after the other, all fit that may.
    for _ in 0..4 {
        fixture.boot_limited(1).await.unwrap();
    }
    fixture.boot_limited(1).await.unwrap_err();
    fixture.swarm.cleanup(&fixture.account, "end").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_pause_to_disk_is_refused_before_anything_is_stopped() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    for (limits, name) in [
        (Limits { max_paused_vms: Some(0), ..Limits::NONE }, "`max_paused_vms`"),
        (Limits { max_disk_mb: Some(1), ..Limits::NONE }, "`max_disk_mb`"),
    ] {
        fixture.limit_disk(limits, 0);
        let refused = fixture.swarm.pause(&fixture.account, vm, PausedTo::Disk, "p").await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
        assert!(refused.to_string().contains(name), "{refused}");
        assert!(fixture.keeper(|keeper| keeper.runs(vm)) && !fixture.store.is_paused(vm));
        // A pause to memory is not limited.
        fixture.swarm.pause(&fixture.account, vm, PausedTo::Memory, "p").await.unwrap();
        fixture.swarm.pause(&fixture.account, vm, PausedTo::Disk, "p").await.unwrap_err();
        assert!(!fixture.keeper(|keeper| keeper.runs(vm)) && fixture.store.is_paused(vm));
        fixture.swarm.resume(&fixture.account, &Limits::NONE, vm, "r").await.unwrap();
    }
    fixture.swarm.cleanup(&fixture.account, "end").await.unwrap();
    fixture.assert_nothing_left().await;
}
