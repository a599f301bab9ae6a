//! The deadlines of tickets: leases, run times and `not_before`. No I/O and no clock: the current time is an argument.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::TicketId;
use skep_store::{AttemptTimer, OpenAttempt, WaitingTicket};

/// The drift between the two clocks from which on the wall clock is taken to have been set.
const WALL_CLOCK_TOLERANCE: Duration = Duration::from_millis(500);

/// The time of both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// Monotonic clock.
    pub(super) instant: Instant,
    /// Wall clock.
    pub(super) wall: Timestamp,
}

impl Now {
    pub(super) fn read() -> Self {
        // By the clock of the runtime, which the timers sleep by.
        Self { instant: tokio::time::Instant::now().into_std(), wall: Timestamp::now() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The lease or the run time of an attempt.
    Attempt(TicketId, u32, AttemptTimer),
    /// The `not_before` of a waiting ticket.
    Waiting(TicketId, Timestamp),
}

/// The deadlines of all tickets.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    held: HashMap<TicketId, Held>,
    waiting: HashMap<TicketId, Waiting>,
    /// When to check which ticket. An entry is not removed when a deadline is extended; the check finds that out.
    checks: BinaryHeap<Reverse<(Instant, TicketId)>>,
    /// Both clocks when the wall clock deadlines were last computed.
    computed_at: Option<Now>,
}

#[derive(Debug)]
struct Held {
    open: OpenAttempt,
    began: Instant,
    lease_ends: Instant,
    next_check: Instant,
}

#[derive(Debug)]
struct Waiting {
    not_before: Timestamp,
    /// Whether the deadline follows the wall clock. Back-offs are durations instead.
    by_wall: bool,
    deadline: Instant,
}

impl Held {
    fn deadline(&self) -> Instant {
        self.lease_ends.min(self.began + self.open.max_runtime)
    }
}

impl Deadlines {
    /// Adds an attempt that began, or updates one whose lease was renewed or whose limits changed.
    pub(super) fn set_attempt(&mut self, open: OpenAttempt, now: Now) {
        let lease_ends = now.instant + open.lease;
        let known = self.held.get_mut(&open.ticket).filter(|held| held.open.attempt == open.attempt);
        let next_check = match known {
            Some(held) => {
                if held.open.beats != open.beats {
                    held.lease_ends = lease_ends;
                }
                held.open = open;
                // A later deadline needs no entry: the check at the earlier one finds it out.
                (held.deadline() < held.next_check).then(|| {
                    held.next_check = held.deadline();
                    held.next_check
                })
            }
            None => {
                let mut held = Held { open, began: now.instant, lease_ends, next_check: lease_ends };
                held.next_check = held.deadline();
                let next_check = held.next_check;
                self.held.insert(open.ticket, held);
                Some(next_check)
            }
        };
        self.checks.extend(next_check.map(|look| Reverse((look, open.ticket))));
    }

    /// Adds an attempt that was open when the store was read. A known one keeps its deadlines.
    pub(super) fn add_attempt(&mut self, open: OpenAttempt, now: Now) {
        let known = self.held.get(&open.ticket);
        if known.is_none_or(|held| (held.open.attempt, held.open.beats) < (open.attempt, open.beats)) {
            self.set_attempt(open, now);
        }
    }

    /// Removes the attempt of a ticket that is no longer held.
    pub(super) fn remove_attempt(&mut self, ticket: TicketId) {
        self.held.remove(&ticket);
    }

    /// Adds a ticket that waits for its `not_before` or its back-off.
    pub(super) fn set_waiting(&mut self, waiting: WaitingTicket, now: Now) {
        let WaitingTicket { ticket, not_before, backoff: rest } = waiting;
        let by_wall = rest.is_none();
        let deadline = now.instant + rest.unwrap_or_else(|| until(not_before, now.wall));
        self.waiting.insert(ticket, Waiting { not_before, by_wall, deadline });
        self.checks.push(Reverse((deadline, ticket)));
        if by_wall {
            self.computed_at.get_or_insert(now);
        }
    }

