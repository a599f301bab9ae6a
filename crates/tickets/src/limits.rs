//! Limits of the fields of tickets and requests.

use std::{ops::RangeInclusive, time::Duration};

pub const LONGEST_TITLE: usize = 500;
/// Of a description, and of metadata as JSON, in bytes.
pub const LARGEST_TEXT: usize = 64 << 10;
/// Of a result as JSON, in bytes.
pub const LARGEST_RESULT: usize = 1 << 20;
pub const MOST_DEPENDENCIES: usize = 1_000;
/// Of a ticket, and of a filter.
pub const MOST_LABELS: usize = 32;
pub const MOST_TICKETS: usize = 1_000;
pub const LONGEST_ASSIGNEE: usize = 200;
pub const LONGEST_REF: usize = 100;
pub const LONGEST_PROGRESS: usize = 2_000;
/// How many tickets one request can claim.
pub const CLAIMS: RangeInclusive<u32> = 1..=100;
/// Lengths of a lease, in milliseconds.
pub const LEASES_MS: RangeInclusive<u64> = 5_000..=86_400_000;
/// The lease of a claim that gives none. It is long, because an agent that sends no heartbeats must not lose its
/// work.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(3_600);
/// Values of `max_runtime_ms`, in milliseconds.
pub const RUNTIMES_MS: RangeInclusive<u64> = 5_000..=2_592_000_000;
pub const DEFAULT_RUNTIME: Duration = Duration::from_secs(86_400);
/// Values of `max_attempts`.
pub const ATTEMPTS: RangeInclusive<u32> = 1..=1_000;
pub const DEFAULT_ATTEMPTS: u32 = 5;
/// Values of `retry_after_ms`, in milliseconds.
pub const RESTS_MS: RangeInclusive<u64> = 0..=2_592_000_000;
/// Values of `wait_ms`, in milliseconds.
pub const WAITS_MS: RangeInclusive<u64> = 0..=60_000;
/// How many tickets an error or a reason names.
pub const NAMED: usize = 10;
