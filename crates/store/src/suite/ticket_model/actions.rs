//! Generates random actions of agents, timers and operators, and converts them to commands.

use std::{collections::BTreeSet, time::Duration};

use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use skep_api::{
    AccountId, Label, Patch, TicketId,
    tickets::{Heartbeat, Object, Priority},
};
use skep_tickets::{
    Assignee, Claim, ClaimReady, Command, Dependency, Edits, FinishRequest, NewTicket, Release, Resolution,
};

use super::super::tickets::new_ticket;
use crate::{
    AttemptTimer, BeatTicket, ChangeTicket, ClaimTickets, CreateTickets, DeleteTicket, Dependents,
    EndAttempt, TicketCall,
};

/// Assignee of a finished ticket if the caller gives none.
pub(super) const KEY_NAME: &str = "key";
/// Length of the shortest lease, in seconds.
const SHORTEST_LEASE_S: u64 = 5;

/// A random action. Numbers refer to tickets in order of creation, including deleted ones.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// Creates one or more tickets, each with its dependencies and whether it also depends on the next one of the
    /// batch.
    Make {
        tickets: Vec<(Vec<u8>, bool)>,
        wait: Option<u16>,
        priority: Priority,
        attempts: u32,
        labels: Vec<u8>,
    },
    Change {
        ticket: u8,
        expected: Option<bool>,
        edit: Edit,
        step: Transition,
    },
    ClaimNext {
        agent: u8,
        count: u32,
        priorities: Vec<Priority>,
        labels: Vec<u8>,
    },
    Beat {
        ticket: u8,
        attempt: AttemptArgument,
        agent: Option<u8>,
        lease: Option<u8>,
        progress: bool,
    },
    /// A timer fires: for the lease after the latest or an earlier renewal, or for the maximum runtime (`None`).
    TimeUp {
        ticket: u8,
        attempt: AttemptArgument,
        lease: Option<bool>,
    },
    Delete {
        ticket: u8,
        expected: Option<bool>,
        force: bool,
        dependents: Dependents,
    },
    /// Advances the clock. Without `timers`, tickets whose `not_before` passes are not woken.
    Pass {
        seconds: u16,
        timers: bool,
    },
}

/// The attempt number that a caller gives, relative to the latest one.
#[derive(Debug, Clone, Copy)]
pub(super) enum AttemptArgument {
    None,
    Latest,
    Older,
    Newer,
}

