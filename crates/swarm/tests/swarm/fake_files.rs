//! Fake files in workspaces.

use async_trait::async_trait;
use skep_api::{AccountId, Failure};
use skep_swarm::WorkspaceFiles;

use crate::fake_store::FakeStore;

/// The files of each account, in bytes.
#[derive(Debug, Default)]
pub(crate) struct FakeFiles {
    /// What the last count has found.
    pub(crate) counted: u64,
    /// What the next count finds.
    pub(crate) present: u64,
    /// What the account occupies besides.
    pub(crate) outside: u64,
}

#[async_trait]
impl WorkspaceFiles for FakeStore {
    async fn used_bytes(&self, _: AccountId) -> u64 {
        self.files.lock().unwrap().counted
    }

    fn used_beside(&self, _: AccountId, outside: u64) -> Option<u64> {
        let mut files = self.files.lock().unwrap();
        files.outside = outside;
        Some(files.counted)
    }

    async fn count(&self, _: AccountId) -> Result<(), Failure> {
        let mut files = self.files.lock().unwrap();
        files.counted = files.present;
        Ok(())
    }
}
