//! The guard: when almost no memory is left, it ends a parked VM, else the VM that exceeds its share most. Without it the
//! kernel would kill a process, and callers would not learn why.
//!
//! Before that, the server boots no VMs and ends its parked ones, see [`MachineMemory`].

use std::{sync::Arc, time::Duration};

use skep_api::VmId;
use skep_keeper_protocol::{MachineMemory, OutOfMemory};
use tokio::time::sleep;

use super::deltas::DeltaHolders;
use crate::{vmm::HeldMemory, vmms::Vmms};

/// Below this share of the memory, in percent, and below this amount in bytes, a VM is ended.
const CRITICAL: Threshold = Threshold { percent: 3, bytes: 256 << 20 };
/// Below this the guard looks more often: guests fill memory at up to a GB/s.
const WATCHED: Threshold = Threshold { percent: 15, bytes: 1 << 30 };
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const SHORT_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The greater of both counts.
struct Threshold {
    percent: u64,
    bytes: u64,
}

impl Threshold {
    fn is_above(&self, memory: &MachineMemory) -> bool {
        memory.available_bytes < self.bytes.max(memory.total_bytes / 100 * self.percent)
    }
}

/// Guards the memory until the task is aborted.
pub(crate) async fn run(vmms: Arc<Vmms>) {
    loop {
        let memory = match vmms.memory() {
            Ok(memory) => memory,
            Err(error) => {
                tracing::warn!(%error, "the free memory cannot be read, so no VM is ended for it: {error}");
                sleep(Duration::from_secs(60)).await;
                continue;
            }
        };
        if CRITICAL.is_above(&memory) && vmms.end_one_for_memory(&memory).await {
            // One at a time, and then a new look.
            continue;
        }
        sleep(if WATCHED.is_above(&memory) { SHORT_LOOK_INTERVAL } else { LOOK_INTERVAL }).await;
    }
}

