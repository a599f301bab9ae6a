//! Tests of tickets: dependencies, attempts, times and signals.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{
    AccountId, ErrorCode, Patch, TicketId, VmId,
    swarm::EndReason,
    tickets::{CreateTicket, Object, Priority, Ticket, TicketStatus},
};
use skep_tickets::{
    Assignee, Claim, ClaimReady, Command, Dependency, Edits, FinishRequest, NewTicket, Resolution,
};
use tokio::sync::broadcast::Receiver;

use super::{account_named, all_events, boot, booted, counts, default_account, end, lost, moment};
use crate::{
    AttemptTimer, ChangeTicket, ClaimTickets, CreateTickets, DeleteTicket, Dependents, EndAttempt, EndVms,
    EventKind, IdempotentRequest, ListTickets, OpenAttempt, ReadTicketHistory, Store, TicketCall,
    TicketFilter, TicketSignal, TicketSort, WaitingTicket, WakeTicket,
};

/// A new ticket with default values.
pub fn new_ticket(title: &str, needs: Vec<Dependency>) -> NewTicket {
    let request = CreateTicket { title: title.to_owned(), ..CreateTicket::default() };
    NewTicket { dependencies: needs, ..skep_tickets::new_ticket(request).unwrap() }
}

pub fn call(account: AccountId, step: i64) -> TicketCall {
    TicketCall { account, key: None, vm: None, at: moment(step), request_id: Some(format!("call-{step}")) }
}

pub fn creation(account: AccountId, tickets: Vec<NewTicket>) -> CreateTickets {
    CreateTickets {
        call: call(account, 10),
        tickets: tickets.into_iter().map(|one| (None, one)).collect(),
        idempotency: None,
    }
}

pub async fn create_ticket(store: &dyn Store, account: AccountId, needs: Vec<Dependency>) -> TicketId {
    let made = store.create_tickets(creation(account, vec![new_ticket("a", needs)])).await.unwrap();
    made.answer.tickets[0].id
}

/// Command for a transition of a ticket.
pub fn change(account: AccountId, id: TicketId, transition: Command) -> ChangeTicket {
    let (expected, edits) = (None, Edits::default());
    ChangeTicket { call: call(account, 20), id, expected, edits, transition: Some(transition) }
}

pub fn claim(assignee: &str, vm: Option<VmId>) -> Command {
    Command::Claim(Claim { assignee: Assignee::Named(assignee.to_owned()), vm, attempt: None, lease: None })
}

pub fn completion(attempt: Option<u32>) -> Command {
    Command::Finish(FinishRequest {
        resolution: Resolution::Completed,
        result: Patch::Absent,
        attempt,
        assignee: Assignee::KeyName("key".to_owned()),
    })
}

/// Command to claim ready tickets.
pub fn claims(account: AccountId, assignee: &str, count: u32) -> ClaimTickets {
    let assignee = Assignee::Named(assignee.to_owned());
    let each = Claim { assignee, vm: None, attempt: None, lease: None };
    let claim = ClaimReady { each, count, priorities: vec![], labels: vec![] };
    ClaimTickets { call: call(account, 30), claim, idempotency: None }
}

async fn read(store: &dyn Store, account: AccountId, id: TicketId) -> Ticket {
    store.ticket(account, id, moment(1_000)).await.unwrap()
}

/// Returns all signals received so far.
fn drain(signals: &mut Receiver<TicketSignal>) -> Vec<TicketSignal> {
    std::iter::from_fn(|| signals.try_recv().ok()).collect()
}

pub async fn a_graph_is_kept_as_it_was_made(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let known = create_ticket(&*store, account, vec![]).await;
    let full = NewTicket {
        description: Some("süß".to_owned()),
        priority: Priority::Critical,
        metadata: Some(Object::from_iter([("a".to_owned(), serde_json::json!([1, null]))])),
        max_attempts: 2,
        max_runtime_ms: 60_000,
        not_before: Some(moment(5_000)),
        ..new_ticket("b", vec![Dependency::Sibling(1), Dependency::Ticket(known)])
    };
    let mut command = creation(account, vec![full.clone(), new_ticket("c", vec![])]);
    command.tickets[1].0 = Some("name".to_owned());
    let made = store.create_tickets(command).await.unwrap().answer;
    let [b, c] = made.tickets.as_slice() else { panic!("{made:?}") };
    assert_eq!(made.refs.iter().collect::<Vec<_>>(), [(&"name".to_owned(), &c.id)]);
    assert!(known < b.id && b.id < c.id, "ids are in the order of their making");
    assert_eq!(&read(&*store, account, b.id).await, b);
    assert_eq!(b.dependencies, [c.id, known]);
    assert_eq!((b.blocked_by.len(), b.ready, c.ready), (2, false, true));
    assert_eq!((b.description.clone(), b.metadata.clone()), (full.description, full.metadata));
    assert_eq!((b.priority, b.max_attempts, b.max_runtime_ms), (Priority::Critical, 2, 60_000));
    assert_eq!(b.not_before, Some(moment(5_000)));
    let counts = counts(&*store).await;
    assert_eq!((counts["ticket.created"], counts["ticket.ready"]), (3, 2));
}

