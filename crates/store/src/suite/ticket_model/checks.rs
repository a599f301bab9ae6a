//! Invariants of the store after any sequence of actions, and comparison with the model.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_api::{
    AccountId, TicketId,
    tickets::{AttemptOutcome, Ticket, TicketStatus},
};

use super::{Comparison, actions::label};
use crate::{
    Event, EventKind, EventScope, ListTickets, ReadEvents, ReadTicketHistory, Store, TicketCounts,
    TicketFilter, TicketSort,
};

/// Fields that a replay of events does not contain, because they are derived or written by renewals.
const NOT_IN_EVENTS: [&str; 4] = ["ready", "blocked_by", "lease_expires_at", "progress"];

/// Lists all tickets in this order.
pub(super) async fn list(
    store: &dyn Store,
    account: AccountId,
    at: Timestamp,
    ready: Option<bool>,
    sort: TicketSort,
) -> Vec<Ticket> {
    filtered(store, account, at, TicketFilter { ready, ..TicketFilter::default() }, sort).await
}

/// Lists all tickets that match a filter, in this order.
async fn filtered(
    store: &dyn Store,
    account: AccountId,
    at: Timestamp,
    filter: TicketFilter,
    sort: TicketSort,
) -> Vec<Ticket> {
    let (mut tickets, mut after) = (Vec::new(), None);
    loop {
        let query = ListTickets { account, filter: filter.clone(), sort, limit: 7, after, at };
        let page = store.list_tickets(query).await.unwrap();
        tickets.extend(page.tickets);
        after = page.next;
        if after.is_none() {
            return tickets;
        }
    }
}

/// Returns all ticket events, in order.
pub(super) async fn events(store: &dyn Store, account: AccountId) -> Vec<Event> {
    let (of, kinds) = (EventScope::Account(account), EventKind::ALL.to_vec());
    let query = ReadEvents { scope: of, kinds, after: 0, limit: 100_000, bytes: usize::MAX };
    let page = store.read_events(query).await.unwrap();
    page.events.into_iter().filter(|event| event.ticket.is_some()).collect()
}

/// Checks the six invariants for all tickets of an account.
pub(super) async fn invariants(store: &dyn Store, account: AccountId, at: Timestamp) {
    let tickets = list(store, account, at, None, TicketSort::Created).await;
    let by_id: BTreeMap<TicketId, &Ticket> = tickets.iter().map(|one| (one.id, one)).collect();
    let completed = |id: &TicketId| by_id.get(id).is_none_or(|one| one.status == TicketStatus::Completed);
    for ticket in &tickets {
        let pending = ticket.status == TicketStatus::Pending;
        let time = ticket.not_before.is_none_or(|not_before| not_before <= at);
        let met = ticket.dependencies.iter().all(completed);
        assert_eq!(ticket.ready, pending && time && met, "{ticket:?}");
        check_acyclic(ticket, &by_id);
    }
    let events = events(store, account).await;
    let replayed = replay(&events);
    let table: BTreeMap<TicketId, Value> =
        tickets.iter().map(|one| (one.id, comparable(json!(one)))).collect();
    assert_eq!(
        replayed.into_iter().map(|(id, one)| (id, comparable(one))).collect::<BTreeMap<_, _>>(),
        table
    );

    let ever: BTreeSet<TicketId> = events.iter().filter_map(|event| event.ticket).collect();
    for id in ever {
        let query = ReadTicketHistory { account, id, limit: 1_000, after: None };
        let attempts = store.ticket_history(query).await.unwrap().attempts;
        let claims =
            events.iter().filter(|one| one.ticket == Some(id) && one.kind == EventKind::TicketClaimed);
        let numbers: Vec<_> = claims.map(|event| event.body["attempt"].clone()).collect();
        assert_eq!(attempts.iter().map(|one| json!(one.attempt)).collect::<Vec<_>>(), numbers, "of {id}");
        assert!(attempts.windows(2).all(|two| two[0].attempt + 1 == two[1].attempt), "{attempts:?}");
        let open: Vec<_> =
            attempts.iter().filter(|one| one.ended_at.is_none()).map(|one| one.attempt).collect();
        let held = by_id.get(&id).filter(|one| one.status == TicketStatus::InProgress);
        assert_eq!(open, held.map(|one| one.attempt).into_iter().collect::<Vec<_>>(), "of {id}");
    }
}

