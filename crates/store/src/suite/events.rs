//! Events.

use std::sync::Arc;

use super::{all_events, boot, booted, default_account, new_key, revocation, secret};
use crate::Store;

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