/// The VM that exceeds its share of the memory for VMs most, with the reason for its end. Shares are proportional to the
/// memory of the guests. A VM holds its own memory and a part of the delta that it shares with other VMs: else copies whose delta
/// fills the memory would hold little, and the VM of somebody else would be ended. Uncommitted VMs are chosen first, because no
/// caller uses them.
pub(crate) fn largest_excess(
    vms: &[(VmId, HeldMemory)],
    memory_for_vms_bytes: u64,
    promised_bytes: u64,
    memory: &MachineMemory,
) -> Option<(VmId, OutOfMemory)> {
    let share = |guest_bytes: u64| {
        let share =
            u128::from(guest_bytes) * u128::from(memory_for_vms_bytes) / u128::from(promised_bytes.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let holders = DeltaHolders::count(vms.iter().filter_map(|(_, vm)| vm.delta));
    let held =
        |vm: &HeldMemory| vm.held_bytes.saturating_add(vm.delta.map_or(0, |delta| holders.part_bytes(delta)));
    let excess = |vm: &HeldMemory| i128::from(held(vm)) - i128::from(share(vm.guest_bytes));
    let (vm, chosen) = vms.iter().max_by_key(|(_, vm)| (!vm.committed, excess(vm)))?;
    let reason = OutOfMemory::Guard {
        held_mb: held(chosen) >> 20,
        share_mb: share(chosen.guest_bytes) >> 20,
        available_mb: memory.available_bytes >> 20,
    };
    Some((*vm, reason))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{disk_layer::FileId, memory::MappedDelta};

    fn memory(available_bytes: u64) -> MachineMemory {
        MachineMemory { available_bytes, total_bytes: 1000, templates_bytes: 0, under_pressure: false }
    }

    /// The memory of a VM of a caller that maps no delta, and of its guest, in MiB.
    fn held(held_mb: u64, guest_mb: u64) -> HeldMemory {
        HeldMemory { held_bytes: held_mb << 20, delta: None, guest_bytes: guest_mb << 20, committed: true }
    }

    #[test]
    fn a_small_machine_is_watched_and_guarded_by_amount_and_a_large_one_by_share() {
        let of = |available_mb: u64, total_mb: u64| {
            let memory = MachineMemory {
                available_bytes: available_mb << 20,
                total_bytes: total_mb << 20,
                ..memory(0)
            };
            (WATCHED.is_above(&memory), CRITICAL.is_above(&memory))
        };
        assert_eq!([of(1024, 4000), of(1023, 4000)], [(false, false), (true, false)]);
        assert_eq!([of(256, 4000), of(255, 4000)], [(true, false), (true, true)]);
        assert_eq!([of(15_000, 100_000), of(14_999, 100_000)], [(false, false), (true, false)]);
        assert_eq!([of(3000, 100_000), of(2999, 100_000)], [(true, false), (true, true)]);
    }

    #[test]
    fn a_large_vm_within_its_share_is_not_ended_for_a_small_one_beyond_it() {
        let (large, small) = (VmId::generate(), VmId::generate());
        let vms = [(large, held(700, 2048)), (small, held(500, 512))];
        // Shares of 1024 and 256 MiB.
        let ended = largest_excess(&vms, 1280 << 20, 2560 << 20, &memory(9 << 20)).unwrap();
        assert_eq!(ended, (small, OutOfMemory::Guard { held_mb: 500, share_mb: 256, available_mb: 9 }));
        assert_eq!(largest_excess(&[], 1, 1, &memory(1)), None);
    }

    #[test]
    fn no_vm_of_a_caller_is_ended_while_there_is_one_that_nobody_has() {
        let [excessive, parked, parked_larger] = [(); 3].map(|()| VmId::generate());
        let held = |mb: u64, committed| HeldMemory { committed, ..held(mb, 1024) };
        let mut vms =
            vec![(excessive, held(1100, true)), (parked, held(60, false)), (parked_larger, held(61, false))];
        for expected in [parked_larger, parked, excessive] {
            let (ended, _) = largest_excess(&vms, 1 << 30, 3 << 30, &memory(9 << 20)).unwrap();
            assert_eq!(ended, expected);
            vms.retain(|(vm, _)| *vm != ended);
        }
    }

    #[test]
    fn a_copy_holds_its_part_of_the_delta_that_fills_the_memory() {
        let [copy, smaller_copy, other] = [(); 3].map(|()| VmId::generate());
        let ended = |vms: &[(VmId, HeldMemory)]| {
            let (vm, reason) = largest_excess(vms, 1200 << 20, 6144 << 20, &memory(9 << 20)).unwrap();
            let OutOfMemory::Guard { held_mb, share_mb: 400, .. } = reason else { panic!("{reason:?}") };
            (vm, held_mb)
        };
        let mut vms = [(copy, held(70, 2048)), (smaller_copy, held(60, 2048)), (other, held(450, 2048))];
        // Control: by its own memory, the other VM exceeds its share most.
        assert_eq!(ended(&vms), (other, 450));
        let delta = Some(MappedDelta { file: FileId::fake(1), bytes: 900 << 20 });
        (vms[0].1.delta, vms[1].1.delta) = (delta, delta);
        assert_eq!(ended(&vms), (copy, 70 + 450));
        // All of the delta counts for the last copy.
        assert_eq!(ended(&vms[1..]), (smaller_copy, 60 + 900));
    }

    proptest! {
        #[test]
        fn some_vm_is_ended_whatever_the_figures(
            figures in prop::collection::vec(any::<(u64, Option<(u8, u64)>, u64, bool)>(), 1..20),
            budget: u64,
            promised: u64,
        ) {
            let vms: Vec<_> = figures
                .into_iter()
                .map(|(held_bytes, delta, guest_bytes, committed)| {
                    let delta = delta
                        .map(|(inode, bytes)| MappedDelta { file: FileId::fake(inode.into()), bytes });
                    (VmId::generate(), HeldMemory { held_bytes, delta, guest_bytes, committed })
                })
                .collect();
            prop_assert!(largest_excess(&vms, budget, promised, &memory(0)).is_some());
        }
    }
}
