//! Ends a stream when its key or its session becomes invalid, or the server stops.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_accounts::{SessionHash, check_session, check_validity, idle_session_end};
use skep_api::{ErrorCode, Failure, keys::Key};
use skep_store::Store;
use tokio::{
    sync::{
        broadcast::{Receiver, error::RecvError},
        watch,
    },
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::auth::Identity;

/// How often a key and a session are looked up in the store, because another process may have ended them, and because
/// other requests of a session postpone its end.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// What a stream was opened with.
#[derive(Debug, Clone)]
struct Access {
    key: Key,
    session: Option<SessionHash>,
}

/// Completes once the caller's key is revoked or expired, its account deleted, or the session that it came by has ended.
/// A failing store does not end the stream.
///
/// A separate task does the look-ups: the body of an answer is polled only while its caller reads, so a look-up in it
/// could hold a lock or a connection of the store for any time. Dropping the future aborts the task.
pub(crate) fn access_lost(
    store: Arc<dyn Store>,
    caller: &Identity,
) -> impl Future<Output = Failure> + Send + 'static {
    let access = Access { key: caller.key.clone(), session: caller.session.map(|session| session.hash) };
    let watch = AbortOnDropHandle::new(tokio::spawn(watch_access(store, access, LOOKUP_INTERVAL)));
    async move { watch.await.unwrap_or_else(|error| Failure::new(ErrorCode::Internal, error.to_string())) }
}

/// Waits until the server is about to close the remaining streams.
pub(crate) async fn server_closing(mut closing: watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        // The sender is gone, so the signal can never come.
        std::future::pending().await
    }
}

async fn watch_access(store: Arc<dyn Store>, access: Access, interval: Duration) -> Failure {
    // Subscribed before the first look-up, so that no end between the two is missed.
    let (mut revocations, mut ended) = (store.revocations(), store.ended_sessions());
    let Access { key, session } = access;
    loop {
        let mut left = time_until(key.expires_at);
        match store.key(key.account, key.id).await {
            Ok(record) => {
                if let Err(refusal) = check_validity(&record.key, Timestamp::now()) {
                    return refusal.into();
                }
            }
            Err(error) if error.code() == ErrorCode::UnknownKey => {
                return skep_accounts::Error::TokenExpired.into();
            }
            Err(error) => tracing::debug!(%error, "a streaming caller's key was not looked up"),
        }
        if let Some(hash) = session {
            match store.session(hash).await {
                Ok(Some(found)) => {
                    let (last_used, end) = (found.last_used_at, found.expires_at);
                    if let Err(refusal) = check_session(last_used, end, Timestamp::now()) {
                        return refusal.into();
                    }
                    left = left.min(time_until(Some(idle_session_end(last_used, end))));
                }
                Ok(None) => return skep_accounts::Error::TokenExpired.into(),
                Err(error) => tracing::debug!(%error, "a streaming caller's session was not looked up"),
            }
        }
        tokio::select! {
            () = wait_for(&mut revocations, Some(key.id)) => {}
            () = wait_for(&mut ended, session) => {}
            () = sleep(left.min(interval)) => {}
        }
    }
}

