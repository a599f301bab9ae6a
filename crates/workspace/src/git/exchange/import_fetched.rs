//! Updates the remote-tracking branches in the VM from the export of another workspace.

use std::fmt::Write;

use skep_api::git::{FetchedRefs, GitImportFetched};

use super::{
    import::{check_complete, check_export},
    send::index_pack,
};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{branch::check_branch_name, lock::write_lock, remotes::RemoteRefs, repository::Repository},
    streamed::no_content,
};

impl RunStreamed for GitImportFetched {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(FetchedRefs, Content), Error> {
        check_export(&self.exported)?;
        let repository = Repository::find(place, self.path.as_ref()).await?;
        check_branch_name(&repository, "remote", &format!("{}/x", self.remote)).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        let before = RemoteRefs::read(&repository, &self.remote).await?;
        let mut wanted = String::new();
        for one in &self.exported.refs {
            let _ = writeln!(wanted, "{}", one.id);
        }
        if !wanted.is_empty() {
            index_pack(&repository, content).await?;
            check_complete(&repository, wanted).await?;
        }
        let updates = before.update_commands(&self.exported, &self.remote, self.prune);
        repository.run_checked(repository.git().args(["update-ref", "--stdin"]).stdin(updates)).await?;
        Ok((before.fetched_refs(&repository, self.remote).await?, no_content()))
    }
}
