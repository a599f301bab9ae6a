//! The programs that git starts to ask for a password and to run ssh: the running executable, so that no shell is
//! needed.
//!
//! ```text
//! git ── GIT_ASKPASS, GIT_SSH_COMMAND ──► this executable: serve_git_callback ── the secret: in an inherited socket
//! ```

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    process::Command,
    sync::Arc,
};

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

use super::{credentials::read_inherited, ssh_agent::SshAgent};

/// The environment variable that carries a [`CallbackRequest`].
const REQUEST_VARIABLE: &str = "SKEP_GIT_CALLBACK";

/// What the executable does when git starts it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CallbackRequest {
    /// Answers git's prompts for user and password of this host only.
    Password { host: String, secret: RawFd },
    /// Runs ssh with these options and this key.
    Ssh { options: Vec<String>, key: Option<RawFd> },
}

/// Environment and descriptors of a git that calls this executable back.
#[derive(Debug, Clone)]
pub(super) struct Callback {
    program_variable: &'static str,
    executable: String,
    request: String,
    pub(super) descriptors: Vec<Arc<OwnedFd>>,
}

impl Callback {
    /// For the user and the password of this host. The secret has the format of git-credential(1).
    pub(super) fn password(host: &str, secret: OwnedFd) -> io::Result<Self> {
        let order = CallbackRequest::Password { host: host.to_ascii_lowercase(), secret: secret.as_raw_fd() };
        Self::new("GIT_ASKPASS", &order, Some(secret))
    }

    /// For ssh with these options and this key.
    pub(super) fn ssh(options: Vec<String>, key: Option<OwnedFd>) -> io::Result<Self> {
        let order = CallbackRequest::Ssh { options, key: key.as_ref().map(AsRawFd::as_raw_fd) };
        Self::new("GIT_SSH_COMMAND", &order, key)
    }

    fn new(program: &'static str, order: &CallbackRequest, secret: Option<OwnedFd>) -> io::Result<Self> {
        // A descriptor refers to this executable even after its file was replaced. Git starts a path without blanks
        // directly, not through a shell.
        let own = open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let path = format!("/proc/self/fd/{}", own.as_raw_fd());
        let descriptors = [own].into_iter().chain(secret).map(Arc::new).collect();
        Ok(Self {
            program_variable: program,
            executable: path,
            request: serde_json::to_string(order)?,
            descriptors,
        })
    }

    /// Variables for git's environment.
    pub(super) fn env(&self) -> [(&'static str, &str); 2] {
        [(self.program_variable, &self.executable), (REQUEST_VARIABLE, &self.request)]
    }
}

/// Serves the callback if git started this process, and returns the exit code; otherwise `None`. Every executable
/// whose gits reach remotes must call this first.
pub fn serve_git_callback() -> Option<u8> {
    let order = std::env::var_os(REQUEST_VARIABLE)?;
    let outcome = serde_json::from_slice(order.as_encoded_bytes()).map_err(io::Error::from).and_then(execute);
    Some(outcome.unwrap_or_else(|error| {
        eprintln!("the remote cannot be reached: {error}");
        1
    }))
}

fn execute(order: CallbackRequest) -> io::Result<u8> {
    match order {
        CallbackRequest::Password { host, secret } => {
            let question = std::env::args_os().nth(1).unwrap_or_default();
            let Some(field) = requested_field(&question, &host) else { return Ok(1) };
            let secret =
                String::from_utf8(read_inherited(secret)?).map_err(|_| io::ErrorKind::InvalidData)?;
            let answer = secret.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix('='));
            writeln!(io::stdout(), "{}", answer.unwrap_or_default())?;
            Ok(0)
        }
        CallbackRequest::Ssh { options, key } => {
            let mut ssh = Command::new("ssh");
            ssh.args(options).env_remove(REQUEST_VARIABLE);
            let agent = key.map(|key| SshAgent::start(&read_inherited(key)?)).transpose()?;
            if let Some(agent) = &agent {
                let socket = format!("IdentityAgent={}", agent.socket().display());
                // No key of the user that runs the server.
                ssh.args(["-o", "IdentityFile=none", "-o", &socket]);
            }
            let status = ssh.args(std::env::args_os().skip(1)).status()?;
            Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
    }
}

/// Which field of the secret a prompt asks for, if it is for this host. Git prompts `Password for 'https://user@host':
/// `; git-lfs uses other quotes and appends a path.
fn requested_field(question: &OsStr, host: &str) -> Option<&'static str> {
    let (field, url) = question.to_str()?.split_once(" for ")?;
    let url = url.trim_end_matches([':', ' ']);
    let url = ['\'', '"'].into_iter().find_map(|quote| url.strip_prefix(quote)?.strip_suffix(quote))?;
    let authority = url.strip_prefix("https://")?.split('/').next()?;
    let named = authority.rsplit('@').next()?;
    if !named.eq_ignore_ascii_case(host) {
        return None;
    }
    match field {
        "Username" => Some("username"),
        "Password" => Some("password"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_for_its_host_alone() {
        let asked = |question: &str| requested_field(OsStr::new(question), "git.example:8443");
        assert_eq!(asked("Username for 'https://git.example:8443': "), Some("username"));
        assert_eq!(asked("Password for 'https://a%40b@Git.Example:8443': "), Some("password"));
        assert_eq!(asked("Password for \"https://ada@git.example:8443/x.git/info/lfs\""), Some("password"));
        for other in [
            "Password for 'https://git.example': ",
            "Password for 'http://git.example:8443': ",
            "Password for 'https://git.example:8443@evil.example': ",
            "Password for 'https://git.example:8443.evil.example': ",
            "Password for 'https://evil.example/@git.example:8443': ",
            "Password for https://git.example:8443: ",
            "Enter passphrase for key '/x': ",
            "Passwords for 'https://git.example:8443': ",
            "",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
