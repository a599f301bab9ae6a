//! The first admin key: made once, known to its owner by a file, and to the server by its hash.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::rand::{GetRandomFlags, getrandom};
use skep_accounts::KeySecret;
use skep_api::Environment;
use skep_keeper_protocol::AdminKey;

use crate::{DataDir, Error};

/// The key of a data directory.
pub(crate) struct Found {
    /// What the server may know.
    pub(crate) public: AdminKey,
    /// The key itself, where it was made just now.
    pub(crate) new: Option<String>,
}

/// Makes the key at the first start. Later the file may be gone, taken away by its owner; a record of the hash stays.
///
/// # Errors
/// The file holds something else, or cannot be read or written.
pub(crate) fn find_or_make(data_dir: &DataDir) -> Result<Found, Error> {
    let (file, record) = (data_dir.admin_key(), data_dir.keeper().join("admin-key.json"));
    if let Some(text) = read(&record)? {
        let public = serde_json::from_str(&text).map_err(|_| Error::DamagedKey(record))?;
        return Ok(Found { public, new: None });
    }
    let (secret, new) = match read(&file)? {
        Some(text) => (KeySecret::parse(text.trim()).map_err(|_| Error::DamagedKey(file))?, None),
        None => {
            let secret = KeySecret::from_random(Environment::Prod, random()?);
            let text = secret.expose().to_owned();
            write(&file, &format!("{text}\n"))?;
            (secret, Some(text))
        }
    };
    let public = public(&secret);
    let text =
        serde_json::to_string(&public).map_err(|error| Error::io("admin key")(io::Error::from(error)))?;
    write(&record, &text)?;
    Ok(Found { public, new })
}

fn public(secret: &KeySecret) -> AdminKey {
    let sha256 = secret.hash().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    AdminKey { sha256, prefix: secret.prefix().to_owned() }
}

fn random() -> Result<[u8; 32], Error> {
    let mut bytes = [0; 32];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(32) => Ok(bytes),
        Ok(_) => Err(Error::io("random bytes")(io::Error::from(io::ErrorKind::UnexpectedEof))),
        Err(error) => Err(Error::io("random bytes")(error)),
    }
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path.display().to_string())(error)),
    }
}

/// Whole or not at all, also in a power cut.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let new = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        // The folder too: ext4 may lose the new name in a power cut.
        path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    };
    write().map_err(Error::io(path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_is_made_once_and_survives_the_loss_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        let first = find_or_make(&data_dir).unwrap();
        let secret = first.new.unwrap();
        assert_eq!(fs::read_to_string(data_dir.admin_key()).unwrap(), format!("{secret}\n"));
        let mode = fs::metadata(data_dir.admin_key()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(secret.starts_with(&first.public.prefix) && !first.public.sha256.contains(&secret[20..]));

        fs::remove_file(data_dir.admin_key()).unwrap();
        let second = find_or_make(&data_dir).unwrap();
        assert_eq!(second.new, None);
        assert_eq!(second.public.sha256, first.public.sha256);
        assert!(!data_dir.admin_key().exists());
    }

    #[test]
    fn a_crash_between_key_and_record_keeps_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        let first = find_or_make(&data_dir).unwrap();
        fs::remove_file(data_dir.keeper().join("admin-key.json")).unwrap();
        let second = find_or_make(&data_dir).unwrap();
        assert_eq!((second.public.sha256, second.new), (first.public.sha256, None));
    }

    #[test]
    fn a_file_that_holds_no_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        fs::write(data_dir.admin_key(), "hello").unwrap();
        assert!(matches!(find_or_make(&data_dir), Err(Error::DamagedKey(_))));
    }
}
