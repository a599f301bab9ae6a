//! Pauses to disk, and resumes from there.

use std::pin::pin;

use futures_util::FutureExt;
use skep_api::{
    AccountId, ErrorCode, Failure, TemplateId, VmId, VmRef,
    keys::Limits,
    swarm::{EndReason, PausedTo, Vm, VmState},
    templates::TemplateState,
};
use skep_harness::eventually;
use skep_swarm::{BootFrom, BootSpec};

use crate::fixture::{FREE, Fixture};

impl Fixture {
    async fn pause_to_disk(&self, vm: VmId) -> Vm {
        self.swarm.pause(&self.account, vm, PausedTo::Disk, "p").await.unwrap()
    }

    async fn resume_from_disk(&self, vm: VmId) -> Vm {
        self.swarm.resume(&self.account, &FREE, vm, "r").await.unwrap()
    }

    /// The process ids that the next VMMs report.
    fn set_pids<const COUNT: usize>(&self, pids: [u32; COUNT]) {
        self.keeper(|keeper| keeper.pids = pids.into());
    }

    /// The VM of the account that a process id leads to.
    async fn of_pid(&self, account: AccountId, pid: u32) -> Option<VmId> {
        match self.swarm.vm(&account, VmRef::Pid(pid)).await {
            Ok(found) => Some(found.id),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::UnknownVm);
                None
            }
        }
    }
}

