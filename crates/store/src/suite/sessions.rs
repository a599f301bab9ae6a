//! Tests of sessions.

use std::sync::Arc;

use futures_util::future::join_all;
use skep_accounts::{SessionHash, SessionToken};
use skep_api::{ErrorCode, KeyId};
use tokio::sync::broadcast::error::TryRecvError;

use super::{default_account, moment, new_key, revocation};
use crate::{NewSession, NewSessionLink, SessionUse, Store};

fn hash(number: u8) -> SessionHash {
    SessionToken::from_random([number; 32]).hash()
}

/// A session that starts at this step and lasts for 1,000 steps.
pub fn session(key: KeyId, number: u8, step: i64) -> NewSession {
    NewSession { hash: hash(number), key, at: moment(step), expires_at: moment(step + 1_000) }
}

pub async fn a_session_leads_to_its_key_until_it_is_ended(store: Arc<dyn Store>) {
    let account = default_account(&*store).await;
    let key = store.create_key(new_key(account.id, "ci", 1)).await.unwrap();
    assert_eq!(store.session(hash(1)).await.unwrap(), None);
    store.create_session(session(key.key.id, 1, 5)).await.unwrap();
    let found = store.session(hash(1)).await.unwrap().unwrap();
    assert_eq!((&found.key.record, &found.key.account), (&key, &account));
    assert_eq!(found.expires_at, moment(1_005));
    assert_eq!(store.session(hash(2)).await.unwrap(), None);

    assert!(!store.end_session(hash(2)).await.unwrap());
    assert!(store.end_session(hash(1)).await.unwrap());
    assert!(!store.end_session(hash(1)).await.unwrap());
    assert_eq!(store.session(hash(1)).await.unwrap(), None);
}

pub async fn a_session_shows_that_its_key_was_revoked(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    store.create_session(session(id, 1, 5)).await.unwrap();
    let revoked = store.revoke_key(revocation(account, id, 6)).await.unwrap();
    assert_eq!(store.session(hash(1)).await.unwrap().unwrap().key.record, revoked);
    let unknown = store.create_session(session(KeyId::generate(), 2, 5)).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownKey);
}

pub async fn a_key_has_a_hundred_sessions_and_the_newest_stay(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    let other = store.create_key(new_key(account, "other", 2)).await.unwrap().key.id;
    store.create_session(session(other, 255, 0)).await.unwrap();
    for number in 0..110 {
        store.create_session(session(id, number, i64::from(number))).await.unwrap();
    }
    for number in 0..110 {
        let found = store.session(hash(number)).await.unwrap().is_some();
        assert_eq!(found, number >= 10, "{number}");
    }
    assert!(store.session(hash(255)).await.unwrap().is_some(), "those of another key are not counted");
    // Creating a session deletes one batch of expired ones.
    for number in 110..125 {
        store.create_session(session(id, number, 10_000 + i64::from(number))).await.unwrap();
    }
    for number in 10..110 {
        assert_eq!(store.session(hash(number)).await.unwrap(), None, "{number}");
    }
}

pub async fn uses_of_a_session_are_noted_and_never_go_back(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    store.create_session(session(id, 1, 5)).await.unwrap();
    store.create_session(session(id, 2, 5)).await.unwrap();
    let last_use = async |number| store.session(hash(number)).await.unwrap().unwrap().last_used_at;
    assert_eq!(last_use(1).await, moment(5), "the creation counts");
    let uses = |steps: &[(u8, i64)]| -> Vec<SessionUse> {
        steps.iter().map(|(number, step)| SessionUse { hash: hash(*number), at: moment(*step) }).collect()
    };
    store.record_session_uses(uses(&[(1, 9), (3, 9)])).await.unwrap();
    assert_eq!((last_use(1).await, last_use(2).await), (moment(9), moment(5)));
    store.record_session_uses(uses(&[(1, 7), (2, 8)])).await.unwrap();
    assert_eq!((last_use(1).await, last_use(2).await), (moment(9), moment(8)));
    assert_eq!(store.session(hash(3)).await.unwrap(), None, "a use creates no session");
}

pub async fn the_end_of_a_session_is_announced_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    let mut ended = store.ended_sessions();
    store.create_session(session(id, 1, 5)).await.unwrap();
    store.create_session(session(id, 2, 5)).await.unwrap();
    store.end_session(hash(3)).await.unwrap();
    store.end_session(hash(2)).await.unwrap();
    store.end_session(hash(2)).await.unwrap();
    assert_eq!(ended.try_recv(), Ok(hash(2)));
    assert_eq!(ended.try_recv(), Err(TryRecvError::Empty));
}

fn link(key: KeyId, number: u8, step: i64) -> NewSessionLink {
    NewSessionLink { hash: hash(number), key, at: moment(step), expires_at: moment(step + 1_000) }
}

pub async fn a_link_is_taken_once_and_shows_its_key(store: Arc<dyn Store>) {
    let account = default_account(&*store).await;
    let key = store.create_key(new_key(account.id, "ci", 1)).await.unwrap();
    store.create_session_link(link(key.key.id, 1, 5)).await.unwrap();
    assert_eq!(store.session(hash(1)).await.unwrap(), None, "a link is not a session");
    store.create_session(session(key.key.id, 2, 5)).await.unwrap();
    assert_eq!(store.take_session_link(hash(2)).await.unwrap(), None, "a session is not a link");
    let found = store.take_session_link(hash(1)).await.unwrap().unwrap();
    assert_eq!((&found.key.record, &found.key.account), (&key, &account));
    assert_eq!(found.expires_at, moment(1_005));
    assert_eq!(store.take_session_link(hash(1)).await.unwrap(), None);

    store.create_session_link(link(key.key.id, 3, 6)).await.unwrap();
    let revoked = store.revoke_key(revocation(account.id, key.key.id, 7)).await.unwrap();
    assert_eq!(store.take_session_link(hash(3)).await.unwrap().unwrap().key.record, revoked);
    let unknown = store.create_session_link(link(KeyId::generate(), 4, 5)).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownKey);
}

pub async fn callers_at_once_take_a_link_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    store.create_session_link(link(id, 1, 5)).await.unwrap();
    let takes = join_all((0..20).map(|_| store.take_session_link(hash(1)))).await;
    assert_eq!(takes.into_iter().filter(|taken| taken.as_ref().unwrap().is_some()).count(), 1);
}

pub async fn a_key_has_a_hundred_links_and_the_newest_stay(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    for number in 0..110 {
        store.create_session_link(link(id, number, i64::from(number))).await.unwrap();
    }
    for number in 0..110 {
        let found = store.take_session_link(hash(number)).await.unwrap().is_some();
        assert_eq!(found, number >= 10, "{number}");
    }
}
