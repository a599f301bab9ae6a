//! Tests of searches, summaries, graphs and counts of tickets.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use skep_api::{
    AccountId, ErrorCode, Patch, TicketId,
    tickets::{Ticket, TicketSummary, TicketTotals},
};
use skep_tickets::{Assignee, Command, Dependency, FinishRequest, NewTicket, Resolution};

use super::{
    account_named, default_account, moment,
    tickets::{change, claim, completion, create_ticket, creation, new_ticket},
};
use crate::{ListTickets, Store, TicketFilter, TicketSort};

const SORTS: [TicketSort; 3] = [TicketSort::Created, TicketSort::Priority, TicketSort::Updated];

fn query(account: AccountId, filter: TicketFilter, sort: TicketSort) -> ListTickets {
    ListTickets { account, filter, sort, limit: 1_000, after: None, at: moment(100) }
}

fn searching(text: &str) -> TicketFilter {
    TicketFilter { search: Some(text.to_owned()), ..TicketFilter::default() }
}

fn related_to(id: TicketId) -> TicketFilter {
    TicketFilter { related_to: Some(id), ..TicketFilter::default() }
}

/// Lists the ids of all tickets of a filter, in pages of two.
async fn ids(
    store: &dyn Store,
    account: AccountId,
    filter: &TicketFilter,
    sort: TicketSort,
) -> Vec<TicketId> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let query = ListTickets { limit: 2, after, ..query(account, filter.clone(), sort) };
        let page = store.list_tickets(query).await.unwrap();
        ids.extend(page.tickets.iter().map(|ticket| ticket.id));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

async fn create(store: &dyn Store, account: AccountId, tickets: Vec<NewTicket>) -> Vec<Ticket> {
    store.create_tickets(creation(account, tickets)).await.unwrap().answer.tickets
}

pub async fn titles_and_ids_are_searched_without_regard_to_case(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    create(&*store, other, vec![new_ticket("parser of others", vec![])]).await;
    let titles = ["Port the PARSER", "100 % sure", "it's \"quoted\"", "Ärger", "parser tests", "plain"];
    let mut tickets = Vec::new();
    for (number, title) in titles.into_iter().enumerate() {
        let labels = if number == 4 { vec!["plan/port".parse().unwrap()] } else { vec![] };
        tickets.push(NewTicket { labels, ..new_ticket(title, vec![]) });
    }
    let made = create(&*store, account, tickets).await;
    let id = made[5].id.to_string();
    for (text, expected) in [
        ("parser", vec![0, 4]),
        ("PARSER", vec![0, 4]),
        ("ärGER", vec![3]),
        ("%", vec![1]),
        ("_", vec![0, 1, 2, 3, 4, 5]),
        ("r_t", vec![]),
        ("it's \"q", vec![2]),
        ("' OR '1'='1", vec![]),
        (&id.to_uppercase(), vec![5]),
        ("tkt_", vec![0, 1, 2, 3, 4, 5]),
    ] {
        for sort in SORTS {
            let found: BTreeSet<TicketId> =
                ids(&*store, account, &searching(text), sort).await.into_iter().collect();
            let expected: BTreeSet<TicketId> = expected.iter().map(|at: &usize| made[*at].id).collect();
            assert_eq!(found, expected, "{text} {sort:?}");
        }
    }
    let labelled = TicketFilter { labels: vec!["plan/port".parse().unwrap()], ..searching("parser") };
    assert_eq!(ids(&*store, account, &labelled, TicketSort::Created).await, [made[4].id]);
    let none = TicketFilter { labels: vec!["plan/port".parse().unwrap()], ..searching("sure") };
    assert!(ids(&*store, account, &none, TicketSort::Created).await.is_empty());
}

pub async fn a_summary_has_what_the_record_has(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let first = create_ticket(&*store, account, vec![]).await;
    let full = NewTicket {
        description: Some("long".to_owned()),
        labels: vec!["a".parse().unwrap()],
        not_before: Some(moment(500)),
        ..new_ticket("b", vec![Dependency::Ticket(first)])
    };
    create(&*store, account, vec![full]).await;
    let held = create_ticket(&*store, account, vec![]).await;
    store.change_ticket(change(account, held, claim("a", None))).await.unwrap();
    let failed = create_ticket(&*store, account, vec![]).await;
    let result = Patch::Value([("why".to_owned(), "no".into())].into_iter().collect());
    let finish = FinishRequest {
        resolution: Resolution::Failed,
        result,
        attempt: None,
        assignee: Assignee::KeyName("key".to_owned()),
    };
    store.change_ticket(change(account, failed, Command::Finish(finish))).await.unwrap();
    for (sort, at) in SORTS.into_iter().flat_map(|sort| [(sort, moment(100)), (sort, moment(900))]) {
        let query = ListTickets { at, limit: 3, ..query(account, TicketFilter::default(), sort) };
        let records = store.list_tickets(query.clone()).await.unwrap();
        let summaries = store.list_ticket_summaries(query).await.unwrap();
        let expected: Vec<TicketSummary> = records.tickets.into_iter().map(Into::into).collect();
        assert_eq!((summaries.tickets, summaries.next), (expected, records.next));
    }
}

