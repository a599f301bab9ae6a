//! Tests of the rotation and revocation of keys.

use std::sync::Arc;

use serde_json::json;
use skep_api::{AccountId, ErrorCode, KeyId, Scope, keys::RevokedKeys, swarm::EndReason};
use tokio::sync::broadcast::error::TryRecvError;

use super::{
    account_named, admin_key, boot, booted, counts, default_account, deletion, end, events_of, hash, lost,
    moment, new_key, revocation, secret,
};
use crate::{EndVms, EventKind, KeyPage, ListKeys, NewKey, RevokeAllKeys, RotateKey, Store};

fn rotation(account: AccountId, id: KeyId, number: u8) -> RotateKey {
    RotateKey {
        account,
        id,
        hash: hash(number),
        prefix: secret(number).prefix().to_owned(),
        expires_at: None,
        at: moment(7),
        request_id: Some("rotate".to_owned()),
    }
}

fn all_of(account: AccountId, except: Option<KeyId>, step: i64) -> RevokeAllKeys {
    let (scopes, request_id) = (Scope::ALL.to_vec(), Some("all".to_owned()));
    RevokeAllKeys { account, scopes, except, at: moment(step), request_id }
}

fn revoked(revoked: u32) -> RevokedKeys {
    RevokedKeys { revoked, kept: 0 }
}

pub async fn a_rotated_key_has_a_successor_like_it(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let vm = booted(account, 3);
    store.record_boots(boot(vec![vm.clone()])).await.unwrap();
    let mut command = new_key(account, "ci", 1);
    command.vm = Some(vm.id);
    let old = store.create_key(command).await.unwrap().key;
    let mut command = rotation(account, old.id, 2);
    command.expires_at = Some(moment(9_000));
    let new = store.rotate_key(command.clone()).await.unwrap().key;
    assert_ne!(new.id, old.id);
    assert_eq!((&new.name, new.environment, new.role), (&old.name, old.environment, old.role));
    assert_eq!((&new.scopes, new.vm, new.account), (&old.scopes, old.vm, old.account));
    assert_eq!((new.prefix, new.expires_at), (command.prefix, command.expires_at));
    assert_eq!((new.created_at, new.revoked_at, new.rotated_at), (moment(7), None, None));
    let before = store.key(account, old.id).await.unwrap().key;
    assert_eq!((before.rotated_at, before.revoked_at), (Some(moment(7)), None), "both are valid");
    assert_eq!(counts(&*store).await["key.created"], 2);
    let events = events_of(&*store, EventKind::KeyRotated).await;
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0].body["key"], &events[0].body["successor"]), (&json!(old.id), &json!(new.id)));
    assert_eq!(events[0].request_id.as_deref(), Some("rotate"));
    let taken = store.create_key(new_key(account, "ci", 3)).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::NameTaken);
}

pub async fn only_a_key_that_has_its_name_is_rotated(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    let old = store.create_key(new_key(account, "ci", 1)).await.unwrap().key;
    let new = store.rotate_key(rotation(account, old.id, 2)).await.unwrap().key;
    let again = store.rotate_key(rotation(account, old.id, 3)).await.unwrap_err();
    assert_eq!(again.code(), ErrorCode::KeyNotValid);
    assert!(again.to_string().contains("rotated already"), "{again}");
    store.revoke_key(revocation(account, new.id, 8)).await.unwrap();
    let ended = store.rotate_key(rotation(account, new.id, 3)).await.unwrap_err();
    assert_eq!(ended.code(), ErrorCode::KeyNotValid);
    assert!(ended.to_string().contains("is revoked"), "{ended}");
    for unknown in [rotation(other, old.id, 3), rotation(account, KeyId::generate(), 3)] {
        assert_eq!(store.rotate_key(unknown).await.unwrap_err().code(), ErrorCode::UnknownKey);
    }
    assert_eq!(store.key_by_hash(hash(3)).await.unwrap(), None);
    assert_eq!(counts(&*store).await["key.created"], 2);
}

