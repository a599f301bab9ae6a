//! Checks that the machine has git, in a version that skep was tested with.

use std::process::Command;

use super::Finding;

/// The newest git that the tests ran with. Newer versions may have settings that start programs and that skep does not
/// refuse yet.
const NEWEST_TESTED: (u32, u32) = (2, 47);
const CHECK: &str = "git";

pub(super) fn finding() -> Finding {
    let output = Command::new("git").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match text {
        Ok(text) => assess(&text),
        Err(error) => Finding::warning(
            CHECK,
            format!("does not start ({error}): calls of /api/git are refused"),
            "apt-get install git",
        ),
    }
}

/// Assesses the output of `git --version`.
fn assess(text: &str) -> Finding {
    let (major, minor) = NEWEST_TESTED;
    match version(text) {
        Some(version) if version > NEWEST_TESTED => Finding::warning(
            CHECK,
            format!(
                "{text} is newer than the newest one tested ({major}.{minor}): settings of repositories may start \
                 programs in ways that are not refused, but only confined"
            ),
            format!("update skep, or install git {major}.{minor}"),
        ),
        Some(_) => Finding::ok(CHECK, text),
        None => Finding::warning(
            CHECK,
            format!("`git --version` prints {text:?}, which is not a version"),
            "install git from a package of your distribution",
        ),
    }
}

/// Parses major and minor version from `git version 2.47.3`, with or without a distribution's suffix.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{super::State, assess};

    #[test]
    fn a_git_newer_than_the_newest_tested_one_is_named() {
        for tested in ["git version 2.39.5", "git version 2.47.3", "git version 2.9.5 (Apple Git-1)"] {
            assert_eq!(assess(tested).state, State::Ok, "{tested}");
        }
        for newer in ["git version 2.48.0", "git version 2.54.0-rc1", "git version 3.0.0"] {
            let finding = assess(newer);
            assert_eq!(finding.state, State::Warning, "{newer}");
            assert!(finding.detail.contains(newer) && finding.detail.contains("2.47"), "{}", finding.detail);
        }
        for unknown in ["", "hub 3", "git version two.three"] {
            assert_eq!(assess(unknown).state, State::Warning, "{unknown:?}");
        }
    }
}
