//! Lists branches and their distance to their upstreams.

use skep_api::{
    budget::Budget,
    git::{Branch, Branches, GitBranches},
};

use super::{ObjectId, Reader, read, refs::Head};
use crate::{Place, git::config::ConfigEntry};

pub(in crate::git) async fn branches(request: &GitBranches, place: &Place) -> Option<Branches> {
    let remote = request.remote;
    read(place, request.path.as_ref(), move |reader| list_branches(reader, remote)).await
}

pub(super) fn list_branches(reader: &mut Reader<'_>, remote: bool) -> Option<Branches> {
    let current = match reader.head()? {
        Head::Branch(name, _) => Some(name),
        Head::Detached(_) => None,
    };
    let (mut branches, mut budget) = (Vec::new(), Budget::default());
    let folders = [("refs/heads/", false), ("refs/remotes/", true)];
    for (folder, is_remote) in folders.into_iter().filter(|(_, is_remote)| remote || !is_remote) {
        for (whole, id) in reader.refs_below(folder.trim_end_matches('/'))? {
            let branch = describe_branch(reader, whole.strip_prefix(folder)?, id, is_remote)?;
            if !budget.try_add(&branch) {
                break;
            }
            branches.push(branch);
        }
    }
    Some(Branches { detached: current.is_none(), current, branches, truncated: budget.is_exhausted() })
}

fn describe_branch(reader: &mut Reader<'_>, name: &str, id: ObjectId, remote: bool) -> Option<Branch> {
    reader.check_active()?;
    // A branch whose commit is missing is left to git.
    reader.objects.read_commit(&id)?;
    let upstream = if remote { None } else { upstream_ref(&reader.repository.config, name)? };
    let (short, counts) = match &upstream {
        None => (None, None),
        Some(whole) => {
            let counts = match reader.resolve_ref(whole)? {
                Some(theirs) => Some(reader.ahead_behind(id, theirs)?),
                None => None,
            };
            (Some(reader.short_upstream(whole)?.to_owned()), counts)
        }
    };
    let (ahead, behind) = counts.unzip();
    Some(Branch { name: name.to_owned(), commit: id.to_string(), upstream: short, ahead, behind, remote })
}

/// The full name of a branch's upstream. The outer `Option` is `None` if the config is not that of an ordinary clone.
pub(super) fn upstream_ref(own: &[ConfigEntry], branch: &str) -> Option<Option<String>> {
    let values = |key: String| -> Option<Vec<&str>> {
        let all = own.iter().filter(|own| own.key == key.as_bytes());
        all.map(|own| std::str::from_utf8(own.value.as_deref()?).ok()).collect()
    };
    let remotes = values(format!("branch.{branch}.remote"))?;
    let merges = values(format!("branch.{branch}.merge"))?;
    let (remote, merge) = match (remotes.as_slice(), merges.as_slice()) {
        ([], []) => return Some(None),
        ([remote], [merge]) => (*remote, merge.strip_prefix("refs/heads/")?),
        _ => return None,
    };
    if remote == "." {
        return Some(Some(format!("refs/heads/{merge}")));
    }
    let fetched = values(format!("remote.{remote}.fetch"))?;
    let default_refspec = format!("+refs/heads/*:refs/remotes/{remote}/*");
    // Without a URL it does not count as a remote.
    let is_remote = !values(format!("remote.{remote}.url"))?.is_empty();
    (fetched == [default_refspec.as_str()] && is_remote)
        .then(|| Some(format!("refs/remotes/{remote}/{merge}")))
}