    /// Adds a ticket that waited when the store was read. A known one keeps its deadline.
    pub(super) fn add_waiting(&mut self, waiting: WaitingTicket, now: Now) {
        let known = self.waiting.get(&waiting.ticket);
        if known.is_none_or(|known| known.not_before != waiting.not_before) {
            self.set_waiting(waiting, now);
        }
    }

    /// Computes the wall clock deadlines again if the wall clock was set.
    pub(super) fn adjust_to_wall_clock(&mut self, now: Now) {
        let Some(then) = self.computed_at else { return };
        let expected = then.wall.checked_add(now.instant.duration_since(then.instant)).unwrap_or(now.wall);
        let drift = now.wall.duration_since(expected).unsigned_abs();
        if drift < WALL_CLOCK_TOLERANCE {
            return;
        }
        for (ticket, waiting) in self.waiting.iter_mut().filter(|(_, waiting)| waiting.by_wall) {
            waiting.deadline = now.instant + until(waiting.not_before, now.wall);
            self.checks.push(Reverse((waiting.deadline, *ticket)));
        }
        self.computed_at = Some(now);
    }

    /// Whether any deadline follows the wall clock.
    pub(super) fn uses_wall_clock(&self) -> bool {
        self.waiting.values().any(|waiting| waiting.by_wall)
    }

    /// The earliest time at which a deadline may expire.
    pub(super) fn next(&self) -> Option<Instant> {
        self.checks.peek().map(|Reverse((look, _))| *look)
    }

    /// Removes and returns the expired deadlines.
    pub(super) fn due(&mut self, now: Now) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some(Reverse((check_at, ticket))) = self.checks.peek().copied() {
            if check_at > now.instant {
                break;
            }
            self.checks.pop();
            due.extend(self.attempt_due(ticket, now));
            due.extend(self.waiting_due(ticket, now));
        }
        due
    }

    fn attempt_due(&mut self, ticket: TicketId, now: Now) -> Option<Due> {
        let held = self.held.get_mut(&ticket)?;
        let (attempt, ends) = (held.open.attempt, held.deadline());
        if ends > now.instant {
            // The deadline was extended, or this check was meant for the waiting ticket.
            if held.next_check <= now.instant {
                held.next_check = ends;
                self.checks.push(Reverse((ends, ticket)));
            }
            return None;
        }
        let is_runtime_over = held.began + held.open.max_runtime <= now.instant;
        let why = if is_runtime_over {
            AttemptTimer::Runtime
        } else {
            AttemptTimer::Lease { beats: held.open.beats }
        };
        self.held.remove(&ticket);
        Some(Due::Attempt(ticket, attempt, why))
    }

    fn waiting_due(&mut self, ticket: TicketId, now: Now) -> Option<Due> {
        let waiting = self.waiting.get_mut(&ticket)?;
        if waiting.deadline > now.instant {
            return None;
        }
        if waiting.by_wall && waiting.not_before > now.wall {
            // The wall clock was set back, or runs more slowly than the monotonic one.
            waiting.deadline =
                now.instant + until(waiting.not_before, now.wall).max(Duration::from_millis(1));
            self.checks.push(Reverse((waiting.deadline, ticket)));
            return None;
        }
        let not_before = waiting.not_before;
        self.waiting.remove(&ticket);
        Some(Due::Waiting(ticket, not_before))
    }
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(86_400);

    fn at(start: Now, passed: Duration) -> Now {
        Now { instant: start.instant + passed, wall: start.wall + passed }
    }

    fn open(ticket: TicketId, beats: u64, lease: Duration) -> OpenAttempt {
        OpenAttempt { ticket, attempt: 1, beats, lease, max_runtime: DAY }
    }