/// Completes when this one was or may have been announced; never for `None`.
async fn wait_for<T: Clone + PartialEq>(announced: &mut Receiver<T>, wanted: Option<T>) {
    let Some(wanted) = wanted else { return std::future::pending().await };
    loop {
        match announced.recv().await {
            Ok(one) if one == wanted => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// Time until an end, plus a millisecond, so that the following look-up finds it passed.
fn time_until(end: Option<Timestamp>) -> Duration {
    let Some(end) = end else { return Duration::MAX };
    let left = end.duration_since(Timestamp::now());
    Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1)
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use skep_accounts::{KeySecret, SessionToken};
    use skep_api::{
        AccountId, Environment, Role, Scope, accounts::GitRelay, egress::EgressPolicy, keys::Limits,
    };
    use skep_store::{
        AccountStore, CreateAccount, DeleteAccount, KeyStore, NewKey, NewSession, RevokeAllKeys, RevokeKey,
        RotateKey, SessionStore, SessionUse, SqliteSettings, SqliteStore,
    };
    use tokio::{task::JoinHandle, time::timeout};

    use super::*;

    /// A look-up interval longer than the test, so that only a revocation event can end a watch.
    const NEVER: Duration = Duration::from_secs(3_600);
    /// A watch that has not ended by then fails the test.
    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    struct Fixture {
        store: Arc<SqliteStore>,
        account: AccountId,
        _folder: tempfile::TempDir,
    }

    impl Fixture {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(SqliteSettings::at(folder.path().join("skep.db"))).await.unwrap();
            let account = store.create_account(CreateAccount {
                name: "acme".to_owned(),
                roots: vec![],
                allowed_ips: vec![],
                limits: Limits::NONE,
                egress: EgressPolicy::None,
                git_relay: GitRelay::default(),
                at: Timestamp::now(),
            });
            let account = account.await.unwrap().id;
            Self { store: Arc::new(store), account, _folder: folder }
        }

        async fn key(&self, number: u8, expires_at: Option<Timestamp>) -> Key {
            let secret = KeySecret::from_random(Environment::Test, [number; 32]);
            let made = self.store.create_key(NewKey {
                account: self.account,
                name: format!("key {number}"),
                environment: Environment::Test,
                role: Some(Role::Agent),
                scopes: vec![Scope::SwarmExec],
                vm: None,
                hash: secret.hash(),
                prefix: secret.prefix().to_owned(),
                expires_at,
                at: Timestamp::now(),
                request_id: None,
            });
            made.await.unwrap().key
        }

        /// Starts a watch and waits for its first look-up.
        async fn watch(&self, key: &Key) -> JoinHandle<Failure> {
            self.watch_session(key, None).await
        }

        async fn watch_session(&self, key: &Key, session: Option<SessionHash>) -> JoinHandle<Failure> {
            let access = Access { key: key.clone(), session };
            let watch = tokio::spawn(watch_access(self.store.clone(), access, NEVER));
            // The store answers in order, so the watch's first look-up is done by then.
            for _ in 0..100 {
                self.store.key(key.account, key.id).await.unwrap();
            }
            assert!(!watch.is_finished());
            watch
        }

        /// Creates a session that was last used at this time and ends at the latest at that one.
        async fn session(&self, key: &Key, number: u8, at: Timestamp, expires_at: Timestamp) -> SessionHash {
            let hash = SessionToken::from_random([number; 32]).hash();
            self.store.create_session(NewSession { hash, key: key.id, at, expires_at }).await.unwrap();
            hash
        }
    }

    async fn ended(watch: JoinHandle<Failure>) {
        let failure = timeout(TEST_TIMEOUT, watch).await.expect("the watch was not notified").unwrap();
        assert_eq!((failure.code, failure.message.as_str()), (ErrorCode::TokenExpired, "Token expired"));
    }

    #[tokio::test]
    async fn a_revocation_ends_the_watch_of_its_key_alone() {
        let place = Fixture::new().await;
        let (key, other) = (place.key(1, None).await, place.key(2, None).await);
        let (watch, watch_of_other) = (place.watch(&key).await, place.watch(&other).await);
        let (at, request_id) = (Timestamp::now(), None);
        let command = RevokeKey { account: place.account, id: key.id, at, request_id };
        place.store.revoke_key(command).await.unwrap();
        ended(watch).await;
        assert!(!watch_of_other.is_finished());
        let all = RevokeAllKeys {
            account: place.account,
            scopes: Scope::ALL.to_vec(),
            except: None,
            at,
            request_id: None,
        };
        place.store.revoke_all_keys(all).await.unwrap();
        ended(watch_of_other).await;
    }

    #[tokio::test]
    async fn the_end_of_its_account_ends_a_watch_and_a_rotation_does_not() {
        let place = Fixture::new().await;
        let key = place.key(1, None).await;
        let watch = place.watch(&key).await;
        let secret = KeySecret::from_random(Environment::Test, [9; 32]);
        let at = Timestamp::now();
        let rotation = RotateKey {
            account: place.account,
            id: key.id,
            hash: secret.hash(),
            prefix: secret.prefix().to_owned(),
            expires_at: None,
            at,
            request_id: None,
        };
        place.store.rotate_key(rotation).await.unwrap();
        assert!(!watch.is_finished(), "both keys are valid");
        let deletion = DeleteAccount { account: place.account, at, request_id: None };
        place.store.delete_account(deletion).await.unwrap();
        ended(watch).await;
    }

    #[tokio::test]
    async fn a_key_that_expires_ends_its_watch() {
        let place = Fixture::new().await;
        let key = place.key(1, Some(Timestamp::now() + 300.milliseconds())).await;
        let watch = tokio::spawn(watch_access(
            place.store.clone(),
            Access { key: key.clone(), session: None },
            NEVER,
        ));
        ended(watch).await;
        assert!(key.expires_at.unwrap() <= Timestamp::now(), "not before");
    }

    #[tokio::test]
    async fn a_revocation_by_another_process_is_seen_at_the_next_look_up() {
        let place = Fixture::new().await;
        let key = place.key(1, None).await;
        let watch = tokio::spawn(watch_access(
            place.store.clone(),
            Access { key: key.clone(), session: None },
            Duration::from_millis(20),
        ));
        let path = place._folder.path().join("skep.db");
        let elsewhere = SqliteStore::open(SqliteSettings::at(path)).await.unwrap();
        let command =
            RevokeKey { account: place.account, id: key.id, at: Timestamp::now(), request_id: None };
        elsewhere.revoke_key(command).await.unwrap();
        ended(watch).await;
    }

    #[tokio::test]
    async fn the_end_of_a_session_ends_its_watches_alone() {
        let place = Fixture::new().await;
        let key = place.key(1, None).await;
        let (now, later) = (Timestamp::now(), Timestamp::now() + 12.hours());
        let session = place.session(&key, 1, now, later).await;
        let other = place.session(&key, 2, now, later).await;
        let watch = place.watch_session(&key, Some(session)).await;
        let watch_of_other = place.watch_session(&key, Some(other)).await;
        let watch_of_key = place.watch(&key).await;
        place.store.end_session(session).await.unwrap();
        ended(watch).await;
        assert!(!watch_of_other.is_finished() && !watch_of_key.is_finished());
        let (at, request_id) = (Timestamp::now(), None);
        let command = RevokeKey { account: place.account, id: key.id, at, request_id };
        place.store.revoke_key(command).await.unwrap();
        ended(watch_of_other).await;
        ended(watch_of_key).await;
    }

    #[tokio::test]
    async fn a_session_without_requests_ends_its_watch_after_an_hour() {
        let place = Fixture::new().await;
        let key = place.key(1, None).await;
        let last_used = Timestamp::now() - 60.minutes() + 300.milliseconds();
        let idle = place.session(&key, 1, last_used, Timestamp::now() + 1.hour()).await;
        let in_use = place.session(&key, 2, last_used, Timestamp::now() + 1.hour()).await;
        let at = Timestamp::now();
        place.store.record_session_uses(vec![SessionUse { hash: in_use, at }]).await.unwrap();
        let watch_in_use = place.watch_session(&key, Some(in_use)).await;
        let watch = tokio::spawn(watch_access(
            place.store.clone(),
            Access { key: key.clone(), session: Some(idle) },
            NEVER,
        ));
        ended(watch).await;
        assert!(last_used + 60.minutes() <= Timestamp::now(), "not before");
        assert!(!watch_in_use.is_finished(), "another request used it");
    }

    #[tokio::test]
    async fn a_session_ends_its_watch_at_its_end_however_often_it_is_used() {
        let place = Fixture::new().await;
        let key = place.key(1, None).await;
        let end = Timestamp::now() + 300.milliseconds();
        let session = place.session(&key, 1, Timestamp::now(), end).await;
        let access = Access { key: key.clone(), session: Some(session) };
        ended(tokio::spawn(watch_access(place.store.clone(), access, NEVER))).await;
        assert!(end <= Timestamp::now(), "not before");
    }
}
