//! Lists, creates and deletes tags.

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{GitChangeTag, GitTags, Tag, TagChanged, Tags},
};

use super::{
    GitError,
    commit::with_identities,
    lock::write_lock,
    repository::{Repository, check_revision},
};
use crate::{Error, Place, Run};

/// Name, object, the target of an annotated tag, object type, the first paragraph of the message.
const FORMAT: &str =
    "--format=%(refname)%00%(objectname)%00%(*objectname)%00%(objecttype)%00%(contents:subject)";

impl Run for GitTags {
    async fn run(self, place: &Place) -> Result<Tags, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES).args([
            "for-each-ref",
            FORMAT,
            "refs/tags/",
        ]);
        let output = repository.run_checked(git).await?;
        let whole =
            if output.truncated { output.stdout.iter().rposition(|byte| *byte == b'\n') } else { None };
        let text =
            String::from_utf8_lossy(&output.stdout[..whole.unwrap_or(output.stdout.len())]).into_owned();
        let mut tags: Vec<Tag> = text.lines().filter_map(parse_tag).collect();
        let truncated = Budget::default().truncate_page(&mut tags) || output.truncated;
        Ok(Tags { tags, truncated })
    }
}

fn parse_tag(line: &str) -> Option<Tag> {
    let mut fields = line.splitn(5, '\0');
    let mut next = || fields.next();
    let (name, object, behind, kind, message) = (next()?, next()?, next()?, next()?, next()?);
    let has_message = kind == "tag";
    Some(Tag {
        name: name.strip_prefix("refs/tags/")?.to_owned(),
        commit: if has_message { behind } else { object }.to_owned(),
        message: has_message.then(|| message.to_owned()),
    })
}

impl Run for GitChangeTag {
    async fn run(self, place: &Place) -> Result<TagChanged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?;
        check_tag_name(&repository, &self.name).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        if self.delete {
            let object = repository.resolve("name", &format!("refs/tags/{}", self.name), "object").await;
            let commit = object.map_err(|_| GitError::UnknownRevision { revision: self.name.clone() })?;
            repository.run_checked(repository.git().args(["tag", "-d", "--", &self.name])).await?;
            return Ok(TagChanged { name: self.name, commit, deleted: true });
        }
        let commit = repository.resolve("ref", self.revision.as_deref().unwrap_or("HEAD"), "commit").await?;
        let git = with_identities(repository.git(), &place.context().committer, &place.context().committer)
            .args(["tag", "--no-sign"]);
        let git = match self.message {
            Some(message) if message.trim().is_empty() || message.contains('\0') => {
                let reason =
                    "is empty, or holds a zero byte; leave it out, or say what the tag is for".to_owned();
                return Err(Error::InvalidValue { field: "message", reason });
            }
            Some(message) => git.args(["--annotate", "--cleanup=whitespace", "--file=-"]).stdin(message),
            None => git,
        };
        repository.run_checked(git.args(["--", &self.name, &commit])).await?;
        Ok(TagChanged { name: self.name, commit, deleted: false })
    }
}

/// Refuses names that git does not allow for tags.
async fn check_tag_name(repository: &Repository, name: &str) -> Result<(), Error> {
    check_revision("name", name)?;
    let whole = format!("refs/tags/{name}");
    if name != "HEAD"
        && repository.read_only_git().args(["check-ref-format", &whole]).run().await?.is_success()
    {
        return Ok(());
    }
    let reason = format!("is `{name}`, which is no valid name of a tag (git-check-ref-format(1))");
    Err(Error::InvalidValue { field: "name", reason })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_output_is_parsed_or_skipped(line in ".{0,80}") {
            let _ = parse_tag(&line);
        }
    }
}