#[tokio::test]
async fn a_vm_on_disk_has_no_vmm_and_no_capacity_until_its_resume() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let used = fixture.memory_used().await;
    for _ in 0..2 {
        let paused = fixture.pause_to_disk(vm).await;
        assert_eq!(
            (paused.state, paused.paused_to, paused.pid),
            (VmState::Paused, Some(PausedTo::Disk), None)
        );
        assert_eq!((fixture.keeper(|keeper| keeper.running()), fixture.memory_used().await), (0, 0));
        assert!(fixture.store.is_paused(vm));
        let resumed = fixture.resume_from_disk(vm).await;
        let found = fixture.swarm.vm(&fixture.account, VmRef::Id(vm)).await.unwrap();
        assert_eq!((resumed.state, resumed.pid), (VmState::Running, found.pid));
        assert!(resumed.pid.is_some() && resumed.resumed_at.is_some());
        assert!(fixture.keeper(|keeper| keeper.runs(vm)) && !fixture.store.is_paused(vm));
        assert_eq!(fixture.memory_used().await, used);
    }
    fixture.swarm.cleanup(&fixture.account, "c").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_vm_on_disk_whose_memory_cannot_be_used_has_the_reason_and_counts_its_files() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let shown = |record: &Vm| (record.snapshot_state, record.snapshot_error.clone());
    for outdated in [Some("its VM was booted with another QEMU".to_owned()), None] {
        fixture.keeper(|keeper| keeper.outdated.clone_from(&outdated));
        let expected = (outdated.as_ref().map(|_| TemplateState::Outdated), outdated);
        assert_eq!(shown(&fixture.pause_to_disk(vm).await), expected);
        for _ in 0..2 {
            swarm.record_unusable_snapshots().await.unwrap();
        }
        let recorded: Vec<_> = fixture.store.unusable_snapshots.lock().unwrap().drain(..).collect();
        let reasons: Vec<_> = recorded.into_iter().map(|one| (one.vm, one.reason)).collect();
        assert_eq!(reasons, Vec::from_iter(expected.1.clone().map(|reason| (vm, reason))));
        assert_eq!(swarm.status(account).await.unwrap().disk_used_mb, 6);
        let found = swarm.vm(account, VmRef::Id(vm)).await.unwrap();
        assert_eq!(shown(&found), expected);
        let stored = Vm { snapshot_state: None, snapshot_error: None, ..found };
        assert_eq!(shown(&swarm.add_snapshot_state(account, stored.clone())), expected);
        assert_eq!(shown(&swarm.add_snapshot_state(&AccountId::generate(), stored)), (None, None));
        assert_eq!(shown(&fixture.resume_from_disk(vm).await), (None, None));
        swarm.record_unusable_snapshots().await.unwrap();
        assert!(fixture.store.unusable_snapshots.lock().unwrap().is_empty(), "it runs");
    }
    swarm.cleanup(account, "c").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_transition_that_is_not_recorded_leaves_the_state_before() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let record = async |vm| swarm.vm(account, VmRef::Id(vm)).await.unwrap();
    fixture.set_pids([11, 12, 13]);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let used = fixture.memory_used().await;

    fixture.store.set_failing(true);
    swarm.pause(account, vm, PausedTo::Disk, "p").await.unwrap_err();
    let seen = record(vm).await;
    assert_eq!((seen.state, seen.paused_to, seen.pid), (VmState::Running, None, Some(11)));
    assert!(fixture.keeper(|keeper| keeper.runs(vm)) && !fixture.store.is_paused(vm));
    assert_eq!(fixture.memory_used().await, used);

    fixture.store.set_failing(false);
    let on_disk = fixture.pause_to_disk(vm).await;
    assert_eq!((on_disk.pid, on_disk.resumed_at), (None, None));
    fixture.store.set_failing(true);
    swarm.resume(account, &FREE, vm, "r").await.unwrap_err();
    let seen = record(vm).await;
    assert_eq!((seen.state, seen.paused_to), (VmState::Paused, Some(PausedTo::Disk)));
    assert_eq!((seen.pid, seen.resumed_at), (None, None), "it was not resumed");
    assert_eq!(fixture.of_pid(*account, 11).await, Some(vm));
    assert_eq!(fixture.of_pid(*account, 12).await, None, "the process of the failed resume has ended");
    assert_eq!((fixture.keeper(|keeper| keeper.running()), fixture.memory_used().await), (0, 0));
    assert!(fixture.store.is_paused(vm));

    fixture.store.set_failing(false);
    let resumed = fixture.resume_from_disk(vm).await;
    assert_eq!(resumed.pid, Some(13));
    for pid in [11, 13] {
        assert_eq!(fixture.of_pid(*account, pid).await, Some(vm), "{pid}");
    }
    // The failed resume is none of its former processes.
    fixture.pause_to_disk(vm).await;
    assert_eq!(fixture.of_pid(*account, 12).await, None);
    fixture.swarm.cleanup(account, "c").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_vm_on_disk_keeps_its_files_until_its_end_is_recorded() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.pause_to_disk(vm).await;
    fixture.store.set_failing(true);
    for _ in 0..2 {
        swarm.end(account, vm, "d").await.unwrap_err();
        assert_eq!(fixture.keeper(|keeper| keeper.removed.len()), 0, "its files are removed");
        let found = swarm.vm(account, VmRef::Id(vm)).await.unwrap();
        assert_eq!(found.paused_to, Some(PausedTo::Disk));
    }
    fixture.store.set_failing(false);
    // The end is tried again without a further request.
    eventually("the end of the files", async || fixture.keeper(|keeper| keeper.removed.len()) == 1).await;
    assert_eq!(fixture.store.ends(), [(vm, EndReason::Deleted)]);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_vm_that_cannot_be_paused_again_is_shown_to_run_and_is_recorded_by_the_next_resume() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    swarm.pause(account, vm, PausedTo::Memory, "p").await.unwrap();
    fixture.keeper(|keeper| keeper.refuses_stops = true);
    swarm.pause(account, vm, PausedTo::Disk, "p").await.unwrap_err();
    let seen = swarm.vm(account, VmRef::Id(vm)).await.unwrap();
    assert_eq!((seen.state, fixture.store.is_paused(vm)), (VmState::Running, true));
    assert!(fixture.keeper(|keeper| keeper.runs(vm)));
    swarm.resume(account, &FREE, vm, "r").await.unwrap();
    assert!(!fixture.store.is_paused(vm));
}

