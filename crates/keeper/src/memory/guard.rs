//! The guard: when almost no memory is left, it ends a parked VM, else the VM that exceeds its share most. Without it the
//! kernel would kill a process, and callers would not learn why.
//!
//! Before that, the server boots no VMs and ends its parked ones, see [`MachineMemory`].

use std::{sync::Arc, time::Duration};

use skep_api::VmId;
use skep_keeper_protocol::{MachineMemory, OutOfMemory};
use tokio::time::sleep;

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
/// memory of the guests. Uncommitted VMs are chosen first, because no caller uses them.
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
    let excess = |vm: &HeldMemory| i128::from(vm.held_bytes) - i128::from(share(vm.guest_bytes));
    let (vm, chosen) = vms.iter().max_by_key(|(_, vm)| (!vm.committed, excess(vm)))?;
    let reason = OutOfMemory::Guard {
        held_mb: chosen.held_bytes >> 20,
        share_mb: share(chosen.guest_bytes) >> 20,
        available_mb: memory.available_bytes >> 20,
    };
    Some((*vm, reason))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory(available_bytes: u64) -> MachineMemory {
        MachineMemory { available_bytes, total_bytes: 1000, templates_bytes: 0, under_pressure: false }
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
        let vms = [
            (large, HeldMemory { held_bytes: 700 << 20, guest_bytes: 2048 << 20, committed: true }),
            (small, HeldMemory { held_bytes: 500 << 20, guest_bytes: 512 << 20, committed: true }),
        ];
        // Shares of 1024 and 256 MiB.
        let ended = largest_excess(&vms, 1280 << 20, 2560 << 20, &memory(9 << 20)).unwrap();
        assert_eq!(ended, (small, OutOfMemory::Guard { held_mb: 500, share_mb: 256, available_mb: 9 }));
        assert_eq!(largest_excess(&[], 1, 1, &memory(1)), None);
    }

    #[test]
    fn no_vm_of_a_caller_is_ended_while_there_is_one_that_nobody_has() {
        let [excessive, parked, parked_larger] = [(); 3].map(|()| VmId::generate());
        let held = |mb: u64, committed| HeldMemory { held_bytes: mb << 20, guest_bytes: 1 << 30, committed };
        let mut vms =
            vec![(excessive, held(1100, true)), (parked, held(60, false)), (parked_larger, held(61, false))];
        for expected in [parked_larger, parked, excessive] {
            let (ended, _) = largest_excess(&vms, 1 << 30, 3 << 30, &memory(9 << 20)).unwrap();
            assert_eq!(ended, expected);
            vms.retain(|(vm, _)| *vm != ended);
        }
    }

    proptest! {
        #[test]
        fn some_vm_is_ended_whatever_the_figures(
            figures in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 1..20),
            budget: u64,
            promised: u64,
        ) {
            let vms: Vec<_> = figures
                .into_iter()
                .map(|(held_bytes, guest_bytes, committed)| {
                    (VmId::generate(), HeldMemory { held_bytes, guest_bytes, committed })
                })
                .collect();
            prop_assert!(largest_excess(&vms, budget, promised, &memory(0)).is_some());
        }
    }
}
