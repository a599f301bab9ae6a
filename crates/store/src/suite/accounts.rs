//! Accounts.

use std::sync::Arc;

use skep_api::{AccountId, ErrorCode};

use super::{default_account, moment};
use crate::{EnsureDefaultAccount, SetAccountRoots, Store};

pub async fn the_default_account_is_made_once(store: Arc<dyn Store>) {
    let first = default_account(&*store).await;
    assert_eq!((first.name.as_str(), first.created_at), ("default", moment(0)));
    assert_eq!(first.roots, ["/srv/work"]);
    assert!(first.allowed_ips.is_empty());
    assert_eq!((first.limits.max_vms, first.limits.max_memory_mb), (None, None));

    let later = EnsureDefaultAccount { roots: vec!["/other".to_owned()], at: moment(9) };
    assert_eq!(store.ensure_default_account(later).await.unwrap(), first);
    assert_eq!(store.account(first.id).await.unwrap(), first);
    assert_eq!(store.account_by_name("default").await.unwrap(), first);
}

pub async fn roots_are_replaced(store: Arc<dyn Store>) {
    let account = default_account(&*store).await;
    let roots = vec!["/a".to_owned(), "/b \"ü\"".to_owned()];
    let changed = store.set_account_roots(SetAccountRoots { account: account.id, roots: roots.clone() });
    assert_eq!(changed.await.unwrap().roots, roots);
    assert_eq!(store.account(account.id).await.unwrap().roots, roots);
}

pub async fn unknown_accounts_are_refused(store: Arc<dyn Store>) {
    let nobody = AccountId::generate();
    let roots = SetAccountRoots { account: nobody, roots: vec![] };
    for error in [
        store.account(nobody).await.unwrap_err(),
        store.account_by_name("default").await.unwrap_err(),
        store.set_account_roots(roots).await.unwrap_err(),
        store.create_key(super::new_key(nobody, "ci", 1)).await.unwrap_err(),
        store.ensure_admin_key(super::admin_key(1)).await.unwrap_err(),
        store.record_boots(super::boot(vec![super::booted(nobody, 7)])).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::UnknownAccount, "{error}");
    }
    assert!(super::all_events(&*store).await.is_empty());
}
