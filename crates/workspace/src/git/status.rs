//! Reports the changes in a work tree.

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{ChangedPath, GitStatus, RepositoryStatus},
    path::encode_path,
};

use super::{
    GitError,
    raw_diff::{change_kind, changed_path, file_path, parse_number},
    repository::{Repository, is_hash},
};
use crate::{Error, Place, Run};

impl Run for GitStatus {
    async fn run(self, place: &Place) -> Result<RepositoryStatus, Error> {
        let repository = Repository::find_to_read(place, Some(&self.path)).await?;
        repository.work_tree()?;
        let mut status = compute_status(&repository, "--find-renames").await?;
        if !status.conflicted.is_empty() {
            // Git may detect a rename from a deleted file to a file in conflict, and then omits the deletion.
            let without_renames = compute_status(&repository, "--no-renames").await?;
            replace_modified(&mut status, without_renames.modified);
        }
        (status.path, status.path_encoding) = encode_path(self.path.as_path().as_os_str());
        Ok(status)
    }
}

async fn compute_status(repository: &Repository, renames: &str) -> Result<RepositoryStatus, Error> {
    let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES).args([
        "status",
        "--porcelain=v2",
        "--branch",
        "-z",
        "--untracked-files=all",
        "--ignore-submodules=dirty",
        renames,
    ]);
    let output = repository.run_checked(git).await?;
    let read = if output.truncated { parse_cut(&output.stdout) } else { parse_status(&output.stdout) };
    Ok(read.ok_or(GitError::UnexpectedOutput { command: "status" })?)
}

/// Replaces the list of modified files, cut to the budget that the other lists leave.
fn replace_modified(status: &mut RepositoryStatus, modified: Vec<ChangedPath>) {
    let mut budget = Budget::default();
    for file in &status.staged {
        budget.try_add(file);
    }
    for file in status.untracked.iter().chain(&status.conflicted) {
        budget.try_add(file);
    }
    status.modified = modified.into_iter().map_while(|file| budget.take_if_fits(file)).collect();
    status.truncated |= budget.is_exhausted();
}

/// Parses the complete fields of output that was cut.
fn parse_cut(text: &[u8]) -> Option<RepositoryStatus> {
    let end = text.iter().rposition(|byte| *byte == 0)?;
    // The earlier path of a renamed file is a separate field, which may be missing.
    let status = parse_status(&text[..end])
        .or_else(|| parse_status(&text[..text[..end].iter().rposition(|byte| *byte == 0)?]))?;
    Some(RepositoryStatus { truncated: true, ..status })
}

/// Parses porcelain format 2, separated by zero bytes (git-status(1)). `None` for output that git does not produce.
fn parse_status(text: &[u8]) -> Option<RepositoryStatus> {
    let mut status = RepositoryStatus {
        path: String::new(),
        path_encoding: None,
        branch: None,
        head: None,
        detached: false,
        upstream: None,
        ahead: None,
        behind: None,
        staged: Vec::new(),
        modified: Vec::new(),
        untracked: Vec::new(),
        conflicted: Vec::new(),
        clean: false,
        truncated: false,
    };
    let mut budget = Budget::default();
    let mut fields = text.split(|byte| *byte == 0);
    while let Some(field) = fields.next() {
        match field.first() {
            None => {}
            Some(b'#') => add_header(field, &mut status),
            Some(b'?') => status.untracked.extend(budget.take_if_fits(file_path(field.get(2..)?))),
            Some(b'u') => status.conflicted.extend(budget.take_if_fits(file_path(after_blanks(field, 10)?))),
            Some(b'1') => add_entry(field, after_blanks(field, 8)?, None, &mut status, &mut budget)?,
            Some(b'2') => {
                add_entry(field, after_blanks(field, 9)?, Some(fields.next()?), &mut status, &mut budget)?
            }
            Some(b'!') => {}
            Some(_) => return None,
        }
        if budget.is_exhausted() {
            break;
        }
    }
    status.truncated = budget.is_exhausted();
    let lists = [status.staged.len(), status.modified.len(), status.untracked.len(), status.conflicted.len()];
    status.clean = lists == [0; 4];
    Some(status)
}

