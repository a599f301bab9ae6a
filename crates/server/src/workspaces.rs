//! Creates the default root of an account, and checks roots that are given by name.

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

/// The default roots of accounts, and the rules for other roots. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Workspaces(Arc<RootRules>);

impl Workspaces {
    pub(crate) fn new(rules: RootRules) -> Self {
        Self(Arc::new(rules))
    }

    /// The folder of the default roots.
    pub(crate) fn dir(&self) -> &Path {
        self.0.workspaces()
    }

    /// Resolves and checks the new roots of an account. `others` are the roots of other accounts.
    ///
    /// # Errors
    /// `invalid_value` for a root that overlaps the server's data, a kernel file system or a root of another account.
    pub(crate) async fn check(
        &self,
        roots: Vec<String>,
        others: Vec<AccountRoot>,
    ) -> Result<Vec<String>, Refusal> {
        let rules = Arc::clone(&self.0);
        let check = move || {
            let resolve = |root: String| {
                let path = rules.check(Path::new(&root), &others)?;
                // Clients get the roots as JSON text, and send paths below them.
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

    /// Refuses stored roots that overlap the server's data.
    ///
    /// # Errors
    /// `path_outside_roots`.
    pub(crate) fn check_stored(&self, roots: &[PathBuf]) -> Result<(), Failure> {
        match roots.iter().find(|root| self.0.overlaps_data_by_path(root)) {
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

    /// Creates the default root of a new account, empty and accessible to the server's user only.
    ///
    /// # Errors
    /// `workspace_taken` where the folder holds files, which an earlier account of that name left behind.
    pub(crate) async fn create(&self, account: &str) -> Result<String, Refusal> {
        let path = self.dir().join(account);
        let name = account.to_owned();
        let made =
            tokio::task::spawn_blocking(move || create_empty_folder(&path).map(|empty| (path, empty))).await;
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

/// Creates the folder where it is missing. Returns whether it is an empty folder now.
fn create_empty_folder(path: &Path) -> std::io::Result<bool> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        // A symbolic link is not accepted, wherever it points.
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
        Workspaces::new(RootRules::new(data).unwrap())
    }

    #[tokio::test]
    async fn a_new_account_does_not_get_the_files_of_an_earlier_one() {
        let data = tempfile::tempdir().unwrap();
        let workspaces = workspaces(data.path());
        let path = PathBuf::from(workspaces.create("acme").await.unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(workspaces.create("acme").await.unwrap(), path.to_str().unwrap(), "it is empty still");
        fs::write(path.join("secret"), "x").unwrap();
        let refused = workspaces.create("acme").await.unwrap_err();
        assert_eq!(refused.failure().code, ErrorCode::WorkspaceTaken);
        std::os::unix::fs::symlink("/", data.path().join("workspaces/linked")).unwrap();
        let refused = workspaces.create("linked").await.unwrap_err();
        assert_eq!(refused.failure().code, ErrorCode::WorkspaceTaken);
    }
}
