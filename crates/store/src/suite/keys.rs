//! Tests of keys.

use std::sync::Arc;

use serde_json::json;
use skep_api::{AccountId, ErrorCode, KeyId, Role, Scope, VmId, swarm::EndReason};

use super::{
    admin_key, boot, booted, counts, default_account, end, events_of, hash, moment, new_key, revocation,
};
use crate::{EventKind, KeyUse, ListKeys, Store};

fn all_of(account: AccountId, limit: u32, before: Option<KeyId>) -> ListKeys {
    ListKeys { account, scopes: Scope::ALL.to_vec(), limit, before }
}

pub async fn a_key_is_kept_as_it_was_made(store: Arc<dyn Store>) {
    let account = default_account(&*store).await;
    let mut command = new_key(account.id, "ci", 1);
    command.expires_at = Some(moment(1_000));
    let made = store.create_key(command.clone()).await.unwrap();
    let key = &made.key;
    assert_eq!((&key.name, &key.prefix, &key.scopes), (&command.name, &command.prefix, &command.scopes));
    assert_eq!((key.account, key.environment, key.role), (account.id, command.environment, command.role));
    assert_eq!((key.created_at, key.expires_at), (moment(1), Some(moment(1_000))));
    assert_eq!((key.last_used_at, key.revoked_at, key.rotated_at, key.vm), (None, None, None, None));

    assert_eq!(store.key(account.id, key.id).await.unwrap(), made);
    let presented = store.key_by_hash(hash(1)).await.unwrap().unwrap();
    assert_eq!((&presented.record, &presented.account), (&made, &account));
    assert_eq!(store.key_by_hash(hash(2)).await.unwrap(), None);

    let events = events_of(&*store, EventKind::KeyCreated).await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].account, events[0].at), (account.id, moment(1)));
    assert_eq!(events[0].request_id.as_deref(), Some("create-ci"));
    assert_eq!(events[0].body["key"], json!(key.id));
    assert_eq!(events[0].body["scopes"], json!(["files:read", "swarm:exec"]));
}

pub async fn a_name_belongs_to_one_valid_key(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let first = store.create_key(new_key(account, "ci", 1)).await.unwrap().key;
    let refused = store.create_key(new_key(account, "ci", 2)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NameTaken);
    assert!(refused.to_string().contains("`ci`"), "{refused}");
    assert_eq!(store.key_by_hash(hash(2)).await.unwrap(), None);
    assert_eq!(counts(&*store).await.get("key.created"), Some(&1));

    // Names are case-sensitive.
    store.create_key(new_key(account, "CI", 3)).await.unwrap();
    store.revoke_key(revocation(account, first.id, 5)).await.unwrap();
    store.create_key(new_key(account, "ci", 2)).await.unwrap();
}

pub async fn a_second_revocation_answers_the_record(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    let first = store.revoke_key(revocation(account, id, 5)).await.unwrap();
    assert_eq!(first.key.revoked_at, Some(moment(5)));
    let second = store.revoke_key(revocation(account, id, 6)).await.unwrap();
    assert_eq!(second, first);
    let presented = store.key_by_hash(hash(1)).await.unwrap().unwrap();
    assert_eq!(presented.record, first, "a revoked key is distinguished from an unknown one");

    let events = events_of(&*store, EventKind::KeyRevoked).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].request_id.as_deref(), Some("revoke-5"));
    assert_eq!(events[0].body["key"], json!(id));
}

pub async fn keys_of_another_account_are_unknown(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    let other = AccountId::generate();
    for error in [
        store.key(other, id).await.unwrap_err(),
        store.key(account, KeyId::generate()).await.unwrap_err(),
        store.revoke_key(revocation(other, id, 5)).await.unwrap_err(),
        store.revoke_key(revocation(account, KeyId::generate(), 5)).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::UnknownKey, "{error}");
    }
    assert_eq!(store.key(account, id).await.unwrap().key.revoked_at, None);
    let page = store.list_keys(all_of(other, 10, None)).await.unwrap();
    assert!(page.keys.is_empty());
}

