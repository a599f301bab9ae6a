//! Secrets of a git process, and how it ends.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::{MemfdFlags, memfd_create};
use skep_api::{
    ErrorCode,
    git::{Credential, GitReach},
};

use super::super::{
    callback::Callback,
    config::ConfigOverrides,
    credentials::{password_callback, ssh_key_socket},
    program::{Git, PATH},
    remote::Remote,
};
use crate::Place;

/// Makes the test binary serve git's callbacks as `skep` does. Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static SERVE_GIT_CALLBACK: extern "C" fn() = {
    extern "C" fn answer() {
        if let Some(status) = super::super::serve_git_callback() {
            std::process::exit(status.into());
        }
    }
    answer
};

/// A workspace without a fence.
fn unfenced_place() -> Place {
    Place::new("/", "/", BTreeMap::new(), PathBuf::new())
}

const TOKEN: &str = "a-very-secret-token";

#[tokio::test]
async fn a_token_reaches_git_for_its_host_alone_and_is_in_no_variable() {
    let folder = tempfile::tempdir().unwrap();
    let credential = Credential { username: "ada".to_owned(), token: TOKEN.to_owned() };
    assert!(!format!("{credential:?}").contains(TOKEN));
    let (settings, callback) =
        password_callback(ConfigOverrides::default(), "git.example", &credential).unwrap();
    let environment = format!("{:?} {:?}", settings.as_parameters(), callback.env());
    assert!(!environment.contains(TOKEN), "{environment}");
    let fill = async |protocol: &str, host: &str| {
        let asked = format!("protocol={protocol}\nhost={host}\n\n");
        let git =
            Git::new(&unfenced_place(), folder.path(), &settings).args(["credential", "fill"]).stdin(asked);
        let git = git.inherit_fds(callback.descriptors.iter().cloned());
        callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value)).run().await.unwrap()
    };
    // Twice, because git prompts for each connection.
    for _ in 0..2 {
        let output = fill("https", "git.example").await;
        assert!(
            output.is_success() && output.stdout_text().contains(&format!("username=ada\npassword={TOKEN}")),
            "{output:?}"
        );
    }
    for (protocol, host) in
        [("https", "other.example"), ("http", "git.example"), ("https", "git.example.evil")]
    {
        let output = fill(protocol, host).await;
        assert!(!output.is_success() && !output.message().contains(TOKEN), "{protocol}://{host}: {output:?}");
    }
}

/// What git prints when this file of its repository is a link to a descriptor that it inherits.
async fn printed_through_link(file: &str, arguments: &[&str], descriptor: OwnedFd) -> String {
    let folder = tempfile::tempdir().unwrap();
    let git = || Git::new(&unfenced_place(), folder.path(), &ConfigOverrides::default());
    succeed(git().args(["init", "--quiet", "--bare", "."])).await;
    let link = folder.path().join(file);
    symlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), link).unwrap();
    let git = git().args(arguments).inherit_fds([Arc::new(descriptor)]);
    git.run().await.unwrap().message()
}

#[tokio::test]
async fn git_prints_no_secret_that_a_link_of_the_repository_names() {
    let credential = Credential { username: String::new(), token: format!("{TOKEN}\n") };
    let missing = "0123456789".repeat(4);
    for (file, arguments) in [
        ("packed-refs", &["for-each-ref"][..]),
        ("shallow", &["rev-parse", "--is-shallow-repository"]),
        ("objects/info/alternates", &["cat-file", "-t", &missing]),
    ] {
        let printed = printed_through_link(file, arguments, ssh_key_socket(&credential).unwrap()).await;
        assert!(!printed.contains(TOKEN), "{file}: {printed}");
        let mut memory_file = fs::File::from(memfd_create("secret", MemfdFlags::CLOEXEC).unwrap());
        memory_file.write_all(credential.token.as_bytes()).unwrap();
        let printed = printed_through_link(file, arguments, memory_file.into()).await;
        assert!(printed.contains(TOKEN), "the control: {file}: {printed}");
    }
}

