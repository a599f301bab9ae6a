//! Removes what killed bakes left behind.

use std::{fs::File, io, path::Path};

use rustix::fs::{FlockOperation, flock};
use skep_template::shelf;

use crate::{Error, environment::ResourceNames};

/// Removes everything that a killed bake left on this machine and in its image directory, but no templates. Blocks.
///
/// # Errors
/// [`Error::Baking`] while a bake is running there; or something could not be removed.
pub fn clean(image_dir: &Path) -> Result<(), Error> {
    let lock = image_dir.join(shelf::LOCK);
    let held = match File::open(&lock) {
        Ok(file) => Some(file),
        // Nothing was baked there, or the directory was removed while processes of a bake may still run.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io(lock.display())(error)),
    };
    if let Some(file) = &held {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Baking(image_dir.to_owned())),
            other => other.map_err(io::Error::from).map_err(Error::io(lock.display()))?,
        }
    }
    ResourceNames::of(image_dir).clear()?;
    Ok(shelf::clear_partial(image_dir)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_not_whole_is_cleared_away_and_templates_stay() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["base/.partial-a/root", "base/0123", ".cache/.partial-b", ".cache/kernel-1"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        clean(dir.path()).unwrap();
        for (path, stays) in [
            ("base/.partial-a", false),
            ("base/0123", true),
            (".cache/.partial-b", false),
            (".cache/kernel-1", true),
        ] {
            assert_eq!(dir.path().join(path).exists(), stays, "{path}");
        }
    }

    #[test]
    fn nothing_is_cleared_away_under_a_bake() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("base/.partial-a")).unwrap();
        let turn = shelf::lock(dir.path(), || panic!("nobody else bakes")).unwrap();
        let refused = clean(dir.path()).unwrap_err();
        assert!(matches!(refused, Error::Baking(_)), "{refused}");
        assert!(dir.path().join("base/.partial-a").exists());
        drop(turn);
        clean(dir.path()).unwrap();
        assert!(!dir.path().join("base/.partial-a").exists());
    }
}
