//! Updates the remote-tracking branches in the VM from the export of another workspace.

use std::fmt::Write;

use skep_api::git::{FetchedRefs, GitTake};

use super::{
    import::{check, whole},
    send::take_in,
};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{branch::check_name, lock::turn, remotes::Seen, repository::Repository},
    streamed::no_content,
};

impl RunStreamed for GitTake {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(FetchedRefs, Content), Error> {
        check(&self.exported)?;
        let repository = Repository::find(place, self.path.as_ref()).await?;
        check_name(&repository, "remote", &format!("{}/x", self.remote)).await?;
        let _turn = turn(&repository.common_dir).await?;
        let before = Seen::of(&repository, &self.remote).await?;
        let mut wanted = String::new();
        for one in &self.exported.refs {
            let _ = writeln!(wanted, "{}", one.id);
        }
        if !wanted.is_empty() {
            take_in(&repository, content).await?;
            whole(&repository, wanted).await?;
        }
        let updates = before.updates(&self.exported, &self.remote, self.prune);
        repository.done(repository.git().args(["update-ref", "--stdin"]).stdin(updates)).await?;
        Ok((before.changed(&repository, self.remote).await?, no_content()))
    }
}