pub async fn what_is_refused_leaves_nothing(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    let theirs = create_ticket(&*store, other, vec![]).await;
    let before = all_events(&*store).await;
    for id in [theirs, TicketId::generate()] {
        let half =
            creation(account, vec![new_ticket("a", vec![]), new_ticket("b", vec![Dependency::Ticket(id)])]);
        assert_eq!(store.create_tickets(half).await.unwrap_err().code(), ErrorCode::UnknownDependency);
        let change = change(account, id, claim("a", None));
        assert_eq!(store.change_ticket(change).await.unwrap_err().code(), ErrorCode::UnknownTicket);
        let unknown = store.ticket(account, id, moment(1)).await.unwrap_err();
        assert_eq!(unknown.code(), ErrorCode::UnknownTicket);
        let query = ReadTicketHistory { account, id, limit: 10, after: None };
        assert_eq!(store.ticket_history(query).await.unwrap_err().code(), ErrorCode::UnknownTicket);
    }
    assert!(store.claim_tickets(claims(account, "a", 100)).await.unwrap().answer.tickets.is_empty());
    assert_eq!(all_events(&*store).await, before);
    let query = ListTickets {
        account,
        filter: TicketFilter::default(),
        sort: TicketSort::Created,
        limit: 10,
        after: None,
        at: moment(1),
    };
    assert!(store.list_tickets(query).await.unwrap().tickets.is_empty());
}

pub async fn listeners_receive_what_timers_and_waiting_claims_need(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut signals = store.ticket_signals();
    let first = create_ticket(&*store, account, vec![]).await;
    let second = create_ticket(&*store, account, vec![Dependency::Ticket(first)]).await;
    assert_eq!(drain(&mut signals), [TicketSignal::Ready(account)]);
    store.change_ticket(change(account, first, claim("a", None))).await.unwrap();
    let held = OpenAttempt {
        ticket: first,
        attempt: 1,
        beats: 0,
        lease: Duration::from_secs(3_600),
        max_runtime: Duration::from_secs(86_400),
    };
    assert_eq!(drain(&mut signals), [TicketSignal::Held(held)]);
    assert_eq!(store.open_attempts().await.unwrap(), [held]);
    // A claim by the same assignee renews the lease.
    store.change_ticket(change(account, first, claim("a", None))).await.unwrap();
    assert_eq!(drain(&mut signals), [TicketSignal::Held(OpenAttempt { beats: 1, ..held })]);
    store.change_ticket(change(account, first, completion(Some(1)))).await.unwrap();
    assert_eq!(drain(&mut signals), [TicketSignal::NotHeld(first), TicketSignal::Ready(account)]);
    assert!(read(&*store, account, second).await.ready);
    assert!(store.change_ticket(change(account, first, claim("a", None))).await.is_err());
    assert!(drain(&mut signals).is_empty(), "a refusal sends no signal");
}

pub async fn leases_that_begin_anew_are_written_and_nothing_else(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (held, pending) =
        (create_ticket(&*store, account, vec![]).await, create_ticket(&*store, account, vec![]).await);
    store.change_ticket(change(account, held, claim("a", None))).await.unwrap();
    let before = (read(&*store, account, held).await, read(&*store, account, pending).await);
    let (open, events) = (store.open_attempts().await.unwrap(), all_events(&*store).await);
    store.restart_leases(moment(500_000)).await.unwrap();
    let after = (read(&*store, account, held).await, read(&*store, account, pending).await);
    assert_eq!(after.0.lease_expires_at, Some(moment(500_000) + open[0].lease));
    assert_ne!(after.0.lease_expires_at, before.0.lease_expires_at);
    assert_eq!(Ticket { lease_expires_at: before.0.lease_expires_at, ..after.0 }, before.0);
    assert_eq!(after.1, before.1);
    assert_eq!((store.open_attempts().await.unwrap(), all_events(&*store).await), (open, events));
}

