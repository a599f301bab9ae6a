//! Log and branches of random histories, beside the lists of plain git.

use proptest::{prelude::*, test_runner::TestCaseError};
use skep_api::git::{Commit, Signature};

use super::*;

/// A random change to a repository.
#[derive(Debug, Clone)]
enum Step {
    Commit { message: String, later: i64 },
    Branch(u8),
    Checkout(u8),
    Merge(Vec<u8>),
    Tag(u8, bool),
    Follow(u8, u8),
    Pack,
    PackReferences,
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let message = "(\n)?[ -~é\t]{0,12}(\n[ -~]{0,6}){0,4}(\r\n)?\n{0,2}";
    prop_oneof![
        6 => (message, -3_i64..10).prop_map(|(message, later)| Step::Commit { message, later }),
        2 => (0..5_u8).prop_map(Step::Branch),
        2 => (0..5_u8).prop_map(Step::Checkout),
        3 => prop::collection::vec(0..5_u8, 1..3).prop_map(Step::Merge),
        1 => (0..3_u8, any::<bool>()).prop_map(|(name, annotated)| Step::Tag(name, annotated)),
        2 => (0..5_u8, 0..5_u8).prop_map(|(branch, upstream)| Step::Follow(branch, upstream)),
        1 => Just(Step::Pack),
        1 => Just(Step::PackReferences),
        1 => (0..5_u8).prop_map(Step::Delete),
    ]
}

/// Applies a step; impossible ones have no effect.
fn apply_step(fixture: &Fixture, step: &Step, now: &mut i64, serial: usize) {
    let seconds = u64::try_from(*now).unwrap();
    let run = |arguments: &[&str]| drop(fixture.try_git(seconds, arguments));
    let branch = |number: &u8| format!("b/{number}");
    match step {
        Step::Commit { message, later } => {
            *now += later;
            fs::write(fixture.at(&format!("file{}", serial % 3)), format!("{serial}\n{message}")).unwrap();
            run(&["add", "."]);
            run(&[
                "commit",
                "-q",
                "--cleanup=verbatim",
                "--allow-empty-message",
                "--allow-empty",
                "-m",
                message,
            ]);
        }
        Step::Branch(number) => run(&["branch", &branch(number)]),
        Step::Checkout(4) => run(&["checkout", "-q", "--detach"]),
        Step::Checkout(number) => run(&["checkout", "-q", &branch(number)]),
        Step::Merge(others) => {
            let others: Vec<_> = others.iter().map(branch).collect();
            let arguments = ["merge", "-q", "-s", "ours", "--no-ff", "-m", "Join"];
            run(&arguments.into_iter().chain(others.iter().map(String::as_str)).collect::<Vec<_>>());
        }
        Step::Tag(number, true) => run(&["tag", "-f", "-a", "-m", "Tag", &format!("t{number}")]),
        Step::Tag(number, false) => run(&["tag", "-f", &format!("t{number}")]),
        Step::Follow(one, other) => run(&["branch", "-u", &branch(other), &branch(one)]),
        Step::Pack => run(&["gc", "-q"]),
        Step::PackReferences => run(&["pack-refs", "--all"]),
        Step::Delete(number) => run(&["branch", "-q", "-D", &branch(number)]),
    }
}

/// What plain git says about each commit.
const FORMAT: &str = "--format=%H%n%P%n%an <%ae> %at%n%cn <%ce> %ct%n%s%n%b%x01";

fn listed(commit: &Commit) -> String {
    let person = |who: &Signature| format!("{} <{}> {}", who.name, who.email, who.date.as_second());
    let Commit { id, parents, author, committer, subject, body } = commit;
    format!("{id}\n{}\n{}\n{}\n{subject}\n{body}", parents.join(" "), person(author), person(committer))
}

/// Compares the pages of a log with plain git's.
fn compare_log(fixture: &Fixture, name: &str, revision: &str, limit: u32) -> Result<(), TestCaseError> {
    let folder = fixture.at(name).display().to_string();
    let output = fixture.try_git(0, &["-C", &folder, "log", FORMAT, revision, "--"]);
    let (mut commits, mut cursor) = (Vec::new(), None);
    loop {
        let page =
            GitLog { revision: Some(revision.to_owned()), limit, cursor: cursor.take(), ..fixture.log(name) };
        match fixture.try_answer(page) {
            Ok(page) => {
                prop_assert!(page.commits.len() <= limit as usize);
                commits.extend(page.commits.iter().map(listed));
                cursor = page.next_cursor;
            }
            Err(error) => prop_assert!(!output.status.success(), "{}", error),
        }
        if cursor.is_none() {
            break;
        }
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = text.split('\u{1}').map(str::trim).filter(|commit| !commit.is_empty());
    let commits = commits.iter().map(|commit| commit.trim()).collect::<Vec<_>>();
    prop_assert_eq!(commits, expected.collect::<Vec<_>>());
    Ok(())
}

fn compare_branches(fixture: &Fixture, name: &str) -> Result<(), TestCaseError> {
    let folder = fixture.at(name).display().to_string();
    let answer = fixture.answer(fixture.branches(name));
    let format = "--format=%(refname:lstrip=2) %(objectname)%(if)%(symref)%(then) alias%(end)";
    let all = fixture.git(&["-C", &folder, "for-each-ref", format, "refs/heads", "refs/remotes"]);
    let expected = all.lines().filter(|line| !line.ends_with(" alias"));
    let branches = answer.branches.iter().map(|branch| format!("{} {}", branch.name, branch.commit));
    prop_assert_eq!(branches.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_time: 60_000, ..ProptestConfig::default() })]

    /// Merges, tags, packs, a detached head, dates that go back.
    #[test]
    fn answers_are_those_of_plain_git(steps in prop::collection::vec(step(), 1..24), limit in 1..6_u32) {
        let fixture = Fixture::new();
        let mut now = 1_700_000_000;
        for (serial, step) in steps.iter().enumerate() {
            apply_step(&fixture, step, &mut now, serial);
        }
        compare_branches(&fixture, "")?;
        for revision in ["HEAD", "main", "b/1", "t0", "t1", "refs/heads/b/2", "heads/b/0", "tags/t2"] {
            compare_log(&fixture, "", revision, limit)?;
        }
        fixture.git(&["clone", "-q", "--bare", ".", "bare.git"]);
        fixture.git(&["clone", "-q", ".", "clone"]);
        for name in ["bare.git", "clone"] {
            compare_branches(&fixture, name)?;
            compare_log(&fixture, name, "HEAD", limit)?;
        }
    }
}
