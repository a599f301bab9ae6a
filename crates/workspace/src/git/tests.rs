//! Secrets of a git process, and how it ends.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use skep_api::{ErrorCode, git::Credential};

use super::{
    callback::Callback,
    credentials::{hand_over, hand_over_key},
    program::{Git, PATH},
    settings::Settings,
};
use crate::Place;

/// Makes the test binary serve git's callbacks as `skep` does. Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static ANSWER_GIT: extern "C" fn() = {
    extern "C" fn answer() {
        if let Some(status) = super::answer_git() {
            std::process::exit(status.into());
        }
    }
    answer
};

/// A workspace without a fence.
fn nowhere() -> Place {
    Place::new("/", "/", BTreeMap::new(), PathBuf::new())
}

const TOKEN: &str = "a-very-secret-token";

#[tokio::test]
async fn a_token_reaches_git_for_its_host_alone_and_stands_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let credential = Credential { username: "ada".to_owned(), token: TOKEN.to_owned() };
    assert!(!format!("{credential:?}").contains(TOKEN));
    let (settings, callback) = hand_over(Settings::default(), "git.example", &credential).unwrap();
    let environment = format!("{:?} {:?}", settings.as_parameters(), callback.env());
    assert!(!environment.contains(TOKEN), "{environment}");
    let fill = async |protocol: &str, host: &str| {
        let asked = format!("protocol={protocol}\nhost={host}\n\n");
        let git = Git::new(&nowhere(), folder.path(), &settings).args(["credential", "fill"]).stdin(asked);
        let git = git.passing(callback.descriptors.iter().cloned());
        callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value)).run().await.unwrap()
    };
    // Twice, because git prompts for each connection.
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

/// Behaves like ssh: closes inherited descriptors and reads the file of its option `-i`.
const LIKE_SSH: &str = "#!/bin/sh\nfor number in 3 4 5 6 7 8 9; do eval \"exec $number>&-\"; done\n\
    trace=\"$(dirname \"$0\")/trace\"; echo \"$@\" >>\"$trace\"\n\
    while [ \"$1\" != -i ]; do shift; done\nstat -Lc %a \"$2\" >>\"$trace\"; cat \"$2\" >>\"$trace\"; exit 7\n";

#[tokio::test]
async fn a_key_reaches_an_ssh_that_closes_all_it_inherits() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ssh");
    fs::write(&program, LIKE_SSH).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let credential = Credential { username: String::new(), token: "the key\n".to_owned() };
    let key = hand_over_key(&credential).unwrap();
    let callback = Callback::ssh(vec!["-o".to_owned(), "HostName=192.0.2.1".to_owned()], Some(key)).unwrap();
    let git = Git::new(&nowhere(), Path::new("/"), &Settings::default()).env("GIT_ALLOW_PROTOCOL", "ssh");
    let git = git.env("PATH", format!("{}:{PATH}", folder.path().display()));
    let git = git.passing(callback.descriptors.iter().cloned()).args(["ls-remote", "ssh://git@host:22/x y"]);
    let git = callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value));
    let said = git.run().await.unwrap();
    assert!(!said.done(), "{said:?}");
    let trace = fs::read_to_string(folder.path().join("trace")).unwrap_or_else(|_| panic!("{said:?}"));
    let (line, rest) = trace.split_once('\n').unwrap();
    assert!(line.starts_with("-o HostName=192.0.2.1 -o IdentitiesOnly=yes -i /proc/"), "{line}");
    assert!(line.ends_with("-p 22 git@host git-upload-pack '/x y'"), "{line}");
    assert_eq!(rest, "600\nthe key\n");
}

/// Whether a process with this argument is running.
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

/// A git that starts a long-running program.
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
