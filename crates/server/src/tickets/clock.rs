//! The deadlines of tickets: leases, run times and `not_before`. No I/O and no clock: the current time is an argument.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::TicketId;
use skep_store::{OpenAttempt, TimeUp, WaitingTicket};

/// The drift between the two clocks from which on the wall clock is taken to have been set.
const STEP: Duration = Duration::from_millis(500);

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
        Self { instant: Instant::now(), wall: Timestamp::now() }
    }
}

/// An expired deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The lease or the run time of an attempt.
    Attempt(TicketId, u32, TimeUp),
    /// The `not_before` of a waiting ticket.
    Waiting(TicketId, Timestamp),
}

/// The deadlines of all tickets.
#[derive(Debug, Default)]
pub(super) struct Clock {
    held: HashMap<TicketId, Held>,
    waiting: HashMap<TicketId, Waiting>,
    /// When to check which ticket. An entry is not removed when a deadline is extended; the check finds that out.
    looks: BinaryHeap<Reverse<(Instant, TicketId)>>,
    /// Both clocks when the wall clock deadlines were last computed.
    wall: Option<Now>,
}

#[derive(Debug)]
struct Held {
    open: OpenAttempt,
    began: Instant,
    lease_ends: Instant,
    look: Instant,
}

#[derive(Debug)]
struct Waiting {
    not_before: Timestamp,
    /// Whether the deadline follows the wall clock. Back-offs are durations instead.
    by_wall: bool,
    ends: Instant,
}

impl Held {
    fn ends(&self) -> Instant {
        self.lease_ends.min(self.began + self.open.max_runtime)
    }
}

impl Clock {
    /// Adds an attempt that began, or updates one whose lease was renewed or whose limits changed.
    pub(super) fn hold(&mut self, open: OpenAttempt, now: Now) {
        let lease_ends = now.instant + open.lease;
        let known = self.held.get_mut(&open.ticket).filter(|held| held.open.attempt == open.attempt);
        let look = match known {
            Some(held) => {
                if held.open.beats != open.beats {
                    held.lease_ends = lease_ends;
                }
                held.open = open;
                // A later deadline needs no entry: the check at the earlier one finds it out.
                (held.ends() < held.look).then(|| {
                    held.look = held.ends();
                    held.look
                })
            }
            None => {
                let mut held = Held { open, began: now.instant, lease_ends, look: lease_ends };
                held.look = held.ends();
                let look = held.look;
                self.held.insert(open.ticket, held);
                Some(look)
            }
        };
        self.looks.extend(look.map(|look| Reverse((look, open.ticket))));
    }

    /// Adds an attempt that was open when the store was read. A known one keeps its deadlines.
    pub(super) fn hold_unless_known(&mut self, open: OpenAttempt, now: Now) {
        let known = self.held.get(&open.ticket);
        if known.is_none_or(|held| (held.open.attempt, held.open.beats) < (open.attempt, open.beats)) {
            self.hold(open, now);
        }
    }

    /// Removes the attempt of a ticket that is no longer held.
    pub(super) fn free(&mut self, ticket: TicketId) {
        self.held.remove(&ticket);
    }

    /// Adds a ticket that waits for its `not_before` or its back-off.
    pub(super) fn wait(&mut self, waiting: WaitingTicket, now: Now) {
        let WaitingTicket { ticket, not_before, rest } = waiting;
        let by_wall = rest.is_none();
        let ends = now.instant + rest.unwrap_or_else(|| until(not_before, now.wall));
        self.waiting.insert(ticket, Waiting { not_before, by_wall, ends });
        self.looks.push(Reverse((ends, ticket)));
        if by_wall {
            self.wall.get_or_insert(now);
        }
    }

    /// Adds a ticket that waited when the store was read. A known one keeps its deadline.
    pub(super) fn wait_unless_known(&mut self, waiting: WaitingTicket, now: Now) {
        let known = self.waiting.get(&waiting.ticket);
        if known.is_none_or(|known| known.not_before != waiting.not_before) {
            self.wait(waiting, now);
        }
    }

    /// Computes the wall clock deadlines again if the wall clock was set.
    pub(super) fn look_at_the_wall(&mut self, now: Now) {
        let Some(then) = self.wall else { return };
        let expected = then.wall.checked_add(now.instant.duration_since(then.instant)).unwrap_or(now.wall);
        let apart = now.wall.duration_since(expected).unsigned_abs();
        if apart < STEP {
            return;
        }
        for (ticket, waiting) in self.waiting.iter_mut().filter(|(_, waiting)| waiting.by_wall) {
            waiting.ends = now.instant + until(waiting.not_before, now.wall);
            self.looks.push(Reverse((waiting.ends, *ticket)));
        }
        self.wall = Some(now);
    }

    /// Whether any deadline follows the wall clock.
    pub(super) fn follows_the_wall(&self) -> bool {
        self.waiting.values().any(|waiting| waiting.by_wall)
    }

    /// The earliest time at which a deadline may expire.
    pub(super) fn next(&self) -> Option<Instant> {
        self.looks.peek().map(|Reverse((look, _))| *look)
    }

