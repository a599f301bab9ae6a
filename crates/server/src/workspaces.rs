//! The folders that accounts get which name no roots, and which folders nobody may name.

use std::{
    fs::{self, DirBuilder},
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::{ErrorCode, Failure};

use crate::error::Refusal;

/// Where the accounts' own folders lie. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Workspaces {
    dir: Arc<Path>,
    server_dir: Arc<Path>,
}

impl Workspaces {
    /// Folders below `dir`; `server_dir` is the server's own and nobody's root.
    pub(crate) fn new(dir: PathBuf, server_dir: PathBuf) -> Self {
        Self { dir: dir.into(), server_dir: server_dir.into() }
    }

    /// Where the accounts' own folders lie.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Refuses roots through which files would reach the store.
    ///
    /// # Errors
    /// `invalid_value`.
    pub(crate) fn check(&self, roots: &[String]) -> Result<(), Failure> {
        let reaches = |root: &&String| {
            let root = Path::new(root.as_str());
            root.starts_with(&self.server_dir) || self.server_dir.starts_with(root)
        };
        match roots.iter().find(reaches) {
            None => Ok(()),
            Some(root) => Err(Failure::new(
                ErrorCode::InvalidValue,
                format!("`roots` holds {root:?}, which reaches the server's own data; name another folder"),
            )),
        }
    }

    /// Makes the folder of a new account, empty, for the server's user alone.
    ///
    /// # Errors
    /// `workspace_taken` where files lie there: an earlier account of that name left them, and they are not the new one's.
    pub(crate) async fn make(&self, account: &str) -> Result<String, Refusal> {
        let path = self.dir.join(account);
        let name = account.to_owned();
        let made = tokio::task::spawn_blocking(move || make(&path).map(|empty| (path, empty))).await;
        let (path, empty) = match made {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return Err(Refusal::internal(format!("the folder of `{name}`: {error}"))),
            Err(error) => return Err(Refusal::internal(error.to_string())),
        };
        let path = path.to_str().map(str::to_owned);
        let path = path.ok_or_else(|| Refusal::internal("the data directory's path is not UTF-8"))?;
        if empty {
            return Ok(path);
        }
        let message = format!(
            "{path} holds files of an earlier account `{name}`; move them away, take another name, or name `roots`"
        );
        Err(Refusal::new(ErrorCode::WorkspaceTaken, message))
    }
}

/// Whether it is an empty folder now.
fn make(path: &Path) -> std::io::Result<bool> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        // A symlink is no folder of ours, wherever it leads.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok(fs::symlink_metadata(path)?.is_dir() && fs::read_dir(path)?.next().is_none())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn workspaces(data: &Path) -> Workspaces {
        Workspaces::new(data.join("workspaces"), data.join("server"))
    }

    #[tokio::test]
    async fn nobody_gets_what_another_account_left() {
        let data = tempfile::tempdir().unwrap();
        let workspaces = workspaces(data.path());
        let path = PathBuf::from(workspaces.make("acme").await.unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(workspaces.make("acme").await.unwrap(), path.to_str().unwrap(), "it is empty still");
        fs::write(path.join("secret"), "x").unwrap();
        let refused = workspaces.make("acme").await.unwrap_err();
        assert_eq!(refused.failure().code, ErrorCode::WorkspaceTaken);
        std::os::unix::fs::symlink("/", data.path().join("workspaces/linked")).unwrap();
        let refused = workspaces.make("linked").await.unwrap_err();
        assert_eq!(refused.failure().code, ErrorCode::WorkspaceTaken);
    }

    #[test]
    fn no_root_reaches_the_store() {
        let workspaces = workspaces(Path::new("/var/lib/skep"));
        let check = |root: &str| workspaces.check(&[root.to_owned()]).is_ok();
        for good in ["/srv", "/var/lib/skep/workspaces/x", "/var/lib/skep/server-files"] {
            assert!(check(good), "{good}");
        }
        for wrong in ["/", "/var", "/var/lib/skep", "/var/lib/skep/server", "//var/lib/skep//server/x"] {
            assert!(!check(wrong), "{wrong}");
        }
    }
}
