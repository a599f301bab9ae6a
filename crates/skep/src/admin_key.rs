//! Creates and reads the first admin key when the server runs without a keeper.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Context;
use skep_accounts::KeySecret;
use skep_api::Environment;

use crate::random;

/// The admin key in a file, and whether it was created by this call.
pub(crate) fn load_or_create(path: &Path) -> anyhow::Result<(KeySecret, bool)> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let secret = KeySecret::parse(text.trim());
            let what = || format!("{} contains no key; remove it to have a new one created", path.display());
            Ok((secret.with_context(what)?, false))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let secret = KeySecret::from_random(Environment::Prod, random::bytes()?);
            write(path, &secret).with_context(|| format!("{} cannot be written", path.display()))?;
            Ok((secret, true))
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

fn write(path: &Path, secret: &KeySecret) -> std::io::Result<()> {
    // Atomic: a truncated key would lock the owner out at the next start.
    let new = path.with_extension("key.new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(file, "{}", secret.expose())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_is_created_once_and_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.key");
        let (made, new) = load_or_create(&path).unwrap();
        assert!(new);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (read, new) = load_or_create(&path).unwrap();
        assert_eq!((read.expose(), new), (made.expose(), false));
        fs::write(&path, "nonsense").unwrap();
        assert!(load_or_create(&path).unwrap_err().to_string().contains("admin.key"));
    }
}
