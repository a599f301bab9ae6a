//! Tests of events.

use std::sync::Arc;

use skep_api::{AccountId, ErrorCode, TicketId, tickets::TicketStatus};

use super::{
    account_named, all_events, boot, booted, default_account, moment, new_key, revocation, secret,
    tickets::{change, claim, create_ticket},
};
use crate::{Event, EventKind, EventPage, EventScope, ReadEvents, RecordBoots, Store, TrimHistory};

pub async fn events_are_read_in_order_page_by_page(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    store.record_boots(boot((2..12).map(|pid| booted(account, pid)).collect())).await.unwrap();
    let all = all_events(&*store).await;
    assert_eq!(all.len(), 10);
    assert!(all[0].sequence > 0);
    assert!(all.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    assert!(!all[0].epoch.is_empty() && all.iter().all(|event| event.epoch == all[0].epoch));

    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = store.events_after(after, 3).await.unwrap();
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        after = last.sequence;
        seen.extend(page);
    }
    assert_eq!(seen, all);
    assert!(store.events_after(u64::MAX, 3).await.unwrap().is_empty());
}

pub async fn events_hold_no_secret(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    store.revoke_key(revocation(account, id, 5)).await.unwrap();
    let (secret, hash) = (secret(1), secret(1).hash().to_string());
    let events = all_events(&*store).await;
    assert_eq!(events.len(), 2);
    for event in events {
        let body = serde_json::Value::from(event.body).to_string();
        assert!(!body.contains(secret.expose()) && !body.contains(&hash), "{body}");
    }
}

fn query(of: EventScope, after: u64) -> ReadEvents {
    ReadEvents { scope: of, kinds: EventKind::ALL.to_vec(), after, limit: 1_000, bytes: usize::MAX }
}

fn sequences(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.sequence).collect()
}

async fn vms(store: &dyn Store, account: AccountId, pids: std::ops::Range<u32>) {
    store.record_boots(boot(pids.map(|pid| booted(account, pid)).collect())).await.unwrap();
}

pub async fn a_page_holds_what_was_asked_for_and_says_where_it_ended(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    vms(&*store, own, 1..3).await;
    let ticket = create_ticket(&*store, own, Vec::new()).await;
    vms(&*store, other, 3..6).await;
    let all = all_events(&*store).await;
    let newest = all.last().unwrap().sequence;
    let expected = |take: &dyn Fn(&&Event) -> bool| -> Vec<Event> {
        all.iter().filter(|event| take(event)).cloned().collect()
    };
    let read = async |query| -> EventPage { store.read_events(query).await.unwrap() };
    let mut found = read(query(EventScope::All, 0)).await;
    assert_eq!((&found.events, found.examined_to, found.more), (&all, newest, false));
    assert_eq!((found.span.oldest, found.span.newest, found.span.epoch_start), (all[0].sequence, newest, 0));
    assert_eq!(found.span.epoch, all[0].epoch);
    found = read(query(EventScope::Account(own), 0)).await;
    assert_eq!(found.events, expected(&|event| event.account == own));
    assert_eq!(found.examined_to, newest, "what lies between is another account's");
    found = read(query(EventScope::Ticket(own, ticket), 0)).await;
    assert_eq!(found.events, expected(&|event| event.ticket == Some(ticket)));
    assert!(found.events.len() > 1, "{found:?}");
    found = read(query(EventScope::Ticket(other, ticket), 0)).await;
    assert!(found.events.is_empty());
    let kinds = vec![EventKind::VmBooted];
    found = read(ReadEvents { kinds, ..query(EventScope::Account(own), all[0].sequence) }).await;
    assert_eq!(sequences(&found.events), [all[1].sequence]);
    found = read(query(EventScope::All, u64::MAX)).await;
    assert_eq!((found.events.len(), found.examined_to), (0, u64::MAX));
}

