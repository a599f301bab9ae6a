//! Which ticket's time is up, and when the next one's is. Pure: the times are arguments.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::TicketId;
use skep_store::{OpenAttempt, TimeUp, WaitingTicket};

/// How far the two clocks may part before somebody must have set the one on the wall.
const STEP: Duration = Duration::from_millis(500);

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// The one that nobody sets.
    pub(super) instant: Instant,
    /// The one on the wall.
    pub(super) wall: Timestamp,
}

impl Now {
    /// This moment.
    pub(super) fn read() -> Self {
        Self { instant: Instant::now(), wall: Timestamp::now() }
    }
}

/// Whose time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// An attempt's.
    Attempt(TicketId, u32, TimeUp),
    /// That of a ticket that waited.
    Waiting(TicketId, Timestamp),
}

/// The times of all tickets.
#[derive(Debug, Default)]
pub(super) struct Clock {
    held: HashMap<TicketId, Held>,
    waiting: HashMap<TicketId, Waiting>,
    /// When to look at which ticket again. A time that was put off since is found out then.
    looks: BinaryHeap<Reverse<(Instant, TicketId)>>,
    /// What the clocks said when the times on the wall were last worked out.
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
    /// Whether the wall clock says when.
    by_wall: bool,
    ends: Instant,
}

impl Held {
    fn ends(&self) -> Instant {
        self.lease_ends.min(self.began + self.open.max_runtime)
    }
}

impl Clock {
    /// An attempt began, was renewed, or may take another time.
    pub(super) fn hold(&mut self, open: OpenAttempt, now: Now) {
        let lease_ends = now.instant + open.lease;
        let known = self.held.get_mut(&open.ticket).filter(|held| held.open.attempt == open.attempt);
        let look = match known {
            Some(held) => {
                if held.open.beats != open.beats {
                    held.lease_ends = lease_ends;
                }
                held.open = open;
                // What is put off is found out when it is looked at.
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

    /// An attempt that was open when the store was read. One that is known keeps its times.
    pub(super) fn hold_unless_known(&mut self, open: OpenAttempt, now: Now) {
        let known = self.held.get(&open.ticket);
        if known.is_none_or(|held| (held.open.attempt, held.open.beats) < (open.attempt, open.beats)) {
            self.hold(open, now);
        }
    }

    /// Nobody holds a ticket any more.
    pub(super) fn free(&mut self, ticket: TicketId) {
        self.held.remove(&ticket);
    }

    /// A ticket waits for its time.
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

    /// A ticket that waited when the store was read.
    pub(super) fn wait_unless_known(&mut self, waiting: WaitingTicket, now: Now) {
        let known = self.waiting.get(&waiting.ticket);
        if known.is_none_or(|known| known.not_before != waiting.not_before) {
            self.wait(waiting, now);
        }
    }

    /// Somebody may have set the clock on the wall: then the times that it tells are worked out again.
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

    /// Whether the clock on the wall matters.
    pub(super) fn follows_the_wall(&self) -> bool {
        self.waiting.values().any(|waiting| waiting.by_wall)
    }

    /// When somebody's time may be up.
    pub(super) fn next(&self) -> Option<Instant> {
        self.looks.peek().map(|Reverse((look, _))| *look)
    }

    /// Takes out those whose time is up.
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
            // It was put off, or this look is about something else.
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
            // The clock was set back, or it runs more slowly than the other one.
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
        // And back, when the others' time is up.
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
