//! The roots that accounts were given, for whoever is confined to them.

use std::path::{Path, PathBuf};

/// Those that are there now. What accounts get later is out of reach until the next start.
pub(crate) fn present(store: &Path) -> Vec<PathBuf> {
    let roots = skep_store::sqlite::account_roots(store).unwrap_or_else(|error| {
        // Whoever opens the store next says so too, and fails.
        tracing::debug!(%error, "the accounts' roots were not read");
        Vec::new()
    });
    roots.into_iter().map(PathBuf::from).filter(|root| root.is_dir()).collect()
}
