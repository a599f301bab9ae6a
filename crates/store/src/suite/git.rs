//! Tests of git credentials.

use std::sync::Arc;

use skep_api::{AccountId, ErrorCode};

use super::{account_named, default_account, deletion, moment};
use crate::{GitCredential, SetGitCredential, Store};

fn credential(host: &str, number: u8) -> GitCredential {
    let sealed = vec![number, 0, 255];
    GitCredential {
        host: host.to_owned(),
        username: "agent".to_owned(),
        encrypted_token: sealed,
        created_at: moment(number.into()),
    }
}

async fn set(store: &dyn Store, account: AccountId, credential: GitCredential) {
    store.set_git_credential(SetGitCredential { account, credential }).await.unwrap();
}

pub async fn a_host_has_one_credential_of_an_account(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    set(&*store, account, credential("b.example", 1)).await;
    set(&*store, account, credential("a.example", 2)).await;
    set(&*store, account, credential("b.example", 3)).await;
    let all = store.git_credentials(account).await.unwrap();
    assert_eq!(all, [credential("a.example", 2), credential("b.example", 3)]);
    assert!(store.remove_git_credential(account, "a.example").await.unwrap());
    assert!(!store.remove_git_credential(account, "a.example").await.unwrap());
    assert_eq!(store.git_credentials(account).await.unwrap().len(), 1);
    assert!(super::all_events(&*store).await.iter().all(|event| !format!("{event:?}").contains("example")));
}

pub async fn credentials_end_with_their_account(store: Arc<dyn Store>) {
    let own = default_account(&*store).await.id;
    let other = account_named(&*store, "acme").await.id;
    set(&*store, other, credential("a.example", 1)).await;
    assert_eq!(store.git_credentials(own).await.unwrap(), []);
    assert!(!store.remove_git_credential(own, "a.example").await.unwrap(), "it is not this account's");
    store.delete_account(deletion(other, 9)).await.unwrap();
    assert_eq!(store.git_credentials(other).await.unwrap(), []);
    let late = SetGitCredential { account: other, credential: credential("a.example", 2) };
    assert_eq!(store.set_git_credential(late).await.unwrap_err().code(), ErrorCode::UnknownAccount);
}