    #[test]
    fn a_lease_expires_without_a_beat() {
        let (start, id) = (Now::read(), TicketId::generate());
        let mut clock = Deadlines::default();
        clock.set_attempt(open(id, 0, MINUTE), start);
        assert!(clock.due(at(start, MINUTE / 2)).is_empty());
        clock.set_attempt(open(id, 1, MINUTE), at(start, MINUTE / 2));
        assert!(clock.due(at(start, MINUTE)).is_empty(), "it was renewed");
        let up = [Due::Attempt(id, 1, AttemptTimer::Lease { beats: 1 })];
        assert_eq!(clock.due(at(start, MINUTE * 3 / 2)), up);
        assert!(clock.due(at(start, DAY)).is_empty(), "once");
    }

    #[test]
    fn a_shorter_lease_expires_sooner_and_a_beat_does_not_extend_the_runtime() {
        let (start, id) = (Now::read(), TicketId::generate());
        let mut clock = Deadlines::default();
        clock.set_attempt(open(id, 0, DAY), start);
        clock.set_attempt(open(id, 1, MINUTE), start);
        assert_eq!(clock.next(), Some(start.instant + MINUTE));
        clock.set_attempt(OpenAttempt { max_runtime: MINUTE / 2, ..open(id, 2, DAY) }, start);
        let up = [Due::Attempt(id, 1, AttemptTimer::Runtime)];
        assert_eq!(clock.due(at(start, MINUTE / 2)), up);
    }

    #[test]
    fn a_removed_attempt_does_not_expire_and_a_known_one_keeps_its_deadline() {
        let (start, id, other) = (Now::read(), TicketId::generate(), TicketId::generate());
        let mut clock = Deadlines::default();
        clock.set_attempt(open(id, 0, MINUTE), start);
        clock.set_attempt(open(other, 0, MINUTE), start);
        clock.remove_attempt(id);
        clock.add_attempt(open(other, 0, MINUTE), at(start, MINUTE / 2));
        assert_eq!(clock.due(at(start, MINUTE)), [Due::Attempt(other, 1, AttemptTimer::Lease { beats: 0 })]);
    }

    #[test]
    fn a_wall_clock_step_moves_only_wall_clock_deadlines() {
        let start = Now::read();
        let (by_wall, rests, held) = (TicketId::generate(), TicketId::generate(), TicketId::generate());
        let mut clock = Deadlines::default();
        let not_before = start.wall + MINUTE;
        clock.set_waiting(WaitingTicket { ticket: by_wall, not_before, backoff: None }, start);
        clock.set_waiting(WaitingTicket { ticket: rests, not_before, backoff: Some(MINUTE) }, start);
        clock.set_attempt(open(held, 0, MINUTE), start);
        // Two hours forward.
        let forward = Now { wall: start.wall + 120 * MINUTE, ..at(start, Duration::from_secs(1)) };
        assert!(clock.due(forward).is_empty());
        clock.adjust_to_wall_clock(forward);
        assert_eq!(clock.due(forward), [Due::Waiting(by_wall, not_before)]);
        // Two hours back, when the other deadlines expire.
        let back = Now { wall: start.wall - 120 * MINUTE, ..at(start, MINUTE) };
        let mut due = clock.due(back);
        due.sort_by_key(|due| matches!(due, Due::Attempt(..)));
        assert_eq!(
            due,
            [Due::Waiting(rests, not_before), Due::Attempt(held, 1, AttemptTimer::Lease { beats: 0 })]
        );
    }

    #[test]
    fn a_wall_clock_set_back_delays_wall_clock_deadlines() {
        let (start, ticket) = (Now::read(), TicketId::generate());
        let mut clock = Deadlines::default();
        let not_before = start.wall + MINUTE;
        clock.set_waiting(WaitingTicket { ticket, not_before, backoff: None }, start);
        let back = Now { wall: start.wall, ..at(start, MINUTE) };
        assert!(clock.due(back).is_empty());
        assert_eq!(clock.due(at(start, 2 * MINUTE)), [Due::Waiting(ticket, not_before)]);
    }
}