pub async fn all_keys_of_an_account_are_revoked_but_one(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    let mut keys = Vec::new();
    for number in 1..5 {
        keys.push(store.create_key(new_key(account, &format!("key {number}"), number)).await.unwrap().key.id);
    }
    let elsewhere = store.create_key(new_key(other, "key 1", 9)).await.unwrap();
    store.revoke_key(revocation(account, keys[0], 5)).await.unwrap();
    assert_eq!(store.revoke_all_keys(all_of(account, Some(keys[2]), 6)).await.unwrap(), revoked(2));
    for (id, revoked_at) in keys.iter().zip([Some(moment(5)), Some(moment(6)), None, Some(moment(6))]) {
        assert_eq!(store.key(account, *id).await.unwrap().key.revoked_at, revoked_at);
    }
    assert_eq!(store.key(other, elsewhere.key.id).await.unwrap(), elsewhere);
    // Excepting a key of another account has no effect.
    assert_eq!(store.revoke_all_keys(all_of(account, Some(elsewhere.key.id), 7)).await.unwrap(), revoked(1));
    assert_eq!(store.revoke_all_keys(all_of(account, None, 8)).await.unwrap(), revoked(0));
    assert_eq!(counts(&*store).await["key.revoked"], 4);
    let unknown = store.revoke_all_keys(all_of(AccountId::generate(), None, 8)).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownAccount);
}

pub async fn keys_with_further_scopes_are_neither_revoked_nor_listed(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let admin = store.ensure_admin_key(admin_key(1)).await.unwrap().key;
    let mut ids = Vec::new();
    for (number, scopes) in [
        (2, vec![Scope::FilesRead]),
        (3, vec![Scope::FilesRead, Scope::SwarmExec]),
        (4, vec![Scope::SwarmExec, Scope::Admin]),
        (5, vec![Scope::FilesRead]),
    ] {
        let command = NewKey { scopes, ..new_key(account, &format!("key {number}"), number) };
        ids.push(store.create_key(command).await.unwrap().key.id);
    }
    let few = vec![Scope::SwarmExec, Scope::FilesRead];
    // The page is filled although keys between its entries are left out.
    let query = ListKeys { account, scopes: few.clone(), limit: 2, before: None };
    let page = store.list_keys(query.clone()).await.unwrap();
    let listed = |page: &KeyPage| page.keys.iter().map(|record| record.key.id).collect::<Vec<_>>();
    assert_eq!((listed(&page), page.next), (vec![ids[3], ids[1]], Some(ids[1])));
    let rest = store.list_keys(ListKeys { before: page.next, ..query }).await.unwrap();
    assert_eq!((listed(&rest), rest.next), (vec![ids[0]], None));

    let command = RevokeAllKeys { scopes: few, ..all_of(account, Some(ids[0]), 6) };
    let revoked = store.revoke_all_keys(command).await.unwrap();
    assert_eq!(revoked, RevokedKeys { revoked: 2, kept: 2 });
    for (id, revoked_at) in
        [admin.id, ids[0], ids[1], ids[2], ids[3]].into_iter().zip([None, None, Some(6), None, Some(6)])
    {
        let found = store.key(account, id).await.unwrap().key;
        assert_eq!(found.revoked_at, revoked_at.map(moment), "{}", found.name);
    }
}

pub async fn listeners_receive_every_revocation(store: Arc<dyn Store>) {
    default_account(&*store).await;
    let account = account_named(&*store, "acme").await.id;
    let (one, two) = (booted(account, 3), booted(account, 4));
    store.record_boots(boot(vec![one.clone(), two.clone()])).await.unwrap();
    let mut keys = Vec::new();
    for (number, vm) in [(1, None), (2, Some(one.id)), (3, Some(two.id)), (4, None), (5, None)] {
        let mut command = new_key(account, &format!("key {number}"), number);
        command.vm = vm;
        keys.push(store.create_key(command).await.unwrap().key.id);
    }
    let mut revocations = store.revocations();
    assert_eq!(revocations.try_recv(), Err(TryRecvError::Empty), "nothing was revoked yet");
    store.revoke_key(revocation(account, keys[0], 5)).await.unwrap();
    assert_eq!(revocations.try_recv(), Ok(keys[0]));
    store.record_end(end(one.id, EndReason::Poweroff, 6)).await.unwrap();
    assert_eq!(revocations.try_recv(), Ok(keys[1]));
    store.end_vms(EndVms { vms: vec![lost(two.id)], reason: EndReason::Lost, at: moment(7) }).await.unwrap();
    assert_eq!(revocations.try_recv(), Ok(keys[2]));
    store.revoke_all_keys(all_of(account, Some(keys[4]), 8)).await.unwrap();
    assert_eq!(revocations.try_recv(), Ok(keys[3]));
    store.delete_account(deletion(account, 9)).await.unwrap();
    assert_eq!(revocations.try_recv(), Ok(keys[4]));
    assert_eq!(revocations.try_recv(), Err(TryRecvError::Empty));
}