#[derive(Debug, Clone)]
pub(super) enum Edit {
    None,
    Title(u8),
    Metadata(Option<u8>),
    Priority(Priority),
    Labels(Vec<u8>),
    Attempts(u32),
    Time(Option<i16>),
    Needs(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(super) enum Transition {
    None,
    Claim { agent: u8, named: bool, attempt: AttemptArgument, lease: Option<u8> },
    Finish { completed: bool, agent: Option<u8>, attempt: AttemptArgument, result: Option<Option<u8>> },
    Release { attempt: AttemptArgument, agent: Option<u8>, rest: u16, by_status: bool },
    Result(Option<u8>),
}

/// The command of an action.
#[derive(Debug, Clone)]
pub(super) enum ModelCommand {
    Create(CreateTickets),
    Change(ChangeTicket),
    Claim(ClaimTickets),
    Beat(BeatTicket),
    End(EndAttempt),
    Delete(DeleteTicket),
    Pass { seconds: u16, timers: bool },
}

/// What the caller of an action knows about its ticket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    pub(super) attempt: u32,
    pub(super) beats: u64,
    pub(super) version: u64,
}

/// Generates actions of which most succeed and some are refused.
pub(super) fn action() -> impl Strategy<Value = Action> {
    // Mostly the same few tickets, because errors are caused by several actions on one ticket.
    let ticket = || prop_oneof![4 => 0..3_u8, 1 => 3..9_u8];
    let agent = || 0..2_u8;
    let which = prop::sample::select(vec![
        AttemptArgument::None,
        AttemptArgument::None,
        AttemptArgument::Latest,
        AttemptArgument::Latest,
        AttemptArgument::Latest,
        AttemptArgument::Older,
        AttemptArgument::Newer,
    ]);
    let expected = || prop::option::weighted(0.1, prop::bool::weighted(0.7));
    let needs = || prop::collection::vec(0..9_u8, 0..4);
    let priority = || prop::sample::select(Priority::ALL.to_vec());
    let dependents = prop::sample::select(vec![Dependents::Refuse, Dependents::Detach, Dependents::Delete]);
    let batch = prop::collection::vec((needs(), any::<bool>()), 1..4);
    prop_oneof![
        1 => (batch, prop::option::weighted(0.5, 0..20_u16), priority(), 1..4_u32, labels()).prop_map(
            |(tickets, wait, priority, attempts, labels)| Action::Make { tickets, wait, priority, attempts, labels }
        ),
        10 => (ticket(), expected(), edit(), step())
            .prop_map(|(ticket, expected, edit, step)| Action::Change { ticket, expected, edit, step }),
        2 => (agent(), 1..4_u32, prop::collection::vec(priority(), 0..3), labels()).prop_map(
            |(agent, count, priorities, labels)| Action::ClaimNext { agent, count, priorities, labels }
        ),
        1 => (ticket(), which.clone(), prop::option::of(agent()), prop::option::of(0..60_u8), any::<bool>())
            .prop_map(|(ticket, attempt, agent, lease, progress)| Action::Beat { ticket, attempt, agent, lease, progress }),
        5 => (ticket(), which, prop::option::weighted(0.8, prop::bool::weighted(0.8)))
            .prop_map(|(ticket, attempt, lease)| Action::TimeUp { ticket, attempt, lease }),
        1 => (ticket(), expected(), any::<bool>(), dependents)
            .prop_map(|(ticket, expected, force, dependents)| Action::Delete { ticket, expected, force, dependents }),
        3 => (0..60_u16, prop::bool::weighted(0.3)).prop_map(|(seconds, timers)| Action::Pass { seconds, timers }),
    ]
}

/// Generates a subset of three labels, often empty.
fn labels() -> impl Strategy<Value = Vec<u8>> {
    prop::sample::subsequence(vec![0, 1, 2], 0..3)
}

/// Labels of which one is a prefix of another.
pub(super) fn label(number: u8) -> Label {
    ["plan", "plan/b", "gpu"][usize::from(number) % 3].parse().unwrap()
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        9 => Just(Edit::None),
        1 => (0..3_u8).prop_map(Edit::Title),
        1 => prop::option::of(0..3_u8).prop_map(Edit::Metadata),
        1 => prop::sample::select(Priority::ALL.to_vec()).prop_map(Edit::Priority),
        2 => labels().prop_map(Edit::Labels),
        1 => (1..4_u32).prop_map(Edit::Attempts),
        3 => prop::option::weighted(0.6, -20..60_i16).prop_map(Edit::Time),
        3 => prop::collection::vec(0..9_u8, 0..4).prop_map(Edit::Needs),
    ]
}

fn step() -> impl Strategy<Value = Transition> {
    let which = prop::sample::select(vec![
        AttemptArgument::None,
        AttemptArgument::Latest,
        AttemptArgument::Latest,
        AttemptArgument::Older,
    ]);
    let lease = prop::option::of(0..60_u8);
    let (agent, result) = (prop::option::weighted(0.3, 0..2_u8), prop::option::of(prop::option::of(0..2_u8)));
    prop_oneof![
        1 => Just(Transition::None),
        5 => (0..2_u8, prop::bool::weighted(0.8), prop::option::weighted(0.1, which.clone()), lease).prop_map(
            |(agent, named, attempt, lease)| {
                Transition::Claim { agent, named, attempt: attempt.unwrap_or(AttemptArgument::None), lease }
            }
        ),
        3 => (prop::bool::weighted(0.4), agent.clone(), which.clone(), result)
            .prop_map(|(completed, agent, attempt, result)| Transition::Finish { completed, agent, attempt, result }),
        2 => (which, agent, prop::sample::select(vec![0, 0, 10, 50]), any::<bool>())
            .prop_map(|(attempt, agent, rest, by_status)| Transition::Release { attempt, agent, rest, by_status }),
        1 => prop::option::of(0..2_u8).prop_map(Transition::Result),
    ]
}

