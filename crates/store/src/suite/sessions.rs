//! Tests of sessions.

use std::sync::Arc;

use skep_accounts::{SessionHash, SessionToken};
use skep_api::{ErrorCode, KeyId};

use super::{default_account, moment, new_key, revocation};
use crate::{NewSession, Store};

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