pub async fn related_tickets_are_connected_in_both_directions(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    let theirs = create_ticket(&*store, other, vec![]).await;
    let on = |id| vec![Dependency::Ticket(id)];
    // a ← b → c ← d, and e ← f apart from them.
    let a = create_ticket(&*store, account, vec![]).await;
    let c = create_ticket(&*store, account, vec![]).await;
    let b = create_ticket(&*store, account, vec![Dependency::Ticket(a), Dependency::Ticket(c)]).await;
    let d = create_ticket(&*store, account, on(c)).await;
    let e = create_ticket(&*store, account, vec![]).await;
    let f = create_ticket(&*store, account, on(e)).await;
    for id in [a, b, c, d] {
        assert_eq!(ids(&*store, account, &related_to(id), TicketSort::Created).await, [a, c, b, d], "{id}");
    }
    assert_eq!(ids(&*store, account, &related_to(f), TicketSort::Created).await, [e, f]);
    let page = store.list_tickets(query(account, related_to(f), TicketSort::Updated)).await.unwrap();
    assert_eq!(page.truncated, Some(false));
    let both = TicketFilter { depends_on: Some(c), ..related_to(a) };
    assert_eq!(ids(&*store, account, &both, TicketSort::Created).await, [b, d]);
    let ready = TicketFilter { ready: Some(true), ..related_to(d) };
    assert_eq!(ids(&*store, account, &ready, TicketSort::Created).await, [a, c]);
    let named = TicketFilter { search: Some(d.to_string()), ..related_to(a) };
    assert_eq!(ids(&*store, account, &named, TicketSort::Created).await, [d]);
    for unknown in [theirs, TicketId::generate()] {
        let refused = store.list_tickets(query(account, related_to(unknown), TicketSort::Created)).await;
        assert_eq!(refused.unwrap_err().code(), ErrorCode::UnknownTicket);
    }
    // The control: its own account sees it.
    assert_eq!(ids(&*store, other, &related_to(theirs), TicketSort::Created).await, [theirs]);
}

pub async fn a_large_graph_is_cut_to_the_nearest_tickets(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    // A chain of more tickets than the list may have.
    let mut chain = vec![create_ticket(&*store, account, vec![]).await];
    for _ in 0..2 {
        let first = Dependency::Ticket(*chain.last().unwrap());
        let need = |number: usize| number.checked_sub(1).map_or(first, Dependency::Sibling);
        let batch = (0..550).map(|number| new_ticket("a", vec![need(number)])).collect();
        chain.extend(create(&*store, account, batch).await.iter().map(|one| one.id));
    }
    let found = store.list_tickets(query(account, related_to(chain[0]), TicketSort::Created)).await.unwrap();
    assert_eq!(found.truncated, Some(true));
    let near: Vec<TicketId> = found.tickets.iter().map(|ticket| ticket.id).collect();
    assert_eq!(near, chain[..1_000], "the nearest ones");
    // One with more neighbours than the list may have.
    let hub = create_ticket(&*store, account, vec![]).await;
    for count in [999, 1] {
        let page = store.list_tickets(query(account, related_to(hub), TicketSort::Created)).await.unwrap();
        assert_eq!(page.truncated, Some(false));
        let many = (0..count).map(|_| new_ticket("b", vec![Dependency::Ticket(hub)])).collect();
        create(&*store, account, many).await;
    }
    let page = store.list_tickets(query(account, related_to(hub), TicketSort::Created)).await.unwrap();
    assert_eq!((page.tickets.len(), page.truncated), (1_000, Some(true)));
}

pub async fn tickets_are_counted_by_what_they_wait_for(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    create_ticket(&*store, other, vec![]).await;
    assert_eq!(store.ticket_totals(account).await.unwrap(), TicketTotals::default());
    let first = create_ticket(&*store, account, vec![]).await;
    let late = Some(Timestamp::from_second(4_000_000_000).unwrap());
    let delayed = NewTicket { not_before: late, ..new_ticket("later", vec![]) };
    let both = NewTicket { not_before: late, ..new_ticket("both", vec![Dependency::Ticket(first)]) };
    let blocked = new_ticket("blocked", vec![Dependency::Ticket(first)]);
    create(&*store, account, vec![delayed, both, blocked]).await;
    let expected = TicketTotals { pending: 4, ready: 1, blocked: 2, waiting: 1, ..TicketTotals::default() };
    assert_eq!(store.ticket_totals(account).await.unwrap(), expected);
    store.change_ticket(change(account, first, claim("a", None))).await.unwrap();
    let expected = TicketTotals { pending: 3, in_progress: 1, ready: 0, ..expected };
    assert_eq!(store.ticket_totals(account).await.unwrap(), expected);
    store.change_ticket(change(account, first, completion(None))).await.unwrap();
    let expected = TicketTotals {
        pending: 3,
        in_progress: 0,
        completed: 1,
        ready: 1,
        blocked: 0,
        waiting: 2,
        ..TicketTotals::default()
    };
    assert_eq!(store.ticket_totals(account).await.unwrap(), expected);
}
