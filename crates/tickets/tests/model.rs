//! Six invariants under random sequences of actions on a few tickets. The model below stores the decisions of the
//! rules, as the store does, and finally checks that replaying its events gives the same state.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use skep_api::{
    Patch, TicketId,
    tickets::{Blocker, Heartbeat, Object, TicketStatus},
};
use skep_tickets::{
    Assignee, Blockers, Claim, Command, Decision, EndCause, FinishRequest, Release, Resolution, State, Step,
    StepKind, Ticket, Wait, decide, find_cycle, ready_step,
};

const TICKETS: usize = 5;

/// An action of an agent, a timer or an operator.
#[derive(Debug, Clone)]
enum Action {
    Claim { ticket: usize, agent: u8, named: bool, attempt: Option<u32> },
    Finish { ticket: usize, completed: bool, agent: Option<u8>, attempt: Option<u32>, result: Option<u8> },
    Release { ticket: usize, attempt: Option<u32>, rest: u16, by_status: bool },
    Beat { ticket: usize, attempt: Option<u32> },
    End { ticket: usize, attempt: u32, cause: EndCause },
    SetDependencies { ticket: usize, needs: Vec<usize> },
    AdvanceClock { seconds: u16 },
}

fn actions() -> impl Strategy<Value = Action> {
    let ticket = 0..TICKETS;
    let attempt = || prop::option::of(0..5_u32);
    let causes = [
        EndCause::LeaseExpired,
        EndCause::MaxRuntime,
        EndCause::VmEnded,
        EndCause::CommandEnded,
        EndCause::VmDeleted,
    ];
    prop_oneof![
        3 => (ticket.clone(), 0..3_u8, any::<bool>(), prop::option::weighted(0.2, 0..5_u32))
            .prop_map(|(ticket, agent, named, attempt)| Action::Claim { ticket, agent, named, attempt }),
        3 => (ticket.clone(), any::<bool>(), prop::option::of(0..3_u8), attempt(), prop::option::of(0..2_u8))
            .prop_map(|(ticket, completed, agent, attempt, result)| Action::Finish { ticket, completed, agent, attempt, result }),
        1 => (ticket.clone(), attempt(), 0..30_u16, any::<bool>())
            .prop_map(|(ticket, attempt, rest, by_status)| Action::Release { ticket, attempt, rest, by_status }),
        1 => (ticket.clone(), attempt()).prop_map(|(ticket, attempt)| Action::Beat { ticket, attempt }),
        2 => (ticket.clone(), 0..5_u32, prop::sample::select(causes.to_vec()))
            .prop_map(|(ticket, attempt, cause)| Action::End { ticket, attempt, cause }),
        2 => (ticket, prop::collection::vec(0..TICKETS, 0..3)).prop_map(|(ticket, needs)| Action::SetDependencies { ticket, needs }),
        2 => (0..400_u16).prop_map(|seconds| Action::AdvanceClock { seconds }),
    ]
}

/// An event with the state of the ticket after it, without derived fields and without the fields that heartbeats change.
#[derive(Debug, Clone, PartialEq)]
struct EventRecord {
    ticket: usize,
    kind: StepKind,
    status: TicketStatus,
    attempt: u32,
    assignee: Option<String>,
    result: Option<Object>,
    not_before: Option<Timestamp>,
}

struct Model {
    now: Timestamp,
    tickets: Vec<Ticket>,
    needs: Vec<Vec<usize>>,
    versions: Vec<u64>,
    events: Vec<EventRecord>,
    /// The number of successful claims.
    claims: usize,
    /// The open attempts of each ticket.
    open: Vec<Vec<u32>>,
    /// Whether the ready event of a ticket was emitted since the ticket last became not ready.
    announced: Vec<bool>,
}

impl Model {
    fn new() -> Self {
        let new_ticket = || Ticket {
            id: TicketId::generate(),
            attempt: 0,
            counted_attempts: 0,
            max_attempts: 3,
            wait: Wait::None,
            blockers: Blockers::default(),
            started_at: None,
            state: State::Pending { lapsed: None },
        };
        Self {
            now: "2026-05-01T12:00:00Z".parse().unwrap(),
            tickets: (0..TICKETS).map(|_| new_ticket()).collect(),
            needs: vec![Vec::new(); TICKETS],
            versions: vec![1; TICKETS],
            events: Vec::new(),
            claims: 0,
            open: vec![Vec::new(); TICKETS],
            announced: vec![true; TICKETS],
        }
    }