/// The rest of a field after this number of blanks.
fn after_blanks(field: &[u8], blanks: usize) -> Option<&[u8]> {
    field.splitn(blanks + 1, |byte| *byte == b' ').nth(blanks)
}

fn add_entry(
    field: &[u8],
    path: &[u8],
    from: Option<&[u8]>,
    status: &mut RepositoryStatus,
    budget: &mut Budget,
) -> Option<()> {
    let letters = after_blanks(field, 1)?;
    let (staged, modified) = (*letters.first()?, *letters.get(1)?);
    // The letter shows which of the two was renamed.
    let from_of = |letter| from.filter(|_| matches!(letter, b'R' | b'C'));
    if staged != b'.' {
        status.staged.extend(budget.take_if_fits(changed_path(path, change_kind(staged)?, from_of(staged))));
    }
    if modified != b'.' {
        status.modified.extend(budget.take_if_fits(changed_path(
            path,
            change_kind(modified)?,
            from_of(modified),
        )));
    }
    Some(())
}

fn add_header(field: &[u8], status: &mut RepositoryStatus) {
    let text = String::from_utf8_lossy(field);
    let mut fields = text.splitn(3, ' ').skip(1);
    let (Some(name), Some(value)) = (fields.next(), fields.next()) else { return };
    match name {
        "branch.oid" => status.head = Some(value.to_owned()).filter(|hash| is_hash(hash)),
        "branch.head" if value == "(detached)" => status.detached = true,
        "branch.head" => status.branch = Some(value.to_owned()),
        "branch.upstream" => status.upstream = Some(value.to_owned()),
        "branch.ab" => {
            let mut counts = value.split(' ');
            status.ahead = counts.next().and_then(|word| parse_number(word.strip_prefix('+')?.as_bytes()));
            status.behind = counts.next().and_then(|word| parse_number(word.strip_prefix('-')?.as_bytes()));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skep_api::git::ChangeKind;

    use super::*;

    #[test]
    fn each_sort_of_line_is_read() {
        let hash = "a".repeat(40);
        let text = format!(
            "# branch.oid {hash}\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +1 -2\0\
             1 AM N... 0 1 1 {hash} {hash} a b\n\0\
             2 R. N... 1 1 1 {hash} {hash} R100 to\0from\0u UU N... 1 1 1 1 {hash} {hash} {hash} both\0? new\0"
        );
        let status = parse_status(text.as_bytes()).unwrap();
        assert_eq!((status.branch.as_deref(), status.ahead, status.behind), (Some("main"), Some(1), Some(2)));
        assert_eq!((status.staged[0].path.as_str(), status.staged[0].change), ("a b\n", ChangeKind::Added));
        assert_eq!(status.modified.len(), 1);
        assert_eq!((status.staged[1].path.as_str(), status.staged[1].from.as_deref()), ("to", Some("from")));
        assert_eq!((status.conflicted[0].path.as_str(), status.untracked[0].path.as_str()), ("both", "new"));
        assert!(!status.clean);
    }

    #[test]
    fn a_status_ends_at_its_budget_and_where_git_was_cut_off() {
        let one = format!("? {}\0", "x".repeat(4_000));
        let status = parse_status(one.repeat(5_000).as_bytes()).unwrap();
        assert!(status.truncated && !status.clean);
        assert!((4_000..5_000).contains(&status.untracked.len()), "{}", status.untracked.len());
        let json = serde_json::to_vec(&status).unwrap();
        assert!(
            json.len() <= MAX_ANSWER_BYTES && json.len() > MAX_ANSWER_BYTES - (1 << 20),
            "{}",
            json.len()
        );

        let hash = "a".repeat(40);
        let renamed = format!("2 R. N... 1 1 1 {hash} {hash} R100 to\0from\0");
        for (text, paths) in [
            ("? a\0? b\0? c".to_owned(), 2),
            (format!("? a\0{renamed}? c"), 2),
            (format!("? a\0{}", &renamed[..renamed.len() - 2]), 1),
            (format!("? a\0{}", &renamed[..renamed.len() - 7]), 1),
        ] {
            let status = parse_cut(text.as_bytes()).unwrap();
            assert!(status.truncated);
            assert_eq!(status.untracked.len() + status.staged.len(), paths, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_output_is_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_status(&text);
        }
    }
}