pub async fn a_due_time_makes_a_ticket_ready_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut signals = store.ticket_signals();
    // Has a higher precision than stored times, and must match nevertheless.
    let not_before = moment(500) + Duration::from_nanos(999_999);
    let new = NewTicket { not_before: Some(not_before), ..new_ticket("a", vec![]) };
    let id = store.create_tickets(creation(account, vec![new])).await.unwrap().answer.tickets[0].id;
    assert_eq!(
        drain(&mut signals),
        [TicketSignal::Waiting(WaitingTicket { ticket: id, not_before, backoff: None })]
    );
    assert_eq!(store.waiting_tickets().await.unwrap().len(), 1);
    let wake = WakeTicket { ticket: id, not_before, at: moment(600) };
    assert!(
        !store.wake_ticket(WakeTicket { not_before: moment(400), ..wake }).await.unwrap(),
        "another time"
    );
    assert!(store.wake_ticket(wake).await.unwrap());
    assert!(!store.wake_ticket(wake).await.unwrap());
    assert_eq!(drain(&mut signals), [TicketSignal::Ready(account)]);
    assert_eq!(counts(&*store).await["ticket.ready"], 1);
    assert_eq!(read(&*store, account, id).await.version, 1);
    assert!(store.waiting_tickets().await.unwrap().is_empty());
}

pub async fn a_ticket_becomes_ready_if_its_due_time_is_removed_before_the_timer(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let new = NewTicket { not_before: Some(moment(500)), ..new_ticket("a", vec![]) };
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(
            store.create_tickets(creation(account, vec![new.clone()])).await.unwrap().answer.tickets[0].id,
        );
    }
    // `not_before` has passed, but its timer has not fired yet.
    let edits = [
        Edits { not_before: Some(None), ..Edits::default() },
        Edits { title: Some("b".to_owned()), ..Edits::default() },
        Edits::default(),
    ];
    for (id, edits) in ids.iter().zip(edits) {
        let (call, transition) =
            (call(account, 600), Some(claim("a", None)).filter(|_| edits.not_before.is_none()));
        store.change_ticket(ChangeTicket { call, id: *id, expected: None, edits, transition }).await.unwrap();
        let wake = WakeTicket { ticket: *id, not_before: moment(500), at: moment(600) };
        assert!(!store.wake_ticket(wake).await.unwrap(), "it was seen");
    }
    let kinds = async |id| {
        let query = ReadTicketHistory { account, id, limit: 100, after: None };
        let events = store.ticket_history(query).await.unwrap().events;
        events
            .into_iter()
            .map(|event| event.kind.trim_start_matches("ticket.").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(ids[0]).await, ["created", "updated", "ready"]);
    assert_eq!(kinds(ids[1]).await, ["created", "updated", "ready", "claimed"]);
    assert_eq!(kinds(ids[2]).await, ["created", "ready", "claimed"]);
}

pub async fn what_a_finished_ticket_once_waited_for_may_go(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (late, need) =
        (create_ticket(&*store, account, vec![]).await, create_ticket(&*store, account, vec![]).await);
    store.change_ticket(change(account, late, claim("a", None))).await.unwrap();
    let up = EndAttempt { ticket: late, attempt: 1, timer: AttemptTimer::Runtime, at: moment(60) };
    assert!(store.end_attempt(up).await.unwrap());
    // The ticket now depends on another one; its former holder can finish it nevertheless.
    let edits = Edits { dependencies: Some(vec![need]), ..Edits::default() };
    let command = ChangeTicket { call: call(account, 70), id: late, expected: None, edits, transition: None };
    store.change_ticket(command).await.unwrap();
    let finished = store.change_ticket(change(account, late, completion(Some(1)))).await.unwrap();
    assert_eq!((finished.status, finished.blocked_by.len()), (TicketStatus::Completed, 1));
    let delete = DeleteTicket {
        call: call(account, 80),
        id: need,
        expected: None,
        force: false,
        dependents: Dependents::Refuse,
    };
    store.delete_ticket(delete).await.unwrap();
    let after = read(&*store, account, late).await;
    assert_eq!(after, Ticket { blocked_by: vec![], ..finished });
}

pub async fn only_the_time_that_was_set_last_ends_an_attempt(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = create_ticket(&*store, account, vec![]).await;
    store.change_ticket(change(account, id, claim("a", None))).await.unwrap();
    store.change_ticket(change(account, id, claim("a", None))).await.unwrap();
    let up = |attempt, why| EndAttempt { ticket: id, attempt, timer: why, at: moment(100) };
    for (attempt, why) in
        [(1, AttemptTimer::Lease { beats: 0 }), (2, AttemptTimer::Runtime), (0, AttemptTimer::Runtime)]
    {
        assert!(!store.end_attempt(up(attempt, why)).await.unwrap());
    }
    assert!(store.end_attempt(up(1, AttemptTimer::Lease { beats: 1 })).await.unwrap());
    assert!(!store.end_attempt(up(1, AttemptTimer::Lease { beats: 1 })).await.unwrap());
    let unknown = EndAttempt { ticket: TicketId::generate(), ..up(1, AttemptTimer::Runtime) };
    assert!(!store.end_attempt(unknown).await.unwrap());
    assert_eq!(counts(&*store).await["ticket.lease_expired"], 1);
}