pub async fn a_key_is_bound_only_to_a_vm_that_lives(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (alive, ended) = (booted(account, 7), booted(account, 8));
    store.record_boots(boot(vec![alive.clone(), ended.clone()])).await.unwrap();
    store.record_end(end(ended.id, EndReason::Deleted, 9)).await.unwrap();
    for (number, vm) in [(1, ended.id), (2, VmId::generate())] {
        let mut command = new_key(account, "vm", number);
        command.vm = Some(vm);
        assert_eq!(store.create_key(command).await.unwrap_err().code(), ErrorCode::UnknownVm);
    }
    let mut command = new_key(account, "vm", 3);
    command.vm = Some(alive.id);
    assert_eq!(store.create_key(command).await.unwrap().key.vm, Some(alive.id));
}

pub async fn a_vm_had_a_key_also_if_the_key_is_revoked(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (vm, other) = (booted(account, 7), booted(account, 8));
    store.record_boots(boot(vec![vm.clone(), other.clone()])).await.unwrap();
    let had_keys = async || (store.had_key(vm.id).await.unwrap(), store.had_key(other.id).await.unwrap());
    store.create_key(new_key(account, "unbound", 1)).await.unwrap();
    assert_eq!(had_keys().await, (false, false));
    let mut made = Vec::new();
    for number in [2, 3] {
        let mut command = new_key(account, &format!("vm {number}"), number);
        command.vm = Some(vm.id);
        made.push(store.create_key(command).await.unwrap().key.id);
        assert_eq!(had_keys().await, (true, false));
    }
    for key in made {
        store.revoke_key(revocation(account, key, 5)).await.unwrap();
    }
    assert_eq!(had_keys().await, (true, false));
}

pub async fn pages_hold_every_key_once_newest_first(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut made = Vec::new();
    for number in 0..7 {
        made.push(store.create_key(new_key(account, &format!("key {number}"), number)).await.unwrap().key.id);
    }
    store.revoke_key(revocation(account, made[3], 5)).await.unwrap();
    made.sort_unstable();
    made.reverse();
    for limit in [1, 3, 6, 7, 100] {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = store.list_keys(all_of(account, limit, before)).await.unwrap();
            assert!(page.keys.len() <= limit as usize);
            seen.extend(page.keys.iter().map(|record| record.key.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, made, "in pages of {limit}");
    }
}

pub async fn uses_are_noted_without_events(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let id = store.create_key(new_key(account, "ci", 1)).await.unwrap().key.id;
    let unknown = KeyUse { id: KeyId::generate(), at: moment(9) };
    let uses = vec![KeyUse { id, at: moment(20) }, unknown, KeyUse { id, at: moment(10) }];
    store.record_key_uses(uses).await.unwrap();
    assert_eq!(store.key(account, id).await.unwrap().key.last_used_at, Some(moment(20)));
    store.record_key_uses(vec![]).await.unwrap();
    assert_eq!(super::all_events(&*store).await.len(), 1);
}

pub async fn the_admin_key_is_made_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let first = store.ensure_admin_key(admin_key(1)).await.unwrap();
    assert_eq!((first.key.account, first.key.name.as_str()), (account, "admin"));
    assert_eq!((first.key.role, first.key.scopes.as_slice()), (Some(Role::Admin), Scope::ALL));
    assert_eq!(store.ensure_admin_key(admin_key(1)).await.unwrap(), first);
    assert_eq!(counts(&*store).await.get("key.created"), Some(&1));

    let revoked = store.revoke_key(revocation(account, first.key.id, 5)).await.unwrap();
    assert_eq!(store.ensure_admin_key(admin_key(1)).await.unwrap(), revoked, "revoked is revoked");
}

pub async fn a_new_admin_key_takes_the_name(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let first = store.ensure_admin_key(admin_key(1)).await.unwrap().key.id;
    let second = store.ensure_admin_key(admin_key(2)).await.unwrap().key;
    assert_ne!(first, second.id);
    let old = store.key(account, first).await.unwrap();
    assert!(old.key.rotated_at.is_some());
    assert_eq!(old.key.revoked_at, None, "it stays valid until somebody revokes it");
    let refused = store.create_key(new_key(account, "admin", 3)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NameTaken);
    let events = events_of(&*store, EventKind::KeyRotated).await;
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0].body["key"], &events[0].body["successor"]), (&json!(first), &json!(second.id)));
}