#[tokio::test]
async fn former_process_ids_lead_to_their_vm_in_its_account() {
    let fixture = Fixture::new().await;
    let account = fixture.account;
    fixture.set_pids([11, 12, 13]);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    let mut pids = vec![11];
    for next in [12, 13] {
        fixture.pause_to_disk(vm).await;
        for pid in &pids {
            assert_eq!(fixture.of_pid(account, *pid).await, Some(vm), "{pid}, on disk");
        }
        assert_eq!(fixture.resume_from_disk(vm).await.pid, Some(next));
        pids.push(next);
        for pid in &pids {
            assert_eq!(fixture.of_pid(account, *pid).await, Some(vm), "{pid} of {pids:?}");
            assert_eq!(fixture.of_pid(AccountId::generate(), *pid).await, None);
        }
    }
    fixture.swarm.end(&account, vm, "d").await.unwrap();
    for pid in pids {
        assert_eq!(fixture.of_pid(account, pid).await, None);
    }
}

#[tokio::test]
async fn a_former_process_id_leads_to_the_vm_of_the_account_that_got_it_last() {
    let fixture = Fixture::new().await;
    let (account, stranger) = (fixture.account, AccountId::generate());
    fixture.set_pids([11, 12, 13, 11, 20, 12, 13]);
    let vm = fixture.boot(1).await.unwrap().vms[0].id;
    for _ in 0..2 {
        fixture.pause_to_disk(vm).await;
        fixture.resume_from_disk(vm).await;
    }
    fixture.pause_to_disk(vm).await;
    // By a boot.
    let booted = fixture.boot(1).await.unwrap().vms[0].id;
    assert_eq!(fixture.of_pid(account, 11).await, Some(booted));
    // By a resume.
    let resumed = fixture.boot(1).await.unwrap().vms[0].id;
    fixture.pause_to_disk(resumed).await;
    assert_eq!(fixture.resume_from_disk(resumed).await.pid, Some(12));
    // By a boot of another account, which does not matter to this one.
    let spec = fixture.boot_spec(1);
    let foreign = fixture.swarm.boot(&stranger, &FREE, spec).await.unwrap().vms[0].id;
    let expected = [(11, booted), (12, resumed), (13, vm), (20, resumed)];
    for (pid, vm) in expected {
        assert_eq!(fixture.of_pid(account, pid).await, Some(vm), "{pid}");
    }
    assert_eq!(fixture.of_pid(stranger, 13).await, Some(foreign));
    // An end does not give it back.
    fixture.swarm.end(&account, booted, "d").await.unwrap();
    assert_eq!(fixture.of_pid(account, 11).await, None);
}