pub async fn tickets_end_with_their_vms(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vms = [booted(account, 3), booted(account, 4), booted(account, 5)];
    store.record_boots(boot(vms.to_vec())).await.unwrap();
    let mut tickets = Vec::new();
    for vm in &vms {
        let id = create_ticket(&*store, account, vec![]).await;
        store.change_ticket(change(account, id, claim("a", Some(vm.id)))).await.unwrap();
        tickets.push(id);
    }
    let mut signals = store.ticket_signals();
    store.record_end(end(vms[0].id, EndReason::Crashed, 600)).await.unwrap();
    store.record_end(end(vms[0].id, EndReason::Deleted, 600)).await.unwrap();
    let command = EndVms { vms: vec![lost(vms[1].id)], reason: EndReason::Lost, at: moment(700) };
    store.end_vms(command).await.unwrap();
    let expected =
        [tickets[0], tickets[1]].map(|id| [TicketSignal::NotHeld(id), TicketSignal::Ready(account)]);
    assert_eq!(drain(&mut signals), expected.concat());
    for (id, status) in
        tickets.into_iter().zip([TicketStatus::Pending, TicketStatus::Pending, TicketStatus::InProgress])
    {
        assert_eq!(read(&*store, account, id).await.status, status);
    }
    let counts = counts(&*store).await;
    assert_eq!((counts["ticket.lease_expired"], counts["vm.ended"]), (2, 2));
}

pub async fn a_thousand_wait_for_one_and_are_ready_once(store: Arc<dyn Store>) {
    const DEPENDENTS: usize = 1_000;
    let account = default_account(&*store).await.id;
    let first = create_ticket(&*store, account, vec![]).await;
    let many = (0..DEPENDENTS).map(|_| new_ticket("a", vec![Dependency::Ticket(first)])).collect();
    store.create_tickets(creation(account, many)).await.unwrap();
    store.change_ticket(change(account, first, completion(None))).await.unwrap();
    let counts = counts(&*store).await;
    assert_eq!((counts["ticket.created"], counts["ticket.ready"]), (DEPENDENTS + 1, DEPENDENTS + 1));
    let filter = TicketFilter { ready: Some(true), depends_on: Some(first), ..TicketFilter::default() };
    let sort = TicketSort::Created;
    let query = ListTickets { account, filter, sort, limit: 2_000, after: None, at: moment(1_000) };
    let ready = store.list_tickets(query).await.unwrap().tickets;
    assert_eq!(ready.len(), DEPENDENTS);
    assert!(ready.iter().all(|one| one.blocked_by.is_empty() && one.version == 1));
}

pub async fn a_deleted_ticket_leaves_its_history(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = create_ticket(&*store, account, vec![]).await;
    store.change_ticket(change(account, id, claim("a", None))).await.unwrap();
    let delete = DeleteTicket {
        call: call(account, 50),
        id,
        expected: None,
        force: false,
        dependents: Dependents::Refuse,
    };
    assert_eq!(store.delete_ticket(delete.clone()).await.unwrap_err().code(), ErrorCode::TicketState);
    let stale = DeleteTicket { expected: Some(vec![1]), force: true, ..delete.clone() };
    assert_eq!(store.delete_ticket(stale).await.unwrap_err().code(), ErrorCode::VersionStale);
    store.delete_ticket(DeleteTicket { force: true, ..delete }).await.unwrap();
    let query = ReadTicketHistory { account, id, limit: 10, after: None };
    let history = store.ticket_history(query).await.unwrap();
    assert_eq!(history.events.last().unwrap().kind, EventKind::TicketDeleted.as_str());
    assert!(history.attempts[0].ended_at.is_some());
    assert!(store.open_attempts().await.unwrap().is_empty());
}

pub async fn a_named_request_has_its_effect_once_for_a_day(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let named = |at: Timestamp, body: u8| {
        let once = IdempotentRequest { path: "/api/tickets", key: "k".to_owned(), body_hash: [body; 32] };
        let mut command = creation(account, vec![new_ticket("a", vec![])]);
        (command.call.at, command.idempotency) = (at, Some(once));
        command
    };
    let first = store.create_tickets(named(moment(0), 1)).await.unwrap();
    let again = store.create_tickets(named(moment(60_000), 1)).await.unwrap();
    assert_eq!((first.replayed, again.replayed), (false, true));
    assert_eq!(first.answer, again.answer);
    let other = store.create_tickets(named(moment(60_000), 2)).await.unwrap_err();
    assert_eq!(other.code(), ErrorCode::IdempotencyMismatch);
    const DAY: i64 = 24 * 3_600 * 1_000;
    let later = store.create_tickets(named(moment(DAY + 1), 2)).await.unwrap();
    assert!(!later.replayed && later.answer != first.answer);
    assert_eq!(counts(&*store).await["ticket.created"], 2);
}
