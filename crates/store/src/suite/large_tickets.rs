//! Tests that pages and claims of large tickets are limited by size, and that no ticket is lost between pages.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use skep_api::budget::json_len;
use skep_tickets::{Edits, NewTicket};

use super::{
    default_account, moment,
    tickets::{call, claims, create_ticket, creation, new_ticket},
};
use crate::{ChangeTicket, ListTickets, ReadTicketHistory, Store, TicketFilter, TicketSort};

const TICKETS: usize = 30;

/// 60 KiB of JSON that take 960 KiB in memory.
fn small_values() -> Option<serde_json::Map<String, Value>> {
    json!({"list": vec![0; 30 << 10]}).as_object().cloned()
}

pub async fn pages_of_large_tickets_end_by_what_they_cost(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let new = NewTicket { metadata: small_values(), ..new_ticket("a", vec![]) };
    store.create_tickets(creation(account, vec![new; TICKETS])).await.unwrap();
    let (mut seen, mut pages, mut after) = (BTreeSet::new(), 0, None);
    loop {
        let (filter, sort, at) = (TicketFilter::default(), TicketSort::Created, moment(100));
        let page =
            store.list_tickets(ListTickets { account, filter, sort, limit: 1_000, after, at }).await.unwrap();
        assert!(page.tickets.len() < 15, "{} tickets take too much memory", page.tickets.len());
        pages += 1;
        seen.extend(page.tickets.into_iter().map(|ticket| ticket.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen.len(), pages >= 3), (TICKETS, true));
    let mut claimed = BTreeSet::new();
    for _ in 0..TICKETS {
        let tickets = store.claim_tickets(claims(account, "a", 100)).await.unwrap().answer.tickets;
        assert!(tickets.len() < 15, "{} tickets take too much memory", tickets.len());
        if tickets.is_empty() {
            break;
        }
        claimed.extend(tickets.into_iter().map(|ticket| ticket.id));
    }
    assert_eq!(claimed, seen);
}

pub async fn pages_of_a_long_history_end_by_what_they_cost(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = create_ticket(&*store, account, vec![]).await;
    let changes = 60;
    for number in 0..changes {
        let metadata = json!({"number": number, "text": "x".repeat(60 << 10)}).as_object().cloned();
        let edits = Edits { metadata: Some(metadata), ..Edits::default() };
        let command =
            ChangeTicket { call: call(account, 20 + number), id, expected: None, edits, transition: None };
        store.change_ticket(command).await.unwrap();
    }
    let (mut events, mut after) = (Vec::new(), None);
    loop {
        let query = ReadTicketHistory { account, id, limit: 1_000, after };
        let page = store.ticket_history(query).await.unwrap();
        assert!(json_len(&page.events) < 3 << 20, "{} bytes", json_len(&page.events));
        events.extend(page.events.into_iter().map(|event| event.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // Two events, `created` and `ready`, precede the changes. No event is on two pages.
    assert_eq!(events.len(), usize::try_from(changes).unwrap() + 2);
    assert_eq!(events.iter().collect::<BTreeSet<_>>().len(), events.len());
}
