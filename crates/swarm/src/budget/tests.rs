use skep_api::ErrorCode;

use super::*;

const FREE: Limits = Limits::NONE;

fn requested(vms: u32, guest_mb: u64) -> RequestedCapacity {
    RequestedCapacity { vms, guest_mb, parked: 0 }
}

#[test]
fn capacity_is_not_reserved_twice_and_is_released() {
    let budget = Arc::new(Budget::new(3, 10_000, 10_000, 48));
    let account = AccountId::generate();
    let mut first = budget.reserve(account, &FREE, &requested(2, 128)).unwrap();
    let refused = budget.reserve(AccountId::generate(), &FREE, &requested(2, 128)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    assert!(refused.message.contains("holds 3 VMs"), "{}", refused.message);
    let one = first.split_one();
    drop(first);
    assert_eq!(budget.capacity().memory_used_mb, 176);
    drop(one);
    assert_eq!(budget.capacity().memory_used_mb, 0);
    budget.reserve(account, &FREE, &requested(3, 128)).unwrap();
}

#[test]
fn a_guest_that_runs_already_is_counted_beyond_the_limits() {
    let budget = Arc::new(Budget::new(1, 100, 100, 48));
    let account = AccountId::generate();
    let held = [budget.reserve_running(account, 128), budget.reserve_running(account, 128)];
    assert_eq!(budget.capacity().memory_used_mb, 352);
    budget.reserve(account, &FREE, &requested(1, 1)).unwrap_err();
    drop(held);
    assert_eq!(budget.capacity().memory_used_mb, 0);
    budget.reserve(account, &FREE, &requested(1, 1)).unwrap();
}

#[test]
fn memory_is_promised_up_to_a_limit_of_its_own() {
    let budget = Arc::new(Budget::new(100, 400, 1600, 48));
    assert_eq!(budget.capacity().memory_mb, 1600);
    let account = AccountId::generate();
    let _held = budget.reserve(account, &FREE, &requested(1, 1024)).unwrap();
    let refused = budget.reserve(account, &FREE, &requested(2, 256)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    for named in ["400 MiB", "up to 1600 MiB", "1072 MiB are promised", "608 MiB were asked for"] {
        assert!(refused.message.contains(named), "{named}: {refused}");
    }
    assert!(budget.reserve_parked(1024).is_none());
    budget.reserve(account, &FREE, &requested(1, 480)).unwrap();
}

#[test]
fn a_quota_counts_the_memory_of_all_guests_whether_they_use_it_or_not() {
    let budget = Arc::new(Budget::new(100, 100_000, 100_000, 48));
    let limits = Limits { max_memory_mb: Some(2048), ..FREE };
    let account = AccountId::generate();
    let _held = budget.reserve(account, &limits, &requested(1, 1024)).unwrap();
    let refused = budget.reserve(account, &limits, &requested(1, 1025)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    budget.reserve(account, &limits, &requested(1, 1024)).unwrap();
}

#[test]
fn parked_vms_give_way_to_boots() {
    let budget = Arc::new(Budget::new(3, 10_000, 10_000, 48));
    let account = AccountId::generate();
    let _one = budget.reserve(account, &FREE, &requested(1, 128)).unwrap();
    let spaces = [budget.reserve_parked(128).unwrap(), budget.reserve_parked(128).unwrap()];
    assert!(budget.reserve_parked(128).is_none());
    assert!(!budget.is_overcommitted());
    assert_eq!(budget.capacity().memory_used_mb, 176, "nobody uses what is parked");
    let _two = budget.reserve(account, &FREE, &requested(2, 128)).unwrap();
    assert!(budget.is_overcommitted());
    drop(spaces);
    assert!(!budget.is_overcommitted());
}

#[test]
fn a_boot_leaves_the_machine_its_reserve_and_the_pool_some_more() {
    let budget = Arc::new(Budget::new(100, 10_000, 40_000, 128));
    let observe = |available_mb: u64| {
        let machine = MachineMemory {
            available_bytes: available_mb << 20,
            total_bytes: 10_000 << 20,
            templates_bytes: 40 << 20,
            under_pressure: false,
        };
        budget.observe(MemorySample { machine, held_bytes: 60 << 20 });
    };
    let account = AccountId::generate();
    // A boot needs less memory at first than its VM is promised.
    observe(1128);
    assert!(!budget.lacks_memory(2) && budget.lacks_memory(3));
    let held = budget.reserve(account, &FREE, &requested(2, 1024)).unwrap();
    assert!(budget.reserve_parked(1024).is_none());
    let refused = budget.reserve(account, &FREE, &requested(3, 1024)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    for named in [
        "1128 MiB of memory are available",
        "1000 MiB stay reserved",
        "10000 MiB for VMs",
        "100 MiB are held",
        "2304 MiB promised",
        "3 VMs with 3456 MiB",
    ] {
        assert!(refused.message.contains(named), "{named}: {refused}");
    }
    let capacity = budget.capacity();
    assert_eq!((capacity.memory_held_mb, capacity.memory_available_mb), (100, Some(1128)));
    drop(held);
    observe(1564);
    budget.reserve_parked(1024).unwrap();
}

#[test]
fn idle_vms_make_room_only_if_they_suffice() {
    let account = AccountId::generate();
    let idle = |vms: u32| FreeableCapacity {
        vms,
        promised_mb: u64::from(vms) * 176,
        held_bytes: u64::from(vms) * (50 << 20),
    };
    let suffices = |budget: &Budget, vms, idle| budget.suffices_with(&idle, &requested(vms, 128));

    // By number: three of ten VMs are not idle.
    let budget = Arc::new(Budget::new(10, 100_000, 100_000, 48));
    let _held = budget.reserve(account, &FREE, &requested(10, 128)).unwrap();
    assert!(suffices(&budget, 7, idle(7)) && !suffices(&budget, 8, idle(7)));
    // By what is promised.
    let budget = Arc::new(Budget::new(100, 1_760, 1_760, 48));
    let _held = budget.reserve(account, &FREE, &requested(10, 128)).unwrap();
    assert!(suffices(&budget, 7, idle(7)) && !suffices(&budget, 8, idle(7)));
    // By the memory of the machine, of which 1,000 MiB stay free and each boot takes 64 MiB.
    let budget = Budget::new(100, 100_000, 100_000, 48);
    let machine = MachineMemory {
        available_bytes: 1_050 << 20,
        total_bytes: 10_000 << 20,
        templates_bytes: 0,
        under_pressure: true,
    };
    budget.observe(MemorySample { machine, held_bytes: 0 });
    assert!(suffices(&budget, 6, idle(7)) && !suffices(&budget, 7, idle(7)));
    let parked = RequestedCapacity { parked: 1, ..requested(7, 128) };
    assert!(budget.suffices_with(&idle(7), &parked));
}

#[test]
fn a_quota_names_both_numbers() {
    let budget = Arc::new(Budget::new(100, 100_000, 100_000, 48));
    let account = AccountId::generate();
    let limits = Limits { max_vms: Some(4), max_memory_mb: Some(400), ..FREE };
    let _held = budget.reserve(account, &limits, &requested(2, 128)).unwrap();
    let refused = budget.reserve(account, &limits, &requested(3, 1)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(refused.message.contains('3') && refused.message.contains("2 of this account's 4"), "{refused}");
    let refused = budget.reserve(account, &limits, &requested(2, 128)).unwrap_err();
    assert!(refused.message.contains("256 MiB") && refused.message.contains("144"), "{refused}");
}