    /// Removes and returns the expired deadlines.
    pub(super) fn due(&mut self, now: Now) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some(Reverse((look, ticket))) = self.looks.peek().copied() {
            if look > now.instant {
                break;
            }
            self.looks.pop();
            due.extend(self.attempt_due(ticket, now));
            due.extend(self.waiting_due(ticket, now));
        }
        due
    }

    fn attempt_due(&mut self, ticket: TicketId, now: Now) -> Option<Due> {
        let held = self.held.get_mut(&ticket)?;
        let (attempt, ends) = (held.open.attempt, held.ends());
        if ends > now.instant {
            // The deadline was extended, or this check was meant for the waiting ticket.
            if held.look <= now.instant {
                held.look = ends;
                self.looks.push(Reverse((ends, ticket)));
            }
            return None;
        }
        let runtime = held.began + held.open.max_runtime <= now.instant;
        let why = if runtime { TimeUp::Runtime } else { TimeUp::Lease { beats: held.open.beats } };
        self.held.remove(&ticket);
        Some(Due::Attempt(ticket, attempt, why))
    }

    fn waiting_due(&mut self, ticket: TicketId, now: Now) -> Option<Due> {
        let waiting = self.waiting.get_mut(&ticket)?;
        if waiting.ends > now.instant {
            return None;
        }
        if waiting.by_wall && waiting.not_before > now.wall {
            // The wall clock was set back, or runs more slowly than the monotonic one.
            waiting.ends = now.instant + until(waiting.not_before, now.wall).max(Duration::from_millis(1));
            self.looks.push(Reverse((waiting.ends, ticket)));
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
    fn a_lease_is_up_when_no_beat_put_it_off() {
        let (start, id) = (Now::read(), TicketId::generate());
        let mut clock = Clock::default();
        clock.hold(open(id, 0, MINUTE), start);
        assert!(clock.due(at(start, MINUTE / 2)).is_empty());
        clock.hold(open(id, 1, MINUTE), at(start, MINUTE / 2));
        assert!(clock.due(at(start, MINUTE)).is_empty(), "it was renewed");
        let up = [Due::Attempt(id, 1, TimeUp::Lease { beats: 1 })];
        assert_eq!(clock.due(at(start, MINUTE * 3 / 2)), up);
        assert!(clock.due(at(start, DAY)).is_empty(), "once");
    }

    #[test]
    fn a_shorter_lease_is_up_sooner_and_no_beat_puts_off_the_runtime() {
        let (start, id) = (Now::read(), TicketId::generate());
        let mut clock = Clock::default();
        clock.hold(open(id, 0, DAY), start);
        clock.hold(open(id, 1, MINUTE), start);
        assert_eq!(clock.next(), Some(start.instant + MINUTE));
        clock.hold(OpenAttempt { max_runtime: MINUTE / 2, ..open(id, 2, DAY) }, start);
        let up = [Due::Attempt(id, 1, TimeUp::Runtime)];
        assert_eq!(clock.due(at(start, MINUTE / 2)), up);
    }

    #[test]
    fn what_is_free_is_up_no_more_and_what_is_read_again_keeps_its_time() {
        let (start, id, other) = (Now::read(), TicketId::generate(), TicketId::generate());
        let mut clock = Clock::default();
        clock.hold(open(id, 0, MINUTE), start);
        clock.hold(open(other, 0, MINUTE), start);
        clock.free(id);
        clock.hold_unless_known(open(other, 0, MINUTE), at(start, MINUTE / 2));
        assert_eq!(clock.due(at(start, MINUTE)), [Due::Attempt(other, 1, TimeUp::Lease { beats: 0 })]);
    }

    #[test]
    fn the_wall_clock_moves_only_what_was_written_by_it() {
        let start = Now::read();
        let (by_wall, rests, held) = (TicketId::generate(), TicketId::generate(), TicketId::generate());
        let mut clock = Clock::default();
        let not_before = start.wall + MINUTE;
        clock.wait(WaitingTicket { ticket: by_wall, not_before, rest: None }, start);
        clock.wait(WaitingTicket { ticket: rests, not_before, rest: Some(MINUTE) }, start);
        clock.hold(open(held, 0, MINUTE), start);
        // Two hours forward.
        let forward = Now { wall: start.wall + 120 * MINUTE, ..at(start, Duration::from_secs(1)) };
        assert!(clock.due(forward).is_empty());
        clock.look_at_the_wall(forward);
        assert_eq!(clock.due(forward), [Due::Waiting(by_wall, not_before)]);
        // Two hours back, when the other deadlines expire.
        let back = Now { wall: start.wall - 120 * MINUTE, ..at(start, MINUTE) };
        let mut due = clock.due(back);
        due.sort_by_key(|due| matches!(due, Due::Attempt(..)));
        assert_eq!(due, [Due::Waiting(rests, not_before), Due::Attempt(held, 1, TimeUp::Lease { beats: 0 })]);
    }

    #[test]
    fn a_clock_that_is_set_back_puts_off_what_was_written_by_it() {
        let (start, ticket) = (Now::read(), TicketId::generate());
        let mut clock = Clock::default();
        let not_before = start.wall + MINUTE;
        clock.wait(WaitingTicket { ticket, not_before, rest: None }, start);
        let back = Now { wall: start.wall, ..at(start, MINUTE) };
        assert!(clock.due(back).is_empty());
        assert_eq!(clock.due(at(start, 2 * MINUTE)), [Due::Waiting(ticket, not_before)]);
    }
}
