//! Limits of requests. The limits of the fields that only tickets have are beside their checks, in `fields`.

use std::{ops::RangeInclusive, time::Duration};

/// Of a result as JSON, in bytes.
pub const MAX_RESULT_BYTES: usize = 1 << 20;
pub const MAX_DEPENDENCIES: usize = 1_000;
/// Of a ticket, and of a filter.
pub const MAX_LABELS: usize = 32;
pub const MAX_BATCH_TICKETS: usize = 1_000;
/// Of an account, pending or in progress.
pub const MAX_OPEN_TICKETS: u64 = 100_000;
pub const MAX_ASSIGNEE_CHARACTERS: usize = 200;
pub const MAX_REF_CHARACTERS: usize = 100;
pub const MAX_PROGRESS_CHARACTERS: usize = 2_000;
/// How many tickets one request can claim.
pub const CLAIM_COUNTS: RangeInclusive<u32> = 1..=100;
/// Lengths of a lease, in milliseconds.
pub const LEASES_MS: RangeInclusive<u64> = 5_000..=86_400_000;
/// The lease of a claim that gives none. It is long, because an agent that sends no heartbeats must not lose its
/// work.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(3_600);
/// Values of `retry_after_ms`, in milliseconds.
pub const RETRY_DELAYS_MS: RangeInclusive<u64> = 0..=2_592_000_000;
/// Values of `wait_ms`, in milliseconds.
pub const WAITS_MS: RangeInclusive<u64> = 0..=60_000;
/// How many tickets an error or a reason names.
pub const MAX_NAMED_TICKETS: usize = 10;
