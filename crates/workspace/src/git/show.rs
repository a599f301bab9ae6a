//! Shows a commit with its changes, or a file in a commit.

use data_encoding::BASE64;
use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{BlobEncoding, Commit, GitDiff, GitLog, GitShow, Shown, ShownFile},
};

use super::{GitError, commit::empty_tree, repository::Repository};
use crate::{Error, Place, Run};

/// Context lines around each change.
const CONTEXT_LINES: u32 = 3;
/// Limit of binary content before its encoding as base64, in bytes.
const MAX_BINARY_BYTES: usize = MAX_ANSWER_BYTES / 4 * 3;

impl Run for GitShow {
    async fn run(self, place: &Place) -> Result<Shown, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let id = repository.resolve("ref", self.revision.as_deref().unwrap_or("HEAD"), "commit").await?;
        let log = GitLog {
            path: self.path.clone(),
            revision: Some(id.clone()),
            file: None,
            limit: 1,
            cursor: None,
        };
        let commit =
            log.run(place).await?.commits.pop().ok_or(GitError::UnexpectedOutput { command: "show" })?;
        if let Some(file) = self.file {
            let file = shown_file(&repository, &id, file).await?;
            return Ok(Shown { commit, changes: None, file: Some(file) });
        }
        let changes = changes_request(&self, &commit).run(place).await?;
        Ok(Shown { commit, changes: Some(changes), file: None })
    }
}

/// The request for the changes of a commit relative to its first parent.
fn changes_request(show: &GitShow, commit: &Commit) -> GitDiff {
    let before = commit.parents.first().map_or_else(|| empty_tree(&commit.id).to_owned(), Clone::clone);
    GitDiff {
        path: show.path.clone(),
        staged: false,
        from: Some(before),
        to: Some(commit.id.clone()),
        file: None,
        context: CONTEXT_LINES,
    }
}

async fn shown_file(repository: &Repository, commit: &str, path: String) -> Result<ShownFile, Error> {
    let object = format!("{commit}:{path}");
    let unknown =
        || GitError::UnknownPath { message: format!("there is no file `{path}` in the commit {commit}") };
    let kind = repository.read_only_git().args(["cat-file", "-t", &object]).run().await?;
    if kind.exit_code()? != 0 || kind.stdout_text() != "blob" {
        return Err(unknown().into());
    }
    let size = repository.run_checked(repository.read_only_git().args(["cat-file", "-s", &object])).await?;
    let size_bytes =
        size.stdout_text().parse().map_err(|_| GitError::UnexpectedOutput { command: "show" })?;
    let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES).args(["cat-file", "blob", &object]);
    let output = repository.run_checked(git).await?;
    let (content, encoding, shortened) = encode_content(output.stdout, output.truncated);
    Ok(ShownFile { path, content, encoding, size_bytes, truncated: output.truncated || shortened })
}

/// Encodes content as text or base64, and returns whether it was shortened. If `cut` is set, the content may end
/// within a character.
fn encode_content(bytes: Vec<u8>, cut: bool) -> (String, BlobEncoding, bool) {
    let (text, bytes) = match String::from_utf8(bytes) {
        Ok(text) => (Some(text), Vec::new()),
        Err(error) => {
            let whole = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            if cut && bytes.len() - whole < 4 {
                bytes.truncate(whole);
                (String::from_utf8(bytes).ok(), Vec::new())
            } else {
                (None, bytes)
            }
        }
    };
    match text {
        Some(mut text) => {
            let shortened = Budget::default().truncate_text(&mut text);
            (text, BlobEncoding::Utf8, shortened)
        }
        None => {
            let part = &bytes[..bytes.len().min(MAX_BINARY_BYTES - 1)];
            (BASE64.encode(part), BlobEncoding::Base64, part.len() < bytes.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_text_where_it_can_be() {
        assert_eq!(encode_content(b"a\n".to_vec(), false), ("a\n".to_owned(), BlobEncoding::Utf8, false));
        assert_eq!(encode_content(vec![0xff], false), ("/w==".to_owned(), BlobEncoding::Base64, false));
        assert_eq!(
            encode_content("aé".as_bytes()[..2].to_vec(), true),
            ("a".to_owned(), BlobEncoding::Utf8, false)
        );
        let (text, _, shortened) = encode_content(vec![0xff; MAX_ANSWER_BYTES], true);
        assert!(shortened && text.len() <= MAX_ANSWER_BYTES);
    }
}