    fn apply(&mut self, act: Action) {
        match act {
            Action::Claim { ticket, agent, named, attempt } => {
                let name = format!("agent-{agent}");
                let assignee = if named { Assignee::Named(name) } else { Assignee::KeyName(name) };
                self.command(ticket, &Command::Claim(Claim { assignee, vm: None, attempt, lease: None }));
            }
            Action::Finish { ticket, completed, agent, attempt, result } => {
                let resolution = if completed { Resolution::Completed } else { Resolution::Failed };
                let result = result
                    .map_or(Patch::Absent, |n| Patch::Value(Object::from_iter([("n".to_owned(), n.into())])));
                let assignee = agent.map(|agent| Assignee::Named(format!("agent-{agent}")));
                let assignee = assignee.unwrap_or_else(|| Assignee::KeyName("key".to_owned()));
                let finish = FinishRequest { resolution, result, attempt, assignee };
                self.command(ticket, &Command::Finish(finish));
            }
            Action::Release { ticket, attempt, rest, by_status } => {
                let retry_after = Some(Duration::from_secs(rest.into()));
                self.command(
                    ticket,
                    &Command::Release(Release { attempt, assignee: None, retry_after, by_status }),
                );
            }
            Action::Beat { ticket, attempt } => {
                self.command(ticket, &Command::Heartbeat(Heartbeat { attempt, ..Heartbeat::default() }))
            }
            Action::End { ticket, attempt, cause } => {
                self.command(ticket, &Command::EndAttempt { attempt, cause, earlier: Vec::new() });
            }
            Action::SetDependencies { ticket, needs } => self.set_dependencies(ticket, needs),
            Action::AdvanceClock { seconds } => {
                self.now += i64::from(seconds).seconds();
                for ticket in 0..TICKETS {
                    if let Wait::Until(not_before) = self.tickets[ticket].wait
                        && not_before <= self.now
                    {
                        self.command(ticket, &Command::Wake { not_before });
                        self.tickets[ticket].wait = Wait::Passed(not_before);
                    }
                }
            }
        }
    }

    fn command(&mut self, place: usize, command: &Command) {
        let before = self.tickets[place].clone();
        let Ok(decided) = decide(&before, command, self.now) else {
            assert!(
                !matches!(command, Command::EndAttempt { .. } | Command::Wake { .. }),
                "what happens by itself is never refused"
            );
            return;
        };
        match decided {
            Decision::Nothing => {}
            Decision::Renewed(lease) => match &mut self.tickets[place].state {
                State::InProgress(holder) => holder.lease = lease,
                state => panic!("{state:?} has no lease"),
            },
            Decision::Changed(steps) => {
                assert!(!steps.is_empty());
                assert!(!matches!(before.state, State::Completed(_)), "a completed ticket changed");
                self.versions[place] += u64::from(steps.iter().any(|step| step.kind != StepKind::Ready));
                self.claims += usize::from(steps.iter().any(|step| step.kind == StepKind::Claimed));
                steps.iter().for_each(|step| self.step(place, step));
            }
        }
    }

    fn step(&mut self, place: usize, step: &Step) {
        let before = std::mem::replace(&mut self.tickets[place], step.ticket.clone());
        let after = &self.tickets[place];
        assert!(after.attempt >= before.attempt, "attempts only grow");
        let open = &mut self.open[place];
        if step.kind == StepKind::Claimed {
            assert_eq!(after.attempt, before.attempt + 1);
            assert!(open.is_empty(), "two attempts at a time");
            open.push(after.attempt);
        } else if step.kind.ends().is_some() {
            open.clear();
        }
        let (status, attempt) = (after.status(), after.attempt);
        let (assignee, not_before) = (after.assignee().map(str::to_owned), after.wait.time());
        let result = after.finish().and_then(|finish| finish.result.clone());
        self.record(EventRecord {
            ticket: place,
            kind: step.kind,
            status,
            attempt,
            assignee,
            result,
            not_before,
        });
        if step.kind == StepKind::Completed {
            self.update_dependents(place);
        }
    }

    fn record(&mut self, event: EventRecord) {
        if event.kind == StepKind::Ready {
            assert!(!self.announced[event.ticket], "it was announced before");
            self.announced[event.ticket] = true;
        } else {
            // After any other event, the ticket may become ready again, which needs a new event.
            self.announced[event.ticket] = false;
        }
        self.events.push(event);
    }

