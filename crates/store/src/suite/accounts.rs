//! Tests of accounts.

use std::sync::Arc;

use skep_api::{
    AccountId, ErrorCode, accounts::GitRelay, egress::EgressPolicy, keys::Limits, swarm::EndReason,
};

use super::{
    account_named, boot, booted, counts, default_account, deletion, end, hash, moment, new_account, new_key,
};
use crate::{
    AccountRoot, ChangeAccount, CreateAccount, EnsureDefaultAccount, ListAccounts, SetAccountRoots, Store,
};

pub async fn the_default_account_is_made_once(store: Arc<dyn Store>) {
    let first = default_account(&*store).await;
    assert_eq!((first.name.as_str(), first.created_at), ("default", moment(0)));
    assert_eq!(first.roots, ["/srv/work"]);
    assert!(first.allowed_ips.is_empty());
    assert_eq!(first.limits, Limits::NONE);

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

pub async fn roots_of_two_accounts_lie_apart(store: Arc<dyn Store>) {
    let default = default_account(&*store).await;
    let acme = account_named(&*store, "acme").await;
    let with = |name: &str, root: &str| CreateAccount { roots: vec![root.to_owned()], ..new_account(name) };
    for root in ["/srv/acme", "/srv/acme/sub", "/srv", "/", "/srv/work"] {
        let refused = store.create_account(with("other", root)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidValue, "{root}: {refused}");
        let change = ChangeAccount { roots: Some(vec![root.to_owned()]), ..unchanged(acme.id) };
        let own = root.starts_with("/srv/acme");
        assert_eq!(store.change_account(change).await.is_ok(), own, "{root}");
        let set = SetAccountRoots { account: default.id, roots: vec![root.to_owned()] };
        assert_eq!(store.set_account_roots(set).await.is_ok(), root == "/srv/work", "{root}");
    }
    // Refused commands changed nothing.
    assert_eq!(store.account_by_name("other").await.unwrap_err().code(), ErrorCode::UnknownAccount);
    assert_eq!(store.account(default.id).await.unwrap(), default);
    let others = store.roots_of_other_accounts("default").await.unwrap();
    let acme_root = AccountRoot { account: "acme".to_owned(), path: "/srv/acme/sub".into() };
    assert_eq!(others, [acme_root]);
    // The root of a deleted account is available again.
    store.delete_account(deletion(acme.id, 3)).await.unwrap();
    assert!(store.roots_of_other_accounts("default").await.unwrap().is_empty());
    store.create_account(with("other", "/srv/acme")).await.unwrap();
}

pub async fn unknown_accounts_are_refused(store: Arc<dyn Store>) {
    let nobody = AccountId::generate();
    let roots = SetAccountRoots { account: nobody, roots: vec![] };
    for error in [
        store.account(nobody).await.unwrap_err(),
        store.account_by_name("default").await.unwrap_err(),
        store.set_account_roots(roots).await.unwrap_err(),
        store.change_account(unchanged(nobody)).await.unwrap_err(),
        store.delete_account(deletion(nobody, 3)).await.unwrap_err(),
        store.create_key(super::new_key(nobody, "ci", 1)).await.unwrap_err(),
        store.ensure_admin_key(super::admin_key(1)).await.unwrap_err(),
        store.record_boots(super::boot(vec![super::booted(nobody, 7)])).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::UnknownAccount, "{error}");
    }
    assert!(super::all_events(&*store).await.is_empty());
}

fn unchanged(account: AccountId) -> ChangeAccount {
    ChangeAccount {
        account,
        roots: None,
        allowed_ips: None,
        max_vms: None,
        max_memory_mb: None,
        max_paused_vms: None,
        max_disk_mb: None,
        egress: None,
        git_relay: None,
    }
}