/// Checks that a ticket does not depend on itself, following unfinished dependencies.
fn check_acyclic(ticket: &Ticket, by_id: &BTreeMap<TicketId, &Ticket>) {
    if ticket.status == TicketStatus::Completed {
        return;
    }
    let (mut seen, mut next) = (BTreeSet::new(), ticket.blocked_by.clone());
    while let Some(one) = next.pop() {
        assert_ne!(one.id, ticket.id, "it waits for itself");
        if seen.insert(one.id) {
            next.extend(&by_id[&one.id].blocked_by);
        }
    }
}

fn comparable(mut ticket: Value) -> Value {
    for field in NOT_IN_EVENTS {
        ticket.as_object_mut().unwrap().remove(field);
    }
    ticket
}

/// Rebuilds the tickets from events. Checks that the old values in each event are correct, that versions and attempts
/// increase by one, and that only `metadata` and `labels` of completed tickets change.
fn replay(events: &[Event]) -> BTreeMap<TicketId, Value> {
    let mut tickets = BTreeMap::new();
    for event in events {
        let id = event.ticket.unwrap();
        match event.kind {
            EventKind::TicketCreated => {
                assert!(tickets.insert(id, event.body["ticket"].clone()).is_none(), "{id} was made twice");
            }
            EventKind::TicketDeleted => drop(tickets.remove(&id).unwrap()),
            _ => apply_event(tickets.get_mut(&id).unwrap(), event),
        }
    }
    tickets
}

fn apply_event(ticket: &mut Value, event: &Event) {
    let completed = ticket["status"] == "completed";
    for (field, change) in event.body["changes"].as_object().unwrap() {
        assert_eq!(ticket[field], change[0], "{field} before {event:?}");
        assert!(!completed || ["metadata", "labels", "version"].contains(&field.as_str()), "{event:?}");
        if ["version", "attempt"].contains(&field.as_str()) {
            assert_eq!(change[0].as_u64().unwrap() + 1, change[1].as_u64().unwrap(), "{field}: {event:?}");
        }
        if field == "version" {
            ticket["updated_at"] = json!(format!("{:.3}", event.at));
        }
        ticket[field] = change[1].clone();
    }
}

impl Comparison {
    /// Compares all tickets of the store with the model.
    pub(super) async fn check(&self) {
        let (store, account, now) = (&*self.store, self.account, self.model.now);
        let expected: Vec<Ticket> = self.model.tickets.keys().map(|id| self.model.record(*id)).collect();
        assert_eq!(list(store, account, now, None, TicketSort::Created).await, expected);
        let ready = list(store, account, now, Some(true), TicketSort::Priority).await;
        let ready: Vec<TicketId> = ready.iter().map(|ticket| ticket.id).collect();
        assert_eq!(ready, self.model.claimable(&[], &[]));
        self.check_labels().await;
        self.check_metrics().await;
        for (id, kinds) in &self.model.events {
            let query = ReadTicketHistory { account, id: *id, limit: 1_000, after: None };
            let history = store.ticket_history(query).await.unwrap();
            let found: Vec<_> = history.events.iter().map(|event| event.kind.as_str()).collect();
            assert_eq!(found, kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>(), "of {id}");
            assert_eq!(history.attempts, self.model.attempts[id], "of {id}");
        }
        let own = |id: &TicketId| self.model.tickets.contains_key(id);
        let open = store.open_attempts().await.unwrap().into_iter().filter(|one| own(&one.ticket));
        let held: BTreeMap<_, _> =
            open.map(|one| (one.ticket, (one.attempt, one.beats, one.lease))).collect();
        assert_eq!(held, self.model.held());
        let waiting = store.waiting_tickets().await.unwrap().into_iter().filter(|one| own(&one.ticket));
        let waiting: BTreeMap<_, _> = waiting.map(|one| (one.ticket, one.not_before)).collect();
        assert_eq!(waiting, self.model.waiting());
        invariants(store, account, now).await;
    }