    /// Updates the tickets that depend on a completed ticket.
    fn update_dependents(&mut self, place: usize) {
        for dependent in 0..TICKETS {
            if !self.needs[dependent].contains(&place) {
                continue;
            }
            let before = self.tickets[dependent].clone();
            self.tickets[dependent].blockers = self.blockers(dependent);
            self.emit_ready(dependent, &before);
        }
    }

    fn emit_ready(&mut self, place: usize, before: &Ticket) {
        if let Some(step) = ready_step(Some(before), &self.tickets[place], self.now) {
            self.announced[place] = false;
            self.step(place, &step);
        }
    }

    fn blockers(&self, place: usize) -> Blockers {
        let open = self.needs[place].iter().map(|need| &self.tickets[*need]);
        let open = open.filter(|need| need.status() != TicketStatus::Completed);
        let named: Vec<Blocker> = open.map(|need| Blocker { id: need.id, status: need.status() }).collect();
        Blockers { total: u32::try_from(named.len()).unwrap(), named }
    }

    /// Replaces the dependencies of a ticket, if it is pending and they form no cycle.
    fn set_dependencies(&mut self, place: usize, mut needs: Vec<usize>) {
        needs.sort_unstable();
        needs.dedup();
        if !matches!(self.tickets[place].state, State::Pending { .. }) {
            return;
        }
        let of = |one: usize| Ok::<_, std::convert::Infallible>(self.needs[one].clone());
        if find_cycle(place, &needs, of).unwrap().is_some() {
            return;
        }
        let before = self.tickets[place].clone();
        self.needs[place] = needs;
        self.tickets[place].blockers = self.blockers(place);
        self.emit_ready(place, &before);
    }

    fn check(&self) {
        for (place, ticket) in self.tickets.iter().enumerate() {
            // Ready exactly if pending, all dependencies completed, and `not_before` passed.
            let done = |need: &usize| self.tickets[*need].status() == TicketStatus::Completed;
            let met = self.needs[place].iter().all(done);
            let time = ticket.wait.time().is_none_or(|at| at <= self.now);
            let pending = ticket.status() == TicketStatus::Pending;
            assert_eq!(ticket.is_ready(self.now), pending && met && time, "{ticket:?}");
            if ticket.is_ready(self.now) {
                assert!(self.announced[place], "no event announced that {place} is ready");
            }
            // At most one open attempt, and only while the ticket is in progress.
            let held = ticket.status() == TicketStatus::InProgress;
            assert_eq!(self.open[place], if held { vec![ticket.attempt] } else { vec![] });
            // No cycle.
            let of = |one: usize| Ok::<_, std::convert::Infallible>(self.needs[one].clone());
            assert_eq!(find_cycle(place, &self.needs[place], of).unwrap(), None);
            assert!(ticket.counted_attempts <= ticket.max_attempts);
        }
    }

    /// Checks that the events lead to the current state.
    fn replay(&self) {
        for (place, ticket) in self.tickets.iter().enumerate() {
            let own: Vec<&EventRecord> = self.events.iter().filter(|event| event.ticket == place).collect();
            let last = own.last();
            assert_eq!(last.map_or(TicketStatus::Pending, |event| event.status), ticket.status());
            assert_eq!(last.map_or(0, |event| event.attempt), ticket.attempt);
            assert_eq!(last.and_then(|event| event.assignee.as_deref()), ticket.assignee());
            assert_eq!(
                last.and_then(|event| event.result.clone()),
                ticket.finish().and_then(|finish| finish.result.clone())
            );
            assert_eq!(last.and_then(|event| event.not_before), ticket.wait.time());
            // A completed ticket has no further events.
            let completed = own.iter().position(|event| event.status == TicketStatus::Completed);
            assert!(completed.is_none_or(|at| at + 1 == own.len()), "{own:?}");
        }
        let claimed = self.events.iter().filter(|event| event.kind == StepKind::Claimed).count();
        assert_eq!(claimed, self.claims, "claims that were answered, and events of claims");
        let attempts: u32 = self.tickets.iter().map(|ticket| ticket.attempt).sum();
        assert_eq!(usize::try_from(attempts).unwrap(), self.claims);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_agents_do_the_invariants_hold(acts in prop::collection::vec(actions(), 0..80)) {
        let mut board = Model::new();
        for act in acts {
            let versions = board.versions.clone();
            board.apply(act);
            board.check();
            prop_assert!(board.versions.iter().zip(&versions).all(|(new, old)| new >= old));
        }
        board.replay();
    }
}
