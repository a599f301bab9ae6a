use proptest::prelude::*;
use skep_api::{
    AccountId, ErrorCode, VmId,
    keys::{DEFAULT_MAX_PAUSED_VMS, Limits},
};

use super::{
    refusal::{check_disk, check_pauses},
    reservation_table::{OtherReservations, ReservationTable, ReservedSpace},
};

fn space(account: AccountId, bytes: u64) -> ReservedSpace {
    ReservedSpace { account, bytes, vms: Vec::new(), is_pause: false }
}

#[test]
fn a_reservation_counts_those_before_it_of_its_account() {
    let (reservations, account, other) =
        (ReservationTable::default(), AccountId::generate(), AccountId::generate());
    let vm = VmId::generate();
    let (_, none) = reservations.add(space(other, 1_000));
    assert_eq!(none, OtherReservations::default());
    let (first, none) =
        reservations.add(ReservedSpace { vms: vec![vm], is_pause: true, ..space(account, 10) });
    assert_eq!(none, OtherReservations::default());
    let (second, others) = reservations.add(space(account, 20));
    assert_eq!(others, OtherReservations { bytes: 10, pauses: 1, vms: [vm].into() });
    reservations.shrink(first, space(account, 4));
    let (third, others) = reservations.add(space(account, 30));
    assert_eq!(others, OtherReservations { bytes: 24, ..OtherReservations::default() });
    // The first one is the last now, and counts the others.
    let (_, others) = reservations.enlarge(first, space(account, 40));
    assert_eq!(others.bytes, 50);
    reservations.release(second);
    reservations.release(third);
    let (_, others) = reservations.add(space(account, 1));
    assert_eq!(others.bytes, 40);
}

#[test]
fn a_refusal_has_the_numbers_and_the_way_out() {
    let limits = Limits { max_disk_mb: Some(100), max_paused_vms: Some(2), ..Limits::NONE };
    let mebibytes = |mb: u64| mb << 20;
    check_disk(&limits, mebibytes(60), mebibytes(40)).unwrap();
    check_disk(&Limits::NONE, u64::MAX, u64::MAX).unwrap();
    let refused = check_disk(&limits, mebibytes(60), mebibytes(40) + 1).unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    for part in ["41 MiB", "60 MiB", "100 MiB", "`max_disk_mb`", "remove files", "end a VM"] {
        assert!(refused.message.contains(part), "{refused}");
    }
    check_disk(&limits, u64::MAX, 1).unwrap_err();
    check_pauses(&limits, 1).unwrap();
    let refused = check_pauses(&limits, 2).unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    for part in ["has 2;", "may have 2 VMs on disk", "`max_paused_vms`", "resume or end"] {
        assert!(refused.message.contains(part), "{refused}");
    }
    check_pauses(&Limits::NONE, DEFAULT_MAX_PAUSED_VMS - 1).unwrap();
    check_pauses(&Limits::NONE, DEFAULT_MAX_PAUSED_VMS).unwrap_err();
}

/// A request in progress: what it reserved, what it counts besides, and whether it was admitted.
struct Progress {
    number: u64,
    reserved: u64,
    others: u64,
    is_admitted: bool,
}

proptest! {
    /// Requests begin, read what is stored, find a size that differs from their estimate, and end, in any order. What is stored
    /// never exceeds the limit.
    #[test]
    fn requests_at_the_same_time_never_exceed_the_limit(
        steps in prop::collection::vec((0_usize..6, 0_u8..3, 0_u64..60, 0_u64..60), 1..80),
    ) {
        const LIMIT: u64 = 100;
        let (reservations, account) = (ReservationTable::default(), AccountId::generate());
        let mut stored = 0;
        let mut progress: Vec<Progress> = Vec::new();
        for (at, step, estimate, size) in steps {
            match (step, at < progress.len()) {
                (0, _) => {
                    let (number, others) = reservations.add(space(account, estimate));
                    progress.push(Progress { number, reserved: estimate, others: others.bytes, is_admitted: false });
                }
                // What is stored is read some time after the reservation.
                (1, true) if !progress[at].is_admitted => {
                    let request = &mut progress[at];
                    request.is_admitted = stored + request.others + request.reserved <= LIMIT;
                    if !request.is_admitted {
                        reservations.release(progress.remove(at).number);
                    }
                }
                (2, true) if progress[at].is_admitted => {
                    let request = progress.remove(at);
                    let (number, fits) = if size <= request.reserved {
                        reservations.shrink(request.number, space(account, size));
                        (request.number, true)
                    } else {
                        let (number, others) = reservations.enlarge(request.number, space(account, size));
                        (number, stored + others.bytes + size <= LIMIT)
                    };
                    stored += if fits { size } else { 0 };
                    reservations.release(number);
                }
                _ => {}
            }
            prop_assert!(stored <= LIMIT, "{stored}");
        }
    }
}
