//! Exports branches, tags and commits of a repository for a clone in another workspace.

use std::fmt::Write;

use skep_api::{
    AbsolutePath,
    git::{ExportSource, Exported, ExportedRef, GitExport, GitReach, MAX_EXPORTED_REFS},
};

use super::{
    boundary, check_hash, fetch::keep_until_read, pack::pack_revisions, temporary::TemporaryRepository,
};
use crate::{
    Content, Error, Place, RunStreamed,
    git::{
        GitError,
        clone_source::{CloneOptions, CloneSource},
        repository::{Repository, check_revision, is_hash},
    },
    streamed::no_content,
};

/// Limit of the list of branches and tags, in bytes.
const MAX_LIST_BYTES: usize = 8 << 20;

impl RunStreamed for GitExport {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(Exported, Content), Error> {
        if let Some(branch) = &self.branch {
            check_revision("branch", branch)?;
        }
        self.has.iter().try_for_each(|known| check_hash(known))?;
        boundary::check(&self.has_boundary)?;
        let options = CloneOptions::bare(self.branch.as_deref(), self.depth);
        let temporary = match &self.source {
            ExportSource::Path(path) if self.depth.is_none() => {
                let repository = Repository::find(place, Some(path)).await?;
                let exported = export_refs(&repository, MAX_EXPORTED_REFS, MAX_LIST_BYTES).await?;
                check_branch(&exported, self.branch.as_deref())?;
                let pack = pack_export(&repository, &exported, &self).await?;
                return Ok((exported, pack));
            }
            ExportSource::Path(path) => shallow_clone(place, path, options).await?,
            ExportSource::Url { url, reach } => {
                // Refuses paths: a path on the server must be exported as `ExportSource::Path`.
                super::parse_network_remote(url)?;
                TemporaryRepository::create_clone(
                    place,
                    &CloneSource::find(place, url).await?,
                    options,
                    reach,
                )
                .await?
            }
        };
        let exported = export_refs(&temporary.repository, MAX_EXPORTED_REFS, MAX_LIST_BYTES).await?;
        let pack = pack_export(&temporary.repository, &exported, &self).await?;
        Ok((exported, keep_until_read(temporary, pack)))
    }
}

/// A temporary clone with limited depth.
async fn shallow_clone(
    place: &Place,
    path: &AbsolutePath,
    options: CloneOptions<'_>,
) -> Result<TemporaryRepository, Error> {
    let url = path.as_path().to_str().ok_or_else(|| Error::InvalidValue {
        field: "depth",
        reason: "cannot be given where the path of the source is not UTF-8; leave it out".to_owned(),
    })?;
    TemporaryRepository::create_clone(
        place,
        &CloneSource::find(place, url).await?,
        options,
        &GitReach::default(),
    )
    .await
}

/// Lists the branches and tags of a repository, at most this many in a list of this size.
pub(super) async fn export_refs(
    repository: &Repository,
    max_refs: usize,
    max_list_bytes: usize,
) -> Result<Exported, Error> {
    let git = repository.read_only_git().max_output(max_list_bytes).args(["for-each-ref"]);
    let most = format!("--count={}", max_refs + 1);
    let git = git.args(["--format=%(objectname) %(refname)", &most, "refs/heads/", "refs/tags/"]);
    let output = repository.run_checked(git).await?;
    let unreadable =
        || GitError::Other { message: "a branch or a tag has a name that is not UTF-8".to_owned() };
    let text = String::from_utf8(output.stdout).map_err(|_| unreadable())?;
    let refs: Vec<ExportedRef> = text.lines().filter_map(parse_ref).collect();
    if output.truncated || refs.len() > max_refs {
        let message = format!(
            "the repository has more than {max_refs} branches and tags, or than {max_list_bytes} bytes of their names; clone one branch, by `branch` and `depth`"
        );
        return Err(GitError::Other { message }.into());
    }
    let (branch, commit, boundary) =
        tokio::try_join!(repository.branch(), repository.head(), boundary::load(repository))?;
    let head = branch.or_else(|| detached_head_branch(&refs, commit.as_deref()?));
    Ok(Exported { head, commit, refs, boundary })
}

/// The branch to check out in a clone of a source with a detached `HEAD`, as git selects it: one at that commit.
fn detached_head_branch(refs: &[ExportedRef], commit: &str) -> Option<String> {
    let mut branches =
        refs.iter().filter(|one| one.id == commit).filter_map(|one| one.name.strip_prefix("refs/heads/"));
    let default_branch = branches.clone().find(|name| ["main", "master"].contains(name));
    default_branch.or_else(|| branches.next()).map(str::to_owned)
}

fn parse_ref(line: &str) -> Option<ExportedRef> {
    let (id, name) = line.split_once(' ')?;
    is_hash(id).then(|| ExportedRef { name: name.to_owned(), id: id.to_owned() })
}

/// Refuses a missing branch before anything is packed.
fn check_branch(exported: &Exported, branch: Option<&str>) -> Result<(), Error> {
    let Some(branch) = branch else { return Ok(()) };
    let is_named = |name: &str| {
        name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/")) == Some(branch)
    };
    if exported.refs.iter().any(|one| is_named(&one.name)) {
        return Ok(());
    }
    Err(GitError::UnknownRevision { revision: branch.to_owned() }.into())
}

async fn pack_export(
    repository: &Repository,
    exported: &Exported,
    export: &GitExport,
) -> Result<Content, Error> {
    let mut wanted = String::new();
    // Input for pack-objects(1): commits below the boundary are not known at the destination.
    for begin in boundary::existing_commits(repository, &export.has_boundary).await? {
        let _ = writeln!(wanted, "--shallow {begin}");
    }
    for id in exported.refs.iter().map(|one| &one.id).chain(&exported.commit) {
        let _ = writeln!(wanted, "{id}");
    }
    if wanted.is_empty() {
        return Ok(no_content());
    }
    for known in boundary::existing_commits(repository, &export.has).await? {
        let _ = writeln!(wanted, "^{known}");
    }
    pack_revisions(repository, wanted)
}
