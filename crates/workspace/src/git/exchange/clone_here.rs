//! Clones a remote into the workspace that runs this.

use std::path::Path;

use skep_api::git::{Cloned, Exported, GitClone, GitImport};

use super::{
    export::export_refs,
    import::{HEADS, InitialCheckout, finish, init, store_boundary},
    temporary::TemporaryRepository,
};
use crate::{
    Error, Place,
    git::{
        clone_source::{CloneOptions, CloneSource},
        create::FIRST_BRANCH,
        repository::Repository,
    },
};

/// Limits of the branches and tags, and of their list in bytes.
const MAX_REFS: usize = 500_000;
const MAX_LIST_BYTES: usize = 48 << 20;

/// Clones a remote into a folder. The git that connects to the remote writes objects to the new repository, and everything
/// else to a temporary one, whose config no program of the account can change.
///
/// # Errors
/// Those of [`CloneSource::clone_into`].
pub(in crate::git) async fn clone_here(
    clone: &GitClone,
    source: &CloneSource,
    place: &Place,
    folder: &Path,
) -> Result<Cloned, Error> {
    init(place, folder, FIRST_BRANCH, false).await?;
    let reach = &place.context().reach;
    let options = CloneOptions::bare(clone.branch.as_deref(), clone.depth);
    let objects = folder.join(".git/objects");
    let temporary = TemporaryRepository::create_clone_with(place, source, options, reach, &objects).await?;
    let exported = export_refs(&temporary.repository, MAX_REFS, MAX_LIST_BYTES).await?;
    // The current branch of the temporary repository is the one that was named, and not that of the remote.
    let head = exported.head.filter(|_| clone.branch.is_none());
    let exported = Exported { head, ..exported };
    let (path, url, branch) = (clone.path.clone(), clone.url.clone(), clone.branch.clone());
    let import = GitImport { path, url, branch, exported, reach: reach.clone() };
    let start = InitialCheckout::of(&import)?;
    let repository = Repository::find(place, Some(&import.path)).await?;
    let head = format!("{HEADS}{}", start.first_branch());
    repository.run_checked(repository.git().args(["symbolic-ref", "HEAD", &head])).await?;
    let format = temporary.repository.git().args(["rev-parse", "--show-object-format"]);
    if temporary.repository.run_checked(format).await?.stdout_text() == "sha256" {
        for (key, value) in [("core.repositoryformatversion", "1"), ("extensions.objectformat", "sha256")] {
            repository.run_checked(repository.git().args(["config", "--local", key, value])).await?;
        }
    }
    store_boundary(&Repository::find(place, Some(&import.path)).await?, &import.exported).await?;
    let only_branch = match &start {
        InitialCheckout::Branch(name, _) if clone.depth.is_some() => Some(name.as_str()),
        _ => None,
    };
    finish(&import, &start, place, only_branch).await
}