/// Prints the public keys of the agent that its options name, and fails.
const FAKE_SSH: &str = "#!/bin/sh\ntrace=\"$(dirname \"$0\")/trace\"; echo \"$@\" >>\"$trace\"\n\
    for option; do case \"$option\" in IdentityAgent=*) agent=\"${option#*=}\" ;; esac; done\n\
    SSH_AUTH_SOCK=\"$agent\" ssh-add -L >>\"$trace\"; exit 7\n";

/// Writes this script as the program `ssh` into a folder.
fn install_ssh(folder: &Path, ssh: &str) {
    let program = folder.join("ssh");
    // By another process: a file cannot be executed while a process that another test starts has it open for writing.
    let script = r#"printf "%s" "$2" > "$1""#;
    let mut writer = std::process::Command::new("sh");
    let written = writer.args(["-euc", script, "sh"]).arg(&program).arg(ssh).status().unwrap();
    assert!(written.success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A new private key with this passphrase, and its public key.
fn ssh_keys(passphrase: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let mut keygen = std::process::Command::new("ssh-keygen");
    let options = ["-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f"];
    let made = keygen.args(options).arg(&file).status().unwrap();
    assert!(made.success());
    let read = |file: &Path| fs::read_to_string(file).unwrap();
    (read(&file), read(&file.with_extension("pub")).trim().to_owned())
}

#[tokio::test]
async fn a_key_reaches_ssh_in_an_agent_that_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    install_ssh(folder.path(), FAKE_SSH);
    let (private, public) = ssh_keys("");
    let credential = Credential { username: String::new(), token: private };
    let key = ssh_key_socket(&credential).unwrap();
    let callback = Callback::ssh(vec!["-o".to_owned(), "HostName=192.0.2.1".to_owned()], Some(key)).unwrap();
    let git = Git::new(&unfenced_place(), Path::new("/"), &ConfigOverrides::default())
        .env("GIT_ALLOW_PROTOCOL", "ssh");
    let git = git.env("PATH", format!("{}:{PATH}", folder.path().display()));
    let git =
        git.inherit_fds(callback.descriptors.iter().cloned()).args(["ls-remote", "ssh://git@host:22/x y"]);
    let git = callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value));
    let output = git.run().await.unwrap();
    assert!(!output.is_success(), "{output:?}");
    let trace = fs::read_to_string(folder.path().join("trace")).unwrap_or_else(|_| panic!("{output:?}"));
    let (line, keys) = trace.split_once('\n').unwrap();
    let options = "-o HostName=192.0.2.1 -o IdentityFile=none -o IdentityAgent=";
    let (agent, rest) = line.strip_prefix(options).unwrap().split_once(' ').unwrap();
    assert!(rest.ends_with("-p 22 git@host git-upload-pack '/x y'"), "{rest}");
    assert!(keys.starts_with(&public), "{keys}");
    assert!(!std::env::temp_dir().join(agent).exists() && !is_running(agent), "{agent}");
}

#[tokio::test]
async fn a_key_that_is_none_or_has_a_passphrase_is_refused() {
    for token in ["no key\n".to_owned(), ssh_keys("a passphrase").0] {
        let credential = Credential { username: String::new(), token };
        let callback = Callback::ssh(Vec::new(), Some(ssh_key_socket(&credential).unwrap())).unwrap();
        let git = Git::new(&unfenced_place(), Path::new("/"), &ConfigOverrides::default());
        let git = git.env("GIT_ALLOW_PROTOCOL", "ssh").inherit_fds(callback.descriptors.iter().cloned());
        let git = callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value));
        let output = git.args(["ls-remote", "ssh://git@192.0.2.1/x"]).run().await.unwrap();
        assert!(output.message().contains("a private key without a passphrase"), "{output:?}");
    }
}

/// Behaves like an ssh whose remote is this machine: runs the command, which is its last argument, without the caller's
/// variables.
const CONNECTED_SSH: &str = "#!/bin/sh\necho \"$@\" >>\"$(dirname \"$0\")/trace\"\nfor command; do :; done\n\
    exec env -i PATH=\"$PATH\" sh -c \"$command\"\n";

