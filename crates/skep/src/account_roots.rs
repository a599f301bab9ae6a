//! The roots of accounts, for a process that is confined to them.

use std::path::{Path, PathBuf};

use skep_accounts::DEFAULT_ACCOUNT;
use skep_server::RootRules;
use skep_store::AccountRoot;

/// The stored roots that exist and are allowed. Roots that accounts get later are out of reach until the next start.
pub(crate) fn existing(data_dir: &Path, store: &Path) -> Vec<PathBuf> {
    let roots = skep_store::sqlite::account_roots(store).unwrap_or_else(|error| {
        // Opening the store, which comes next, fails with the same error.
        tracing::debug!(%error, "the accounts' roots were not read");
        Vec::new()
    });
    let Ok(rules) = RootRules::new(data_dir) else { return Vec::new() };
    // The roots of `default` are settings, which the store may not have yet.
    let roots = roots.into_iter().filter(|root| root.account != DEFAULT_ACCOUNT);
    let allowed = |root: &AccountRoot| match rules.check_stored(&root.path, &[]) {
        Ok(()) => root.path.is_dir(),
        Err(refused) => {
            tracing::warn!(
                account = root.account,
                "a root of the account `{}` is not used: {refused}",
                root.account
            );
            false
        }
    };
    roots.filter(allowed).map(|root| root.path).collect()
}
