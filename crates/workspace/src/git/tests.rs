//! What a started git gets, and how it ends.

use std::{collections::BTreeMap, fs, os::unix::ffi::OsStrExt, path::PathBuf, sync::Arc, time::Duration};

use skep_api::{ErrorCode, git::Credential};

use super::{credentials::hand_over, program::Git, settings::Settings};
use crate::Place;

/// A place without a fence.
fn nowhere() -> Place {
    Place::new("/", "/", BTreeMap::new(), PathBuf::new())
}

const TOKEN: &str = "a-very-secret-token";

#[tokio::test]
async fn a_token_reaches_git_for_its_host_alone_and_stands_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let credential = Credential { username: "ada".to_owned(), token: TOKEN.to_owned() };
    assert!(!format!("{credential:?}").contains(TOKEN));
    let (settings, descriptor) = hand_over(Settings::default(), "git.example", &credential).unwrap();
    let environment = settings.as_parameters();
    assert!(!environment.as_bytes().windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()));
    let descriptor = Arc::new(descriptor);
    let fill = async |protocol: &str, host: &str| {
        let asked = format!("protocol={protocol}\nhost={host}\n\n");
        let git = Git::new(&nowhere(), folder.path(), &settings).args(["credential", "fill"]).stdin(asked);
        git.passing(Some(Arc::clone(&descriptor))).run().await.unwrap()
    };
    // Twice: git asks for each connection.
    for _ in 0..2 {
        let said = fill("https", "git.example").await;
        assert!(said.done() && said.line().contains(&format!("username=ada\npassword={TOKEN}")), "{said:?}");
    }
    for (protocol, host) in
        [("https", "other.example"), ("http", "git.example"), ("https", "git.example.evil")]
    {
        let said = fill(protocol, host).await;
        assert!(!said.done() && !said.words().contains(TOKEN), "{protocol}://{host}: {said:?}");
    }
}

/// Whether a process with this argument runs.
fn runs(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
}

async fn until(mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap();
}

/// A git that starts a program which runs for long.
fn slow(number: &str) -> Git {
    let alias = format!("alias.slow=!exec sleep {number}");
    Git::new(&nowhere(), std::path::Path::new("/"), &Settings::default()).args(["-c", &alias, "slow"])
}

#[tokio::test]
async fn a_git_that_is_too_slow_ends_with_all_that_it_started() {
    let number = "98761";
    let git = slow(number).within(Duration::from_secs(2)).run();
    let refused = git.await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::GitTimeout);
    until(|| !runs(number)).await;
}

#[tokio::test]
async fn a_git_that_nobody_awaits_ends() {
    let number = "98762";
    let git = tokio::spawn(slow(number).run());
    until(|| runs(number)).await;
    git.abort();
    until(|| !runs(number)).await;
}

#[tokio::test]
async fn what_says_too_much_is_ended() {
    let git = Git::new(&nowhere(), std::path::Path::new("/"), &Settings::default());
    let said = git.args(["-c", "alias.yes=!yes", "yes"]).at_most(100_000).run().await.unwrap();
    assert!(said.cut && said.out.len() == 100_000);
}