    /// Compares lists by one and two labels, with and without an assignee, with the model, for each order.
    async fn check_labels(&self) {
        let (store, account, now) = (&*self.store, self.account, self.model.now);
        for labels in [vec![0], vec![1], vec![0, 2], vec![2, 0, 1]] {
            let labels: Vec<_> = labels.into_iter().map(label).collect();
            for assignee in [None, Some("agent-0".to_owned())] {
                let filter = TicketFilter {
                    labels: labels.clone(),
                    assignee: assignee.clone(),
                    ..TicketFilter::default()
                };
                let records = self.model.tickets.keys().map(|id| self.model.record(*id));
                let mut expected: Vec<Ticket> = records
                    .filter(|one| labels.iter().all(|label| one.labels.contains(label)))
                    .filter(|one| assignee.is_none() || one.assignee == assignee)
                    .collect();
                let created = filtered(store, account, now, filter.clone(), TicketSort::Created).await;
                assert_eq!(created, expected, "{filter:?}");
                expected.sort_by_key(|one| std::cmp::Reverse((one.updated_at, one.id)));
                assert_eq!(filtered(store, account, now, filter, TicketSort::Updated).await, expected);
            }
            let claimable =
                TicketFilter { labels: labels.clone(), ready: Some(true), ..TicketFilter::default() };
            let found = filtered(store, account, now, claimable, TicketSort::Priority).await;
            let found: Vec<TicketId> = found.iter().map(|one| one.id).collect();
            assert_eq!(found, self.model.claimable(&[], &labels));
        }
    }

    /// Compares the metrics with the model.
    async fn check_metrics(&self) {
        let figures = self.store.ticket_metrics(Some(self.account)).await.unwrap();
        let [figures] = figures.as_slice() else { panic!("{figures:?}") };
        let mut expected = TicketCounts::default();
        for (id, card) in &self.model.tickets {
            *match card.record.status {
                TicketStatus::Pending if self.model.is_announced(*id) => &mut expected.ready,
                TicketStatus::Pending => &mut expected.waiting,
                TicketStatus::InProgress => &mut expected.in_progress,
                TicketStatus::Completed => &mut expected.completed,
                TicketStatus::Failed => &mut expected.failed,
            } += 1;
        }
        assert_eq!(figures.counts, expected);
        assert_eq!(figures.oldest_ready.is_some(), expected.ready > 0);
        assert!(figures.oldest_ready.is_none_or(|at| at <= self.model.now), "{figures:?}");
        let ends =
            |outcome| figures.outcomes.iter().find(|(one, _)| *one == outcome).map_or(0, |(_, count)| *count);
        // A lapsed attempt that was finished late has a new outcome and is counted under both.
        for outcome in [AttemptOutcome::Released, AttemptOutcome::Completed, AttemptOutcome::Failed] {
            let attempts = self.model.attempts.values().flatten();
            let known = attempts.filter(|attempt| attempt.outcome == Some(outcome)).count();
            assert_eq!(ends(outcome), u64::try_from(known).unwrap(), "{outcome}");
        }
        let kinds = self.model.events.values().flatten();
        let lapsed = kinds.filter(|kind| **kind == EventKind::TicketLeaseExpired).count();
        let counted = ends(AttemptOutcome::LeaseExpired) + ends(AttemptOutcome::MaxRuntime);
        assert_eq!(counted, u64::try_from(lapsed).unwrap());
    }
}
