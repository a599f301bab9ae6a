//! How large and how long things may be.

use std::{ops::RangeInclusive, time::Duration};

/// The longest title, in characters.
pub const LONGEST_TITLE: usize = 500;
/// The largest description and the largest metadata, in bytes.
pub const LARGEST_TEXT: usize = 64 << 10;
/// The largest result as JSON, in bytes.
pub const LARGEST_RESULT: usize = 1 << 20;
/// The most dependencies of a ticket.
pub const MOST_DEPENDENCIES: usize = 1_000;
/// The most labels of a ticket, or of a filter.
pub const MOST_LABELS: usize = 32;
/// The most tickets of a batch.
pub const MOST_TICKETS: usize = 1_000;
/// The longest name of an assignee or a `ref`, in characters.
pub const LONGEST_ASSIGNEE: usize = 200;
/// The longest `ref` of a batch, in characters.
pub const LONGEST_REF: usize = 100;
/// The longest progress of a beat, in characters.
pub const LONGEST_PROGRESS: usize = 2_000;
/// Tickets that one call claims.
pub const CLAIMS: RangeInclusive<u32> = 1..=100;
/// How long a claim holds, in milliseconds.
pub const LEASES_MS: RangeInclusive<u64> = 5_000..=86_400_000;
/// A claim that names no lease: an agent that never beats must not lose its work.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(3_600);
/// The longest that an attempt may take, in milliseconds.
pub const RUNTIMES_MS: RangeInclusive<u64> = 5_000..=2_592_000_000;
/// The same where a ticket names none.
pub const DEFAULT_RUNTIME: Duration = Duration::from_secs(86_400);
/// Attempts that may end by themselves.
pub const ATTEMPTS: RangeInclusive<u32> = 1..=1_000;
/// The same where a ticket names no number.
pub const DEFAULT_ATTEMPTS: u32 = 5;
/// How long a released ticket may rest, in milliseconds.
pub const RESTS_MS: RangeInclusive<u64> = 0..=2_592_000_000;
/// How long a claim may wait for work, in milliseconds.
pub const WAITS_MS: RangeInclusive<u64> = 0..=60_000;
/// Tickets that a refusal or a reason names.
pub const NAMED: usize = 10;
