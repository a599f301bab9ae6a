//! The files of the dashboard, embedded in the binary at its build.

use axum::Router;
#[cfg(dashboard_is_built)]
use memory_serve::{CacheControl, load};
#[cfg(dashboard_is_built)]
use tracing::subscriber::{NoSubscriber, with_default};

/// The page, which references the other files; `None` if the dashboard was not built. Its placeholder `CSP_NONCE` stands
/// for the nonce of each answer.
pub const PAGE: Option<&str> = {
    #[cfg(dashboard_is_built)]
    {
        Some(include_str!("../../../dashboard/dist/index.html"))
    }
    #[cfg(not(dashboard_is_built))]
    {
        None
    }
};

/// A router that serves the other files, by their names. A name contains a hash of the content, so that browsers keep
/// the file. Decompresses all files and keeps them for the life of the process: call it once, away from async threads.
pub fn files() -> Router {
    #[cfg(dashboard_is_built)]
    {
        // The library logs a line for each file.
        with_default(NoSubscriber::new(), || {
            let cache = CacheControl::Custom("public, max-age=31536000, immutable");
            load!().index_file(None).cache_control(cache).into_router()
        })
    }
    #[cfg(not(dashboard_is_built))]
    {
        Router::new()
    }
}