/// Runs a git, which must succeed, and returns what it prints.
async fn succeed(git: Git) -> String {
    let output = git.run().await.unwrap();
    assert!(output.is_success(), "{output:?}");
    output.stdout_text()
}

#[tokio::test]
async fn a_remote_is_cloned_pushed_to_and_pulled_from_by_ssh_without_questions_or_config_files() {
    let folder = tempfile::tempdir().unwrap();
    install_ssh(folder.path(), CONNECTED_SSH);
    let settings = ConfigOverrides::default();
    let local = async |arguments: &[&str]| {
        succeed(Git::new(&unfenced_place(), folder.path(), &settings).args(arguments)).await
    };
    local(&["init", "--quiet", "--bare", "--initial-branch=main", "remote.git"]).await;
    // The host is another spelling of 127.0.0.1, so that it differs from the address that was checked.
    let url = format!("ssh://git@127.1:2222{}", folder.path().join("remote.git").display());
    let reach = GitReach { allow: vec!["127.0.0.0/8".to_owned()], ..GitReach::default() };
    let transport = Remote::parse(&url).unwrap().connect(&url, &reach, &settings).await.unwrap();
    let by_ssh = async |arguments: &[&str]| {
        let git = transport.git(|settings| Git::new(&unfenced_place(), folder.path(), settings));
        succeed(git.env("PATH", format!("{}:{PATH}", folder.path().display())).args(arguments)).await
    };
    let commit = async |message: &str| {
        let person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let made = ["commit", "--quiet", "--allow-empty", "-m", message];
        local(&[&["-C", "one"][..], &person, &made].concat()).await
    };
    by_ssh(&["clone", "--quiet", &url, "one"]).await;
    commit("First").await;
    by_ssh(&["-C", "one", "push", "--quiet", "origin", "HEAD:main"]).await;
    by_ssh(&["clone", "--quiet", &url, "two"]).await;
    assert_eq!(local(&["-C", "two", "log", "--format=%s"]).await, "First");
    commit("Second").await;
    by_ssh(&["-C", "one", "push", "--quiet", "origin", "HEAD:main"]).await;
    by_ssh(&["-C", "two", "pull", "--quiet"]).await;
    assert_eq!(local(&["-C", "two", "log", "--format=%s"]).await, "Second\nFirst");
    let trace = fs::read_to_string(folder.path().join("trace")).unwrap();
    assert_eq!(trace.lines().count(), 5, "{trace}");
    for line in trace.lines() {
        assert!(line.starts_with("-F /dev/null -o ") && line.contains(" -p 2222 git@127.1 git-"), "{line}");
        for option in ["BatchMode=yes", "ProxyCommand=none", "HostKeyAlias=127.1", "HostName=127.0.0.1"] {
            assert!(line.contains(&format!(" -o {option} ")), "{option}: {line}");
        }
    }
}

/// Whether a process with this argument is running.
fn is_running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
}

async fn wait_until(mut holds: impl FnMut() -> bool) {
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
    Git::new(&unfenced_place(), std::path::Path::new("/"), &ConfigOverrides::default())
        .args(["-c", &alias, "slow"])
}

#[tokio::test]
async fn a_git_that_is_too_slow_ends_with_all_that_it_started() {
    let number = "98761";
    let git = slow(number).timeout(Duration::from_secs(2)).run();
    let refused = git.await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::GitTimeout);
    wait_until(|| !is_running(number)).await;
}

#[tokio::test]
async fn a_git_ends_when_its_future_is_dropped() {
    let number = "98762";
    let git = tokio::spawn(slow(number).run());
    wait_until(|| is_running(number)).await;
    git.abort();
    wait_until(|| !is_running(number)).await;
}

#[tokio::test]
async fn a_git_that_exceeds_its_output_limit_is_ended() {
    let git = Git::new(&unfenced_place(), std::path::Path::new("/"), &ConfigOverrides::default());
    let output = git.args(["-c", "alias.yes=!yes", "yes"]).max_output(100_000).run().await.unwrap();
    assert!(output.truncated && output.stdout.len() == 100_000);
}
