//! Tests with concurrent callers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use skep_api::{ErrorCode, Scope, swarm::EndReason};
use tokio::task::JoinSet;

use super::{all_events, boot, booted, counts, default_account, end, new_key};
use crate::{ListKeys, Store};

const WRITERS: u8 = 32;

pub async fn writers_at_once_are_all_durable(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let vm = booted(account, u32::from(number) + 100);
            store.record_boots(boot(vec![vm.clone()])).await.unwrap();
            let key = store.create_key(new_key(account, &format!("key {number}"), number)).await.unwrap().key;
            store.record_end(end(vm.id, EndReason::Cleanup, 600)).await.unwrap();
            // A successful command is visible to the next query.
            assert_eq!(store.key(account, key.id).await.unwrap().key, key);
            key.id
        });
    }
    let made: BTreeSet<_> = writers.join_all().await.into_iter().collect();
    assert_eq!(made.len(), usize::from(WRITERS));
    let all = ListKeys { account, scopes: Scope::ALL.to_vec(), limit: 1_000, before: None };
    let page = store.list_keys(all).await.unwrap();
    assert_eq!(page.keys.iter().map(|record| record.key.id).collect::<BTreeSet<_>>(), made);
    assert!(store.live_vms().await.unwrap().is_empty());
    for (kind, count) in counts(&*store).await {
        assert_eq!(count, usize::from(WRITERS), "{kind}");
    }
    assert_eq!(all_events(&*store).await.len(), 3 * usize::from(WRITERS));
}

pub async fn one_of_many_gets_a_name(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.spawn(async move { store.create_key(new_key(account, "ci", number)).await });
    }
    let (made, refused): (Vec<_>, Vec<_>) = writers.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, usize::from(WRITERS) - 1));
    assert!(refused.into_iter().all(|r| r.unwrap_err().code() == ErrorCode::NameTaken));
    assert_eq!(all_events(&*store).await.len(), 1);
}

pub async fn a_refusal_harms_no_neighbour(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let twice = booted(account, 4);
    let (good, bad, named, taken, last) = tokio::join!(
        store.record_boots(boot(vec![booted(account, 3)])),
        store.record_boots(boot(vec![booted(account, 5), twice.clone(), twice])),
        store.create_key(new_key(account, "ci", 1)),
        store.create_key(new_key(account, "ci", 2)),
        store.record_boots(boot(vec![booted(account, 6)])),
    );
    assert!(good.is_ok() && bad.is_err() && last.is_ok());
    assert!(named.is_ok() != taken.is_ok());
    let pids: Vec<_> = store.live_vms().await.unwrap().into_iter().map(|record| record.vm.pid).collect();
    assert_eq!(pids, [3, 6]);
    let counts = counts(&*store).await;
    assert_eq!((counts["vm.booted"], counts["key.created"]), (2, 1));
}

pub async fn a_store_that_works_answers_the_ping(store: Arc<dyn Store>) {
    for _ in 0..3 {
        store.ping(Duration::from_secs(30)).await.unwrap();
    }
    assert!(all_events(&*store).await.is_empty());
}