#[tokio::test]
async fn a_resume_that_waits_for_a_pause_to_disk_passes_admission() {
    let fixture = Fixture::new().await;
    let (swarm, account) = (&fixture.swarm, &fixture.account);
    let vms = fixture.boot(2).await.unwrap().vms;
    let (vm, other) = (vms[0].id, vms[1].id);
    let used_by_both = fixture.memory_used().await;
    let one = Limits { max_vms: Some(1), ..Limits::NONE };
    let memory_of_one = Limits { max_memory_mb: Some(vms[0].memory_mb), ..Limits::NONE };
    let refused = Some(ErrorCode::QuotaExceeded);
    for (limits, expected) in [(FREE, None), (one, refused), (memory_of_one, refused)] {
        // After a refusal it is on disk.
        fixture.resume_from_disk(vm).await;
        assert_eq!(fixture.memory_used().await, used_by_both);
        fixture.keeper(|keeper| keeper.holds_captures = true);
        let resume = async {
            eventually("the pause", async || fixture.keeper(|keeper| keeper.captures_held == 1)).await;
            let mut resume = pin!(swarm.resume(account, &limits, vm, "r"));
            // It finds the VM running, and waits until the pause is over.
            assert!(resume.as_mut().now_or_never().is_none());
            fixture.keeper(|keeper| keeper.holds_captures = false);
            resume.await
        };
        let (paused, resumed) = tokio::join!(swarm.pause(account, vm, PausedTo::Disk, "p"), resume);
        paused.unwrap();
        assert_eq!(resumed.err().map(|error| error.code()), expected, "{limits:?}");
        assert_eq!(fixture.store.is_paused(vm), expected.is_some());
        let used = if expected.is_some() { used_by_both / 2 } else { used_by_both };
        assert_eq!(fixture.memory_used().await, used);
    }
    // The end of the other one makes room.
    swarm.end(account, other, "d").await.unwrap();
    swarm.resume(account, &one, vm, "r").await.unwrap();
    swarm.cleanup(account, "c").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_guest_that_does_not_freeze_delays_no_end_of_its_vm() {
    for is_pause in [false, true] {
        let fixture = Fixture::new().await;
        let (swarm, account) = (&fixture.swarm, &fixture.account);
        fixture.keeper(|keeper| keeper.never_freezes = true);
        let vm = fixture.boot(1).await.unwrap().vms[0].id;
        let copy = async {
            if is_pause {
                return swarm.pause(account, vm, PausedTo::Disk, "p").await.map(drop);
            }
            let awake = swarm.awake(account, &FREE, vm).await?;
            swarm.snapshot(awake, TemplateId::generate()).await.map(drop)
        };
        let end = async {
            eventually("a freeze", async || fixture.keeper(|keeper| keeper.freezes == 1)).await;
            swarm.end(account, vm, "d").await.unwrap();
        };
        let (copied, ()) = tokio::join!(copy, end);
        // Not that the guest took too long.
        assert_eq!(copied.unwrap_err().code(), ErrorCode::VmEnded);
        assert_eq!(fixture.store.ends(), [(vm, EndReason::Deleted)]);
        fixture.assert_nothing_left().await;
    }
}

#[tokio::test]
async fn one_account_cannot_take_all_captures_of_the_keeper() {
    let fixture = Fixture::new().await;
    let (swarm, account, other) = (&fixture.swarm, fixture.account, AccountId::generate());
    let vms: Vec<VmId> = fixture.boot(33).await.unwrap().vms.iter().map(|vm| vm.id).collect();
    let (&last, most) = vms.split_last().unwrap();
    let of_other = swarm.boot(&other, &FREE, fixture.boot_spec(1)).await.unwrap().vms[0].id;
    fixture.keeper(|keeper| keeper.holds_captures = true);
    let pause = |account: AccountId, vm: VmId| {
        let swarm = swarm.clone();
        tokio::spawn(async move { swarm.pause(&account, vm, PausedTo::Disk, "p").await })
    };
    let mut pauses: Vec<_> = most.iter().map(|vm| pause(account, *vm)).collect();
    eventually("the captures", async || fixture.keeper(|keeper| keeper.captures_held == most.len())).await;

    let fork = BootSpec { source: BootFrom::Vm { vm: last, keeps_metadata: false }, ..fixture.boot_spec(1) };
    let awake = swarm.awake(&account, &FREE, last).await.unwrap();
    let refusals = [
        swarm.pause(&account, last, PausedTo::Disk, "p").await.unwrap_err(),
        swarm.snapshot(awake, TemplateId::generate()).await.unwrap_err(),
        fixture.boot_with(fork).await.unwrap_err(),
    ];
    for refused in refusals.map(Failure::from) {
        assert_eq!(refused.code, ErrorCode::NoCapacity);
        assert!(refused.message.contains("32 VMs of this account"), "{refused}");
    }
    assert_eq!(fixture.keeper(|keeper| keeper.freezes), most.len(), "nothing of it is stopped");
    // The captures that are left are for other accounts.
    pauses.push(pause(other, of_other));
    eventually("the other one", async || fixture.keeper(|keeper| keeper.captures_held > most.len())).await;

    fixture.keeper(|keeper| keeper.holds_captures = false);
    for pause in pauses {
        pause.await.unwrap().unwrap();
    }
    fixture.pause_to_disk(last).await;
    for account in [account, other] {
        swarm.cleanup(&account, "c").await.unwrap();
    }
    fixture.assert_nothing_left().await;
}