pub async fn a_page_ends_by_what_it_costs(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    vms(&*store, account, 1..11).await;
    let all = sequences(&all_events(&*store).await);
    let of = EventScope::Account(account);
    // By number of examined rows, including those of other kinds.
    let kinds = vec![EventKind::KeyCreated];
    let found = store.read_events(ReadEvents { kinds, limit: 4, ..query(of, 0) }).await.unwrap();
    assert_eq!((found.events.len(), found.examined_to, found.more), (0, all[3], true));
    // By bytes, with at least one event.
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = store.read_events(ReadEvents { bytes: 1, ..query(of, after) }).await.unwrap();
        assert!(page.events.len() <= 1, "{page:?}");
        seen.extend(sequences(&page.events));
        after = page.examined_to;
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, all);
}

pub async fn a_time_has_a_place_in_the_order_of_commits(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let place = async |second| store.event_position(account, moment(second)).await.unwrap();
    assert_eq!(place(0).await.sequence, 0, "also where there is no event");
    // Two events for each time, and one that was written late.
    for second in [10, 10, 20, 20, 30, 29, 30, 40] {
        let booted = boot(vec![booted(account, 2)]);
        store.record_boots(RecordBoots { at: moment(second), ..booted }).await.unwrap();
    }
    let all = all_events(&*store).await;
    let check = async |all: &[Event]| {
        for second in 0..50 {
            let place = place(second).await;
            let behind = all.iter().position(|event| event.sequence > place.sequence);
            let expected = all.iter().position(|event| event.at >= moment(second));
            assert_eq!((behind, &place.epoch), (expected, &all[0].epoch), "{second}");
        }
    };
    check(&all).await;
    let trim = TrimHistory { before: moment(20), bytes: 1 << 30, batch: 100 };
    store.trim_history(trim).await.unwrap();
    let kept = all_events(&*store).await;
    assert!(!kept.is_empty() && kept.len() < all.len(), "{kept:?}");
    check(&kept).await;
}

pub async fn what_is_kept_no_longer_is_known_to_be_missing(store: Arc<dyn Store>) {
    let nothing = store.event_span(EventScope::All).await.unwrap();
    assert_eq!((nothing.oldest, nothing.newest), (1, 0));
    let account = default_account(&*store).await.id;
    vms(&*store, account, 1..6).await;
    let all = sequences(&all_events(&*store).await);
    let trim = async |batch| {
        store.trim_history(TrimHistory { before: moment(1_000_000), bytes: 1 << 30, batch }).await.unwrap();
        store.event_span(EventScope::All).await.unwrap()
    };
    let some = trim(2).await;
    assert_eq!((some.oldest, some.newest), (all[2], all[4]));
    let none = trim(100).await;
    assert_eq!((none.oldest, none.newest), (all[4] + 1, all[4]), "also where nothing is left");
    let page = store.read_events(query(EventScope::Account(account), 0)).await.unwrap();
    assert_eq!((page.events.len(), page.examined_to, page.span), (0, all[4], none));
}

pub async fn a_record_contains_what_was_written_until_then(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let ticket = create_ticket(&*store, own, Vec::new()).await;
    let before = store.ticket_with_span(own, ticket, moment(5)).await.unwrap();
    assert_eq!(before.ticket.status, TicketStatus::Pending);
    store.change_ticket(change(own, ticket, claim("a", None))).await.unwrap();
    let after = store.ticket_with_span(own, ticket, moment(5)).await.unwrap();
    assert_eq!(after.ticket.status, TicketStatus::InProgress);
    let newest = all_events(&*store).await.last().unwrap().sequence;
    assert!(before.span.newest < after.span.newest && after.span.newest == newest);
    for (account, id) in [(other, ticket), (own, TicketId::generate())] {
        let refused = store.ticket_with_span(account, id, moment(5)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::UnknownTicket);
    }
}

pub async fn each_commit_wakes_its_listeners(store: Arc<dyn Store>) {
    let mut commits = store.commits();
    for pid in 1..4 {
        commits.borrow_and_update();
        let account = default_account(&*store).await.id;
        commits.borrow_and_update();
        vms(&*store, account, pid..pid + 1).await;
        assert!(commits.has_changed().unwrap(), "listeners are woken before the call returns");
    }
}
