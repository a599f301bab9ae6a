//! Tokens of git, encrypted at rest: the store has what is sealed, and the key lies beside it in a file of its own.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use skep_api::{AccountId, git::Credential};
use skep_store::{GitCredential, SetGitCredential, Store};

use crate::{error::Refusal, random};

/// The key's file, in the server's folder.
const KEY_FILE: &str = "git-credentials.key";
const KEY_LENGTH: usize = 32;

/// Where tokens are kept. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Vault {
    store: Arc<dyn Store>,
    file: Arc<Path>,
    key: Arc<OnceLock<LessSafeKey>>,
}

impl Vault {
    /// Tokens in this store, whose key lies in this folder.
    pub(crate) fn new(store: Arc<dyn Store>, folder: &Path) -> Self {
        Self { store, file: folder.join(KEY_FILE).into(), key: Arc::default() }
    }

    /// Keeps a token, in the place of the one that the host had.
    ///
    /// # Errors
    /// Those of the store, and a fault of ours where the key cannot be read.
    pub(crate) async fn keep(
        &self,
        account: AccountId,
        host: String,
        credential: &Credential,
        at: Timestamp,
    ) -> Result<GitCredential, Refusal> {
        let mut sealed = credential.token.clone().into_bytes();
        let nonce: [u8; NONCE_LEN] = random::bytes()?[..NONCE_LEN].try_into().map_err(|_| broken("nonce"))?;
        let key = self.key().await?;
        let whose = whose(account, &host);
        let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), whose, &mut sealed);
        sealed.extend_from_slice(tag.map_err(|_| broken("a token cannot be sealed"))?.as_ref());
        sealed.splice(..0, nonce);
        let credential =
            GitCredential { host, username: credential.username.clone(), sealed, created_at: at };
        self.store.set_git_credential(SetGitCredential { account, credential: credential.clone() }).await?;
        Ok(credential)
    }

    /// What is kept of an account, by host, with its tokens as they are sealed.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn list(&self, account: AccountId) -> Result<Vec<GitCredential>, Refusal> {
        Ok(self.store.git_credentials(account).await?)
    }

    /// Forgets a host's token; tells whether there was one.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn forget(&self, account: AccountId, host: &str) -> Result<bool, Refusal> {
        Ok(self.store.remove_git_credential(account, host).await?)
    }

    /// The tokens of an account, by host.
    ///
    /// # Errors
    /// Those of [`Self::keep`].
    pub(crate) async fn open(&self, account: AccountId) -> Result<BTreeMap<String, Credential>, Refusal> {
        let kept = self.store.git_credentials(account).await?;
        if kept.is_empty() {
            return Ok(BTreeMap::new());
        }
        let key = self.key().await?;
        let mut opened = BTreeMap::new();
        for GitCredential { host, username, mut sealed, .. } in kept {
            match unsealed(key, account, &host, &mut sealed) {
                Some(token) => drop(opened.insert(host, Credential { username, token })),
                None => tracing::warn!(host, "a git credential was sealed with another key; give it again"),
            }
        }
        Ok(opened)
    }

    async fn key(&self) -> Result<&LessSafeKey, Refusal> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let (file, fresh) = (Arc::clone(&self.file), random::bytes()?);
        let read = tokio::task::spawn_blocking(move || key_of(&file, fresh)).await;
        let bytes =
            read.map_err(broken)?.map_err(|error| broken(format!("the key of git's tokens: {error}")))?;
        let key =
            UnboundKey::new(&CHACHA20_POLY1305, &bytes).map_err(|_| broken("the key has a wrong length"))?;
        Ok(self.key.get_or_init(|| LessSafeKey::new(key)))
    }
}

fn broken(why: impl std::fmt::Display) -> Refusal {
    Refusal::internal(why.to_string())
}

/// A token opens for the account and host alone that it was given for.
fn whose(account: AccountId, host: &str) -> Aad<Vec<u8>> {
    Aad::from(format!("{account} {host}").into_bytes())
}

fn unsealed(key: &LessSafeKey, account: AccountId, host: &str, sealed: &mut [u8]) -> Option<String> {
    let (nonce, sealed) = sealed.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let token = key.open_in_place(nonce, whose(account, host), sealed).ok()?;
    String::from_utf8(token.to_vec()).ok()
}

/// The key in this file, which gets a fresh one where there is none.
fn key_of(file: &Path, fresh: [u8; KEY_LENGTH]) -> io::Result<[u8; KEY_LENGTH]> {
    match fs::read(file) {
        Ok(bytes) => {
            let wrong = |_| io::Error::other(format!("{} does not hold {KEY_LENGTH} bytes", file.display()));
            return bytes.try_into().map_err(wrong);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Whole or not there: a key that is cut short would be no key for ever.
    let draft = file.with_extension("new");
    let mut written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    written.write_all(&fresh)?;
    written.sync_all()?;
    match fs::hard_link(&draft, file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return key_of(file, fresh),
        Err(error) => return Err(error),
    }
    fs::remove_file(&draft)?;
    if let Some(folder) = file.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_is_made_once_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(KEY_FILE);
        assert_eq!(key_of(&file, [7; 32]).unwrap(), [7; 32]);
        assert_eq!(key_of(&file, [8; 32]).unwrap(), [7; 32]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&file, "short").unwrap();
        assert!(key_of(&file, [8; 32]).is_err());
    }

    #[test]
    fn a_token_opens_for_its_account_and_host_alone() {
        let key = || LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &[7; 32]).unwrap());
        let account = AccountId::generate();
        let mut sealed = b"token".to_vec();
        let nonce = [3; NONCE_LEN];
        let tag = key().seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            whose(account, "a.example"),
            &mut sealed,
        );
        let sealed = [&nonce[..], &sealed, tag.unwrap().as_ref()].concat();
        let open = |account, host: &str| unsealed(&key(), account, host, &mut sealed.clone());
        assert_eq!(open(account, "a.example").as_deref(), Some("token"));
        assert_eq!(open(account, "b.example"), None);
        assert_eq!(open(AccountId::generate(), "a.example"), None);
        assert_eq!(unsealed(&key(), account, "a.example", &mut [1, 2]), None);
    }
}
