//! Ends a stream when its key becomes invalid or the server stops.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_accounts::check_validity;
use skep_api::{ErrorCode, Failure, KeyId, keys::Key};
use skep_store::KeyStore;
use tokio::{
    sync::{
        broadcast::{Receiver, error::RecvError},
        watch,
    },
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

/// How often a key is looked up in the store, because another process may have revoked it.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// Completes once the key is revoked or expired, or its account deleted. A failing store does not end the stream.
///
/// A separate task does the look-ups: the body of an answer is polled only while its caller reads, so a look-up in it
/// could hold a lock or a connection of the store for any time. Dropping the future aborts the task.
pub(crate) fn key_lost(store: Arc<dyn KeyStore>, key: Key) -> impl Future<Output = Failure> + Send + 'static {
    let watch = AbortOnDropHandle::new(tokio::spawn(watch_key(store, key, LOOKUP_INTERVAL)));
    async move { watch.await.unwrap_or_else(|error| Failure::new(ErrorCode::Internal, error.to_string())) }
}

/// Waits until the server is about to close the remaining streams.
pub(crate) async fn server_closing(mut closing: watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        // The sender is gone, so the signal can never come.
        std::future::pending().await
    }
}

async fn watch_key(store: Arc<dyn KeyStore>, key: Key, interval: Duration) -> Failure {
    // Subscribed before the first look-up, so that no revocation between the two is missed.
    let mut revocations = store.revocations();
    loop {
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
        tokio::select! {
            () = wait_for_revocation(&mut revocations, key.id) => {}
            () = sleep(time_to_expiry(&key).map_or(interval, |left| left.min(interval))) => {}
        }
    }
}

/// Completes when this key was or may have been revoked.
async fn wait_for_revocation(revocations: &mut Receiver<KeyId>, id: KeyId) {
    loop {
        match revocations.recv().await {
            Ok(revoked) if revoked == id => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Time until the key expires, plus a millisecond, so that the following look-up finds it expired.
fn time_to_expiry(key: &Key) -> Option<Duration> {
    let left = key.expires_at?.duration_since(Timestamp::now());
    Some(Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use skep_accounts::KeySecret;
    use skep_api::{AccountId, Environment, Role, Scope, keys::Limits};
    use skep_store::{
        AccountStore, CreateAccount, DeleteAccount, NewKey, RevokeAllKeys, RevokeKey, RotateKey,
        SqliteSettings, SqliteStore,
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
                limits: Limits { max_vms: None, max_memory_mb: None },
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
            let watch = tokio::spawn(watch_key(self.store.clone(), key.clone(), NEVER));
            // The store answers in order, so the watch's first look-up is done by then.
            for _ in 0..100 {
                self.store.key(key.account, key.id).await.unwrap();
            }
            assert!(!watch.is_finished());
            watch
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
        let all = RevokeAllKeys { account: place.account, except: None, at, request_id: None };
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
        let watch = tokio::spawn(watch_key(place.store.clone(), key.clone(), NEVER));
        ended(watch).await;
        assert!(key.expires_at.unwrap() <= Timestamp::now(), "not before");
    }

    #[tokio::test]
    async fn a_revocation_by_another_process_is_seen_at_the_next_look_up() {
        let place = Fixture::new().await;
        let key = place.key(1, None).await;
        let watch = tokio::spawn(watch_key(place.store.clone(), key.clone(), Duration::from_millis(20)));
        let path = place._folder.path().join("skep.db");
        let elsewhere = SqliteStore::open(SqliteSettings::at(path)).await.unwrap();
        let command =
            RevokeKey { account: place.account, id: key.id, at: Timestamp::now(), request_id: None };
        elsewhere.revoke_key(command).await.unwrap();
        ended(watch).await;
    }
}
