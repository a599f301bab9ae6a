//! Lists commits, newest first.

use skep_api::git::{GitLog, Log};

use super::{ObjectId, Reader, commit::ParsedCommit, read, refs::Head};
use crate::{
    Place,
    git::log::{PageStart, fit_page},
};

pub(in crate::git) async fn log(request: &GitLog, place: &Place) -> Option<Log> {
    let request = request.clone();
    // The history of a single file is left to git.
    if request.file.is_some() {
        return None;
    }
    let path = request.path.clone();
    read(place, path.as_ref(), move |reader| read_page(reader, &request)).await
}

pub(super) fn read_page(reader: &mut Reader<'_>, request: &GitLog) -> Option<Log> {
    let (commit, seen) = match (&request.cursor, &request.revision) {
        (Some(cursor), _) => {
            let PageStart { commit, offset: seen } = PageStart::parse(cursor).ok()?;
            (ObjectId::parse(commit.as_bytes())?, seen)
        }
        (None, Some(revision)) => (reader.resolve_revision(revision)?, 0),
        (None, None) => match reader.head()? {
            Head::Branch(_, None) => return Some(Log { commits: Vec::new(), next_cursor: None }),
            Head::Branch(_, Some(id)) | Head::Detached(id) => (id, 0),
        },
    };
    let limit = request.limit as usize;
    let mut page = reader.history(commit, usize::try_from(seen).ok()?, limit + 1)?;
    let more = page.len() > limit;
    page.truncate(limit);
    let commits = page.iter().map(|(id, content)| Some(ParsedCommit::parse(content)?.to_api(id)));
    let mut commits = commits.collect::<Option<Vec<_>>>()?;
    let more = fit_page(&mut commits)? || more;
    let next = PageStart { commit: commit.to_string(), offset: seen + commits.len() as u64 };
    Some(Log { commits, next_cursor: more.then(|| next.cursor()) })
}
