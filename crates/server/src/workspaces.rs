//! The folders that accounts get which name no roots, and the check of those that they name.

use std::{
    fs::{self, DirBuilder},
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::{ErrorCode, Failure};
use skep_store::AccountRoot;

use crate::{account_roots::RootRules, error::Refusal};

/// Where the accounts' own folders lie, and which others they may have. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Workspaces(Arc<RootRules>);

impl Workspaces {
    pub(crate) fn new(rules: RootRules) -> Self {
        Self(Arc::new(rules))
    }

    /// Where the accounts' own folders lie.
    pub(crate) fn dir(&self) -> &Path {
        self.0.workspaces()
    }

    /// Resolves the roots that an account shall have, beside those of other accounts.
    ///
    /// # Errors
    /// `invalid_value` for one that reaches the server's data, the system's, or another account's.
    pub(crate) async fn check(
        &self,
        roots: Vec<String>,
        others: Vec<AccountRoot>,
    ) -> Result<Vec<String>, Refusal> {
        let rules = Arc::clone(&self.0);
        let check = move || {
            let resolve = |root: String| {
                let path = rules.check(Path::new(&root), &others)?;
                // Clients get paths as JSON, and name files below them.
                path.into_os_string().into_string().map_err(|path| {
                    let message = format!(
                        "`roots`: {root:?} leads to {path:?}, which is not UTF-8; name another folder"
                    );
                    Failure::new(ErrorCode::InvalidValue, message)
                })
            };
            roots.into_iter().map(resolve).collect::<Result<Vec<_>, Failure>>()
        };
        let checked = tokio::task::spawn_blocking(check).await;
        Ok(checked.map_err(|error| Refusal::internal(error.to_string()))??)
    }

    /// Refuses a stored root that reaches the server's data.
    ///
    /// # Errors
    /// `path_outside_roots`.
    pub(crate) fn check_stored(&self, roots: &[PathBuf]) -> Result<(), Failure> {
        match roots.iter().find(|root| self.0.reaches_data(root)) {
            None => Ok(()),
            Some(root) => Err(Failure::new(
                ErrorCode::PathOutsideRoots,
                format!(
                    "the root {} of this account reaches the server's own data and is not used; a key with \
                     `server:admin` gives the account another",
                    root.display()
                ),
            )),
        }
    }

    /// Makes the folder of a new account, empty, for the server's user alone.
    ///
    /// # Errors
    /// `workspace_taken` where files lie there: an earlier account of that name left them, and they are not the new one's.
    pub(crate) async fn make(&self, account: &str) -> Result<String, Refusal> {
        let path = self.dir().join(account);
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
        Workspaces::new(RootRules::of(data).unwrap())
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
}