pub async fn an_account_is_kept_as_it_was_made(store: Arc<dyn Store>) {
    default_account(&*store).await;
    let mut command = new_account("acme");
    command.allowed_ips = vec!["192.0.2.0/24".to_owned()];
    command.limits = Limits {
        max_vms: Some(0),
        max_memory_mb: Some(1 << 40),
        max_paused_vms: Some(0),
        max_disk_mb: Some(1 << 40),
    };
    command.egress = EgressPolicy::listing(&["api.example.com"]).unwrap();
    command.git_relay = GitRelay::Any;
    let made = store.create_account(command.clone()).await.unwrap();
    assert_eq!(
        (&made.name, &made.roots, &made.allowed_ips),
        (&command.name, &command.roots, &command.allowed_ips)
    );
    assert_eq!((made.limits, &made.egress, made.created_at), (command.limits, &command.egress, command.at));
    assert_eq!(made.git_relay, GitRelay::Any);
    assert_eq!(store.account(made.id).await.unwrap(), made);
    assert_eq!(store.account_by_name("acme").await.unwrap(), made);
    for name in ["acme", "default"] {
        let refused = store.create_account(new_account(name)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NameTaken);
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

pub async fn what_may_change_of_an_account_changes(store: Arc<dyn Store>) {
    let other = default_account(&*store).await;
    let made = account_named(&*store, "acme").await;
    assert_eq!(store.change_account(unchanged(made.id)).await.unwrap(), made);
    let change = ChangeAccount {
        roots: Some(vec!["/b".to_owned()]),
        max_vms: Some(Some(3)),
        max_memory_mb: Some(Some(512)),
        max_paused_vms: Some(Some(5)),
        max_disk_mb: Some(Some(2_048)),
        ..unchanged(made.id)
    };
    let changed = store.change_account(change).await.unwrap();
    assert_eq!((changed.roots.as_slice(), &changed.allowed_ips), (&["/b".to_owned()][..], &made.allowed_ips));
    let limits = Limits {
        max_vms: Some(3),
        max_memory_mb: Some(512),
        max_paused_vms: Some(5),
        max_disk_mb: Some(2_048),
    };
    assert_eq!(changed.limits, limits);
    let change = ChangeAccount {
        allowed_ips: Some(vec![]),
        max_vms: Some(None),
        max_disk_mb: Some(None),
        egress: Some(EgressPolicy::All),
        git_relay: Some(GitRelay::Any),
        ..unchanged(made.id)
    };
    let changed = store.change_account(change).await.unwrap();
    assert_eq!(changed.limits, Limits { max_vms: None, max_disk_mb: None, ..limits });
    assert_eq!((made.git_relay, changed.git_relay), (GitRelay::Known, GitRelay::Any));
    assert_eq!(changed.egress, EgressPolicy::All);
    assert_eq!(store.account(made.id).await.unwrap(), changed);
    assert_eq!(store.account(other.id).await.unwrap(), other, "no other account changes");
}

pub async fn accounts_are_listed_once_newest_first(store: Arc<dyn Store>) {
    let mut made = vec![default_account(&*store).await];
    for number in 0..4 {
        made.push(account_named(&*store, &format!("acme-{number}")).await);
    }
    let gone = made.remove(2);
    store.delete_account(deletion(gone.id, 3)).await.unwrap();
    made.sort_by_key(|account| std::cmp::Reverse(account.id));
    for limit in [1, 2, 4, 100] {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = store.list_accounts(ListAccounts { limit, before }).await.unwrap();
            assert!(page.accounts.len() <= limit as usize);
            seen.extend(page.accounts);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, made, "in pages of {limit}");
    }
}

pub async fn an_account_that_is_deleted_ends_with_its_keys(store: Arc<dyn Store>) {
    let other = default_account(&*store).await.id;
    let account = account_named(&*store, "acme").await;
    let key = store.create_key(new_key(account.id, "one", 1)).await.unwrap().key;
    store.create_key(new_key(account.id, "two", 2)).await.unwrap();
    store.revoke_key(super::revocation(account.id, key.id, 2)).await.unwrap();
    let kept = store.create_key(new_key(other, "one", 3)).await.unwrap();
    let deleted = store.delete_account(deletion(account.id, 3)).await.unwrap();
    assert_eq!((&deleted.account, deleted.keys_revoked), (&account, 1));
    for (number, at) in [(1, 2), (2, 3)] {
        let presented = store.key_by_hash(hash(number)).await.unwrap().unwrap();
        assert_eq!(presented.record.key.revoked_at, Some(moment(at)), "distinguished from an unknown one");
    }
    assert_eq!(store.key_by_hash(hash(3)).await.unwrap().unwrap().record, kept);
    for error in [
        store.account(account.id).await.unwrap_err(),
        store.account_by_name("acme").await.unwrap_err(),
        store.change_account(unchanged(account.id)).await.unwrap_err(),
        store.delete_account(deletion(account.id, 4)).await.unwrap_err(),
        store.create_key(new_key(account.id, "three", 4)).await.unwrap_err(),
        store.record_boots(boot(vec![booted(account.id, 3)])).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::UnknownAccount, "{error}");
    }
    assert_eq!(counts(&*store).await["key.revoked"], 2);
    let next = account_named(&*store, "acme").await;
    assert_ne!(next.id, account.id, "the name is free, and whoever gets it is another one");
    let presented = store.key_by_hash(hash(2)).await.unwrap().unwrap();
    assert_eq!(presented.account.id, account.id);
}

pub async fn an_account_with_vms_and_the_default_one_are_not_deleted(store: Arc<dyn Store>) {
    let default = default_account(&*store).await.id;
    let account = account_named(&*store, "acme").await;
    let vm = booted(account.id, 3);
    store.record_boots(boot(vec![vm.clone(), booted(default, 4)])).await.unwrap();
    store.create_key(new_key(account.id, "one", 1)).await.unwrap();
    let refused = store.delete_account(deletion(account.id, 3)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AccountInUse);
    assert!(refused.to_string().contains("`acme` has 1 running VMs"), "{refused}");
    let presented = store.key_by_hash(hash(1)).await.unwrap().unwrap();
    assert_eq!(presented.record.key.revoked_at, None, "a refusal leaves nothing");
    store.record_end(end(vm.id, EndReason::Deleted, 5)).await.unwrap();
    store.delete_account(deletion(account.id, 6)).await.unwrap();
    let refused = store.delete_account(deletion(default, 7)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AccountProtected);
}
