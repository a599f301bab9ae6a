//! `POST /api/keys/{id}/rotate`.

use jiff::{Timestamp, ToSpan};
use skep_accounts::scopes_of;
use skep_api::{
    ErrorCode, Role, Scope,
    keys::{CreateKey, IdentifyCaller, ReadKey, RevokeKey, RotateKey},
};

use crate::harness::Skep;

#[tokio::test]
async fn both_keys_are_valid_until_the_old_one_is_revoked() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let request = CreateKey { name: "ci".to_owned(), role: Some(Role::Agent), ..CreateKey::default() };
    let old = admin.run(&request).await.unwrap().value;
    let new = admin.run_on(old.record.id, &RotateKey::default()).await.unwrap().value;
    assert_ne!((old.record.id, &old.key), (new.record.id, &new.key));
    assert_eq!((new.record.name.as_str(), &new.record.scopes), ("ci", &scopes_of(Role::Agent, "default")));
    for (key, id) in [(&old.key, old.record.id), (&new.key, new.record.id)] {
        assert_eq!(skep.client(key).run(&IdentifyCaller {}).await.unwrap().key.id, id);
    }
    assert!(admin.run_on(old.record.id, &ReadKey {}).await.unwrap().rotated_at.is_some());
    assert!(admin.run_on(new.record.id, &ReadKey {}).await.unwrap().rotated_at.is_none());
    let again = admin.run_on(old.record.id, &RotateKey::default()).await.unwrap_err();
    assert_eq!(again.code(), ErrorCode::KeyNotValid);
    assert_eq!(admin.run(&request).await.unwrap_err().code(), ErrorCode::NameTaken);
    admin.run_on(old.record.id, &RevokeKey {}).await.unwrap();
    let refused = skep.client(&old.key).run(&IdentifyCaller {}).await.unwrap_err();
    assert_eq!(refused.to_string(), "Token expired");
    assert!(skep.client(&new.key).run(&IdentifyCaller {}).await.is_ok());
    let revoked = admin.run_on(old.record.id, &RotateKey::default()).await.unwrap_err();
    assert_eq!(revoked.code(), ErrorCode::KeyNotValid);
}

#[tokio::test]
async fn a_rotation_cannot_give_more_scopes_than_the_caller_has() {
    let skep = Skep::start().await;
    let own = skep.client(&skep.admin).run(&IdentifyCaller {}).await.unwrap().key.id;
    let (few, record) = skep.key(&[Scope::Admin]).await;
    let few = skep.client(&few);
    let refused = few.run_on(own, &RotateKey::default()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::ScopeMissing);
    assert!(refused.to_string().contains("`server:admin`"), "{refused}");
    assert!(skep.client(&skep.admin).run_on(own, &ReadKey {}).await.unwrap().rotated_at.is_none());
    // The control: a key with no more scopes than its own can be rotated.
    assert!(few.run_on(record.key.id, &RotateKey::default()).await.is_ok());
}

#[tokio::test]
async fn a_rotation_keeps_the_end_or_is_given_another() {
    let skep = Skep::start().await;
    let admin = skep.client(&skep.admin);
    let end: Timestamp = (Timestamp::now() + 1.hour()).round(jiff::Unit::Millisecond).unwrap();
    let (_, record) = skep.key_until(&[Scope::SwarmRead], Some(end)).await;
    let same = admin.run_on(record.key.id, &RotateKey::default()).await.unwrap().value.record;
    assert_eq!(same.expires_at, Some(end));
    let past = RotateKey { expires_at: Some(Some(Timestamp::now() - 1.hour())) };
    assert_eq!(admin.run_on(same.id, &past).await.unwrap_err().code(), ErrorCode::InvalidValue);
    let never = RotateKey { expires_at: Some(None) };
    assert_eq!(admin.run_on(same.id, &never).await.unwrap().record.expires_at, None);
    // An expired key may be rotated with a new expiry.
    let (_, expired) = skep.key_until(&[Scope::SwarmRead], Some(Timestamp::now() - 1.hour())).await;
    let refused = admin.run_on(expired.key.id, &RotateKey::default()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::MissingParameter);
    let renewed = admin.run_on(expired.key.id, &never).await.unwrap().value;
    assert!(skep.client(&renewed.key).run(&IdentifyCaller {}).await.is_ok());
}
