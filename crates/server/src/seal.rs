//! Encrypts secrets at rest. The store holds the ciphertext; the encryption key is a file beside the store.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, OnceLock},
};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::{error::Refusal, random};

const KEY_LENGTH: usize = 32;

/// Seals and opens secrets with the key in one file, which is created at its first use. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SealingKey {
    file: Arc<Path>,
    key: Arc<OnceLock<LessSafeKey>>,
}

impl SealingKey {
    pub(crate) fn in_file(file: &Path) -> Self {
        Self { file: file.into(), key: Arc::default() }
    }

    /// Encrypts a secret. It can be decrypted only for the same owner.
    ///
    /// # Errors
    /// A fault of ours where the key cannot be read.
    pub(crate) async fn seal(&self, owner: &str, secret: &[u8]) -> Result<Vec<u8>, Refusal> {
        let nonce: [u8; NONCE_LEN] = random::bytes()?[..NONCE_LEN].try_into().map_err(internal)?;
        sealed(self.key().await?, owner, nonce, secret)
            .ok_or_else(|| Refusal::internal("a secret cannot be sealed"))
    }

    /// Decrypts a secret; `None` where it was encrypted with another key or for another owner.
    ///
    /// # Errors
    /// A fault of ours where the key cannot be read.
    pub(crate) async fn open(&self, owner: &str, sealed: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(unsealed(self.key().await?, owner, sealed))
    }

    async fn key(&self) -> Result<&LessSafeKey, Refusal> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let (file, fresh) = (Arc::clone(&self.file), random::bytes()?);
        let read = tokio::task::spawn_blocking(move || read_or_create_key(&file, fresh)).await;
        let bytes =
            read.map_err(internal)?.map_err(|error| internal(format!("the encryption key: {error}")))?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes)
            .map_err(|_| Refusal::internal("the encryption key has a wrong length"))?;
        Ok(self.key.get_or_init(|| LessSafeKey::new(key)))
    }
}

fn internal(why: impl std::fmt::Display) -> Refusal {
    Refusal::internal(why.to_string())
}

fn sealed(key: &LessSafeKey, owner: &str, nonce: [u8; NONCE_LEN], secret: &[u8]) -> Option<Vec<u8>> {
    let mut text = secret.to_vec();
    let associated_data = Aad::from(owner.as_bytes());
    let tag = key
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), associated_data, &mut text)
        .ok()?;
    Some([&nonce[..], &text, tag.as_ref()].concat())
}

fn unsealed(key: &LessSafeKey, owner: &str, sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut text = text.to_vec();
    Some(key.open_in_place(nonce, Aad::from(owner.as_bytes()), &mut text).ok()?.to_vec())
}

/// Reads the key file, or creates it with `fresh` where there is none.
fn read_or_create_key(file: &Path, new_key: [u8; KEY_LENGTH]) -> io::Result<[u8; KEY_LENGTH]> {
    match fs::read(file) {
        Ok(bytes) => {
            let wrong = |_| io::Error::other(format!("{} does not hold {KEY_LENGTH} bytes", file.display()));
            return bytes.try_into().map_err(wrong);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The file is created atomically: a truncated key file would stay unusable.
    let temporary = file.with_extension("new");
    let mut written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    written.write_all(&new_key)?;
    written.sync_all()?;
    match fs::hard_link(&temporary, file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return read_or_create_key(file, new_key);
        }
        Err(error) => return Err(error),
    }
    fs::remove_file(&temporary)?;
    if let Some(folder) = file.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(new_key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_file_is_created_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("some.key");
        assert_eq!(read_or_create_key(&file, [7; 32]).unwrap(), [7; 32]);
        assert_eq!(read_or_create_key(&file, [8; 32]).unwrap(), [7; 32]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&file, "short").unwrap();
        assert!(read_or_create_key(&file, [8; 32]).is_err());
    }

    #[tokio::test]
    async fn a_secret_opens_for_its_owner_with_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let seal = |name: &str| SealingKey::in_file(&folder.path().join(name));
        let kept = seal("one.key").seal("owner", b"secret").await.unwrap();
        assert!(!kept.windows(6).any(|part| part == b"secret"));
        assert_eq!(seal("one.key").open("owner", &kept).await.unwrap().as_deref(), Some(&b"secret"[..]));
        assert_eq!(seal("one.key").open("other", &kept).await.unwrap(), None);
        assert_eq!(seal("two.key").open("owner", &kept).await.unwrap(), None);
        assert_eq!(seal("one.key").open("owner", &kept[..5]).await.unwrap(), None);
        assert_ne!(seal("one.key").seal("owner", b"secret").await.unwrap(), kept);
    }
}