/// Converts an action to a command; `None` if it needs a ticket and there is none yet.
#[expect(clippy::too_many_lines, reason = "one arm per action")]
pub(super) fn to_command(
    act: &Action,
    account: AccountId,
    at: Timestamp,
    ids: &[TicketId],
    known: impl Fn(TicketId) -> Known,
) -> Option<ModelCommand> {
    let call = TicketCall { account, key: None, vm: None, at, request_id: None };
    let pick = |number: &u8| ids.get(usize::from(*number) % ids.len().max(1)).copied();
    let expected = |wanted: &Option<bool>, id| {
        let version = known(id).version;
        wanted.map(|fresh| vec![if fresh { version } else { version + 1 }])
    };
    Some(match act {
        Action::Make { tickets, wait, priority, attempts, labels } => {
            let common = common_ticket(at, *wait, *priority, *attempts, labels);
            ModelCommand::Create(CreateTickets {
                call,
                tickets: creations(tickets, ids, &common),
                idempotency: None,
            })
        }
        Action::Change { ticket, expected: version, edit, step } => {
            let id = pick(ticket)?;
            let edits = edits(edit, at, ids);
            // The API does not combine these edits with a change of the status.
            let alone = edits.dependencies.is_some() || edits.not_before.is_some();
            let transition = if alone { None } else { transition(step, known(id).attempt) };
            ModelCommand::Change(ChangeTicket {
                call,
                id,
                expected: expected(version, id),
                edits,
                transition,
            })
        }
        Action::ClaimNext { agent, count, priorities, labels } => {
            let assignee = Assignee::Named(name(*agent));
            let each = Claim { assignee, vm: None, attempt: None, lease: None };
            let labels = labels.iter().copied().map(label).collect();
            let claim = ClaimReady { each, count: *count, priorities: priorities.clone(), labels };
            ModelCommand::Claim(ClaimTickets { call, claim, idempotency: None })
        }
        Action::Beat { ticket, attempt: which, agent, lease, progress } => {
            let id = pick(ticket)?;
            let attempt = which.of(known(id).attempt);
            let lease_ms = lease.map(|lease| u64::try_from(length(lease).as_millis()).unwrap());
            let progress = progress.then(|| format!("at {at}"));
            let beat = Heartbeat { attempt, assignee: agent.map(name), lease_ms, progress };
            ModelCommand::Beat(BeatTicket { call, id, beat })
        }
        Action::TimeUp { ticket, attempt: which, lease } => {
            let ticket = pick(ticket)?;
            let Known { attempt, beats, .. } = known(ticket);
            let why = match lease {
                Some(latest) => AttemptTimer::Lease { beats: if *latest { beats } else { beats + 1 } },
                None => AttemptTimer::Runtime,
            };
            ModelCommand::End(EndAttempt {
                ticket,
                attempt: which.of(attempt).unwrap_or(attempt),
                timer: why,
                at,
            })
        }
        Action::Delete { ticket, expected: version, force, dependents } => {
            let id = pick(ticket)?;
            let (expected, dependents) = (expected(version, id), *dependents);
            ModelCommand::Delete(DeleteTicket { call, id, expected, force: *force, dependents })
        }
        Action::Pass { seconds, timers } => ModelCommand::Pass { seconds: *seconds, timers: *timers },
    })
}

impl AttemptArgument {
    fn of(self, latest: u32) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Latest => Some(latest),
            Self::Older => Some(latest.saturating_sub(1)),
            Self::Newer => Some(latest + 1),
        }
    }
}

fn common_ticket(
    at: Timestamp,
    wait: Option<u16>,
    priority: Priority,
    max_attempts: u32,
    labels: &[u8],
) -> NewTicket {
    let not_before = wait.map(|seconds| at + i64::from(seconds).seconds());
    let labels = labels.iter().copied().map(label).collect();
    NewTicket { priority, max_attempts, not_before, labels, ..new_ticket("a", Vec::new()) }
}

