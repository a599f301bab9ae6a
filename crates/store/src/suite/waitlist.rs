//! Tests of the waitlist.

use std::sync::Arc;

use skep_api::{
    ErrorCode, WaitlistId,
    budget::{MAX_ANSWER_BYTES, json_len},
    waitlist::WaitlistEntry,
};

use super::moment;
use crate::{JoinWaitlist, ListWaitlist, RemoveFromWaitlist, Store};

fn join(email: &str, step: i64) -> JoinWaitlist {
    JoinWaitlist {
        email: email.to_owned(),
        name: Some(format!("name {step}")),
        company: None,
        use_case: Some("bees\n\"and\" süß".to_owned()),
        at: moment(step),
    }
}

async fn listed(store: &dyn Store) -> Vec<WaitlistEntry> {
    let page = store.list_waitlist(ListWaitlist { limit: 1_000, before: None }).await.unwrap();
    assert_eq!(page.next, None);
    page.entries
}

async fn emails(store: &dyn Store) -> Vec<String> {
    listed(store).await.into_iter().map(|entry| entry.email).collect()
}

pub async fn who_joins_is_listed_newest_first(store: Arc<dyn Store>) {
    assert!(listed(&*store).await.is_empty());
    for (email, step) in [("a@example.com", 1), ("b@example.com", 2)] {
        store.join_waitlist(join(email, step)).await.unwrap();
    }
    let entries = listed(&*store).await;
    // Entries of the same millisecond may be in any order.
    assert!(entries[0].id > entries[1].id);
    let first = entries.iter().find(|entry| entry.email == "a@example.com").unwrap();
    assert_eq!((first.name.as_deref(), first.company.as_deref()), (Some("name 1"), None));
    assert_eq!(first.use_case.as_deref(), Some("bees\n\"and\" süß"));
    assert_eq!(first.joined_at, moment(1));
    assert!(super::all_events(&*store).await.is_empty(), "who asked is nobody's event");
}

pub async fn an_address_is_listed_once_with_its_first_request(store: Arc<dyn Store>) {
    store.join_waitlist(join("Ada@Example.com", 1)).await.unwrap();
    let first = listed(&*store).await;
    for (email, step) in [("ada@example.com", 2), ("ADA@EXAMPLE.COM", 3), ("Ada@Example.com", 4)] {
        store.join_waitlist(join(email, step)).await.unwrap();
        let now = listed(&*store).await;
        assert_eq!(now.len(), 1, "{email}");
        // Of two rows of the same millisecond either may be the first.
        assert!(now[0].joined_at <= moment(4) && now[0].email.eq_ignore_ascii_case(&first[0].email));
    }
}

pub async fn pages_of_the_waitlist_hold_everybody_once(store: Arc<dyn Store>) {
    for number in 0..7 {
        store.join_waitlist(join(&format!("{number}@example.com"), number)).await.unwrap();
        store.join_waitlist(join("often@example.com", number)).await.unwrap();
    }
    let whole = listed(&*store).await;
    assert_eq!(whole.len(), 8);
    for limit in [1, 3, 7, 8, 100] {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = store.list_waitlist(ListWaitlist { limit, before }).await.unwrap();
            assert!(page.entries.len() <= limit as usize);
            seen.extend(page.entries);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, whole, "in pages of {limit}");
    }
}

pub async fn who_is_removed_is_forgotten_whole(store: Arc<dyn Store>) {
    for (email, step) in
        [("a@example.com", 1), ("A@example.com", 2), ("b@example.com", 3), ("c@example.com", 4)]
    {
        store.join_waitlist(join(email, step)).await.unwrap();
    }
    let by_email = RemoveFromWaitlist::Email("a@EXAMPLE.com".to_owned());
    let removed = store.remove_from_waitlist(by_email.clone()).await.unwrap();
    assert!(removed.email.eq_ignore_ascii_case("a@example.com"));
    let mut left = emails(&*store).await;
    left.sort_unstable();
    assert_eq!(left, ["b@example.com", "c@example.com"], "no second row of the address comes up");

    let id = listed(&*store).await.into_iter().find(|entry| entry.email == "b@example.com").unwrap().id;
    assert_eq!(store.remove_from_waitlist(RemoveFromWaitlist::Id(id)).await.unwrap().id, id);
    assert_eq!(emails(&*store).await, ["c@example.com"]);
    for unknown in [by_email, RemoveFromWaitlist::Id(id), RemoveFromWaitlist::Id(WaitlistId::generate())] {
        let error = store.remove_from_waitlist(unknown).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::UnknownWaitlistEntry);
    }
}

pub async fn pages_of_long_waitlist_entries_end_by_their_bytes(store: Arc<dyn Store>) {
    let (entries, mut seen, mut before) = (20, 0, None);
    for step in 0..entries {
        let use_case = Some("x".repeat(1 << 20));
        store
            .join_waitlist(JoinWaitlist { use_case, ..join(&format!("{step}@example.com"), step) })
            .await
            .unwrap();
    }
    for _ in 0..entries {
        let page = store.list_waitlist(ListWaitlist { limit: 1_000, before }).await.unwrap();
        assert!(json_len(&page.entries) <= MAX_ANSWER_BYTES);
        seen += page.entries.len();
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(i64::try_from(seen).unwrap(), entries);
}