/// New tickets that differ in their dependencies only.
fn creations(
    tickets: &[(Vec<u8>, bool)],
    ids: &[TicketId],
    common: &NewTicket,
) -> Vec<(Option<String>, NewTicket)> {
    let needs = needs_of(tickets, ids).into_iter();
    needs.map(|needs| (None, NewTicket { dependencies: needs, ..common.clone() })).collect()
}

fn needs_of(tickets: &[(Vec<u8>, bool)], ids: &[TicketId]) -> Vec<Vec<Dependency>> {
    let needs = |(place, (known, next)): (usize, &(Vec<u8>, bool))| {
        let sibling = (*next && place + 1 < tickets.len()).then_some(Dependency::Sibling(place + 1));
        sibling.into_iter().chain(picked(known, ids).into_iter().map(Dependency::Ticket)).collect()
    };
    tickets.iter().enumerate().map(needs).collect()
}

/// The tickets with these numbers, without duplicates, as the API passes them to the store.
fn picked(numbers: &[u8], ids: &[TicketId]) -> Vec<TicketId> {
    let mut seen = BTreeSet::new();
    let picked = numbers.iter().filter_map(|number| ids.get(usize::from(*number) % ids.len().max(1)));
    picked.copied().filter(|id| seen.insert(*id)).collect()
}

fn edits(edit: &Edit, at: Timestamp, ids: &[TicketId]) -> Edits {
    let none = Edits::default();
    match edit {
        Edit::None => none,
        Edit::Title(number) => Edits { title: Some(format!("title {number}")), ..none },
        Edit::Metadata(number) => Edits { metadata: Some(number.map(object)), ..none },
        Edit::Labels(numbers) => Edits { labels: Some(numbers.iter().copied().map(label).collect()), ..none },
        Edit::Priority(priority) => Edits { priority: Some(*priority), ..none },
        Edit::Attempts(most) => Edits { max_attempts: Some(*most), ..none },
        Edit::Time(seconds) => {
            Edits { not_before: Some(seconds.map(|seconds| at + i64::from(seconds).seconds())), ..none }
        }
        Edit::Needs(needs) => Edits { dependencies: Some(picked(needs, ids)), ..none },
    }
}

fn transition(step: &Transition, latest: u32) -> Option<Command> {
    Some(match step {
        Transition::None => return None,
        Transition::Claim { agent, named, attempt, lease } => {
            let name = name(*agent);
            let assignee = if *named { Assignee::Named(name) } else { Assignee::KeyName(name) };
            let (attempt, lease) = (attempt.of(latest), lease.map(length));
            Command::Claim(Claim { assignee, vm: None, attempt, lease })
        }
        Transition::Finish { completed, agent, attempt, result } => Command::Finish(FinishRequest {
            resolution: if *completed { Resolution::Completed } else { Resolution::Failed },
            result: result.map_or(Patch::Absent, patch),
            attempt: attempt.of(latest),
            assignee: agent
                .map_or_else(|| Assignee::KeyName(KEY_NAME.to_owned()), |agent| Assignee::Named(name(agent))),
        }),
        Transition::Release { attempt, agent, rest, by_status } => Command::Release(Release {
            attempt: attempt.of(latest),
            assignee: agent.map(name),
            retry_after: Some(Duration::from_secs((*rest).into())),
            by_status: *by_status,
        }),
        Transition::Result(number) => Command::ResultOnly(patch(*number)),
    })
}

fn patch(number: Option<u8>) -> Patch<Object> {
    number.map_or(Patch::Null, |number| Patch::Value(object(number)))
}

fn object(number: u8) -> Object {
    Object::from_iter([("number".to_owned(), number.into())])
}

fn name(agent: u8) -> String {
    format!("agent-{agent}")
}

fn length(seconds: u8) -> Duration {
    Duration::from_secs(SHORTEST_LEASE_S + u64::from(seconds))
}
