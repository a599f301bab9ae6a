//! Parses URLs of remotes, and connects to those on this machine.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use skep_api::{
    AbsolutePath,
    git::{NETWORK_LIMIT, RelayUrl},
    path::PathEncoding,
};

use super::{GitError, config::ConfigOverrides, program::Git, repository::Repository};
use crate::{Error, Place};

/// A parsed and permitted remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remote {
    /// `https://host[:port]/...`, or `http://` to a host that the operator allowed.
    Web {
        secure: bool,
        host: String,
        port: Option<u16>,
    },
    /// `ssh://[user@]host[:port]/...` or `[user@]host:path`.
    Ssh {
        host: String,
        port: Option<u16>,
    },
    Local(PathBuf),
    /// A repository in another workspace of this server, reachable only by the server itself.
    Relayed(RelayUrl),
}

impl Remote {
    /// Parses a remote as git would, and refuses everything but https, ssh and paths.
    ///
    /// # Errors
    /// [`GitError::RemoteForbidden`].
    pub(super) fn parse(url: &str) -> Result<Self, GitError> {
        let refused =
            |why: &str| Err(GitError::RemoteForbidden { remote: redacted(url), why: why.to_owned() });
        let kinds = "is none that git may use here: take `https://`, `ssh://`, or a path below the roots";
        if url.is_empty() || url.starts_with('-') || url.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return refused("is no URL: it is empty, begins with `-`, or holds control characters");
        }
        if let Some((scheme, rest)) = url.split_once("://") {
            return match scheme {
                "https" | "http" => parse_http(url, scheme == "https", rest),
                "ssh" => {
                    let (user, host, port) = authority(url, rest)?;
                    if user.is_some_and(|user| user.contains(':')) {
                        return refused("holds a password, which ssh does not take; use a key");
                    }
                    Ok(Self::Ssh { host, port })
                }
                "skep" => match RelayUrl::parse(url) {
                    Some(relayed) => Ok(Self::Relayed(relayed)),
                    None => refused(
                        "is none of a place of this server: write `skep://server/PATH` or `skep://VM/PATH`",
                    ),
                },
                _ => refused(kinds),
            };
        }
        let colon = url.find(':');
        let slash = url.find('/');
        match (colon, slash) {
            // `ext::`, `fd::` and all others for which git would look for a helper program.
            (Some(colon), _) if url[colon..].starts_with("::") => refused(kinds),
            (Some(colon), slash) if slash.is_none_or(|slash| colon < slash) => {
                let host = url[..colon].rsplit('@').next().unwrap_or_default();
                check_host(url, host)?;
                if url.starts_with('@') || url[..colon].contains([' ', '[']) {
                    return refused(kinds);
                }
                Ok(Self::Ssh { host: host.to_owned(), port: None })
            }
            _ => Ok(Self::Local(PathBuf::from(url))),
        }
    }
}

fn parse_http(url: &str, secure: bool, rest: &str) -> Result<Remote, GitError> {
    let (user, host, port) = authority(url, rest)?;
    if user.is_some() {
        return Err(GitError::RemoteForbidden {
            remote: redacted(url),
            why: "holds a user or a token, which would be kept in the repository; leave it out, and store it as the \
                  credential of the host"
                .to_owned(),
        });
    }
    Ok(Remote::Web { secure, host, port })
}

fn authority<'a>(url: &str, rest: &'a str) -> Result<(Option<&'a str>, String, Option<u16>), GitError> {
    let refused = || GitError::RemoteForbidden {
        remote: redacted(url),
        why: "is no URL: its host or port cannot be read".to_owned(),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (user, place) = match rest[..end].rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, &rest[..end]),
    };
    let (host, port) = match place.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(refused)?)),
        None => match place.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    check_host(url, host)?;
    let port = port.filter(|port| !port.is_empty());
    let port = port.map(|port| port.parse().map_err(|_| refused())).transpose()?;
    if user.is_some_and(|user| user.starts_with('-')) {
        return Err(refused());
    }
    Ok((user, host.to_owned(), port))
}

/// Refuses hosts that git, ssh or a shell could read differently than this parser.
fn check_host(url: &str, host: &str) -> Result<(), GitError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'_');
    if !host.is_empty() && !host.starts_with('-') && host.len() < 254 && host.bytes().all(fits) {
        return Ok(());
    }
    let why = "is no URL: its host has invalid characters; write international names as `xn--`".to_owned();
    Err(GitError::RemoteForbidden { remote: redacted(url), why })
}

/// The URL without user and password, for messages.
pub(super) fn redacted(url: &str) -> String {
    let text: String =
        match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?))) {
            Some((scheme, (_, rest))) => format!("{scheme}://{rest}"),
            None => url.to_owned(),
        };
    text.chars().filter(|character| !character.is_control()).take(500).collect()
}

/// A remote on this machine: a repository below the roots, checked like every other one.
pub(super) struct LocalRemote {
    place: Place,
    path: PathBuf,
    settings: ConfigOverrides,
}

/// A connection to a repository on this machine through git-remote-fd(1), which needs no shell.
pub(super) struct LocalConnection {
    client_end: Arc<OwnedFd>,
    service: Git,
    service_end: OwnedFd,
}

impl LocalConnection {
    /// The URL of the other end.
    pub(super) fn url(&self) -> String {
        format!("fd::{}", self.client_end.as_raw_fd())
    }

    /// Passes the connection to a git that connects to [`Self::url`].
    pub(super) fn attach_to(self, git: Git) -> Git {
        git.inherit_fds([self.client_end]).with_service(self.service, self.service_end)
    }
}

impl LocalRemote {
    /// Finds the repository at this path.
    ///
    /// # Errors
    /// Those of paths and repositories.
    pub(super) async fn find(place: &Place, path: &std::path::Path) -> Result<Self, Error> {
        let text = skep_api::path::percent_encoded(path.as_os_str());
        let path = AbsolutePath::parse("url", &text, PathEncoding::Percent);
        let path = path.map_err(|failure| Error::InvalidValue {
            field: "url",
            reason: failure.message.trim_start_matches("`url` ").to_owned(),
        })?;
        let repository = Repository::find(place, Some(&path)).await?;
        Ok(Self { place: place.clone(), path: repository.git_dir.clone(), settings: repository.overrides })
    }

    /// Prepares a connection served by `upload-pack` or `receive-pack`, with the overrides of that repository.
    ///
    /// # Errors
    /// The socket pair cannot be created.
    pub(super) fn connect(&self, service: &str) -> io::Result<LocalConnection> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let git = Git::new(&self.place, std::path::Path::new("/"), &self.settings).timeout(NETWORK_LIMIT);
        let service = git.env("GIT_PROTOCOL", "version=2").args([service]).args([&self.path]);
        Ok(LocalConnection { client_end: Arc::new(ours), service, service_end: theirs })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_https_ssh_and_paths_are_remotes() {
        let host = |url: &str| match Remote::parse(url).unwrap() {
            Remote::Web { host, port, .. } | Remote::Ssh { host, port } => (host, port),
            Remote::Local(path) => (path.display().to_string(), None),
            Remote::Relayed(relayed) => (relayed.place.to_string(), None),
        };
        assert_eq!(host("skep://builder/root/x"), ("builder".to_owned(), None));
        assert_eq!(host("https://git.example:8443/a/b"), ("git.example".to_owned(), Some(8443)));
        assert_eq!(host("ssh://git@[2001:db8::1]:22/a"), ("2001:db8::1".to_owned(), Some(22)));
        assert_eq!(host("git@git.example:a/b.git"), ("git.example".to_owned(), None));
        assert_eq!(host("/srv/a:b"), ("/srv/a:b".to_owned(), None));
        assert_eq!(host("../other"), ("../other".to_owned(), None));
        for url in [
            "ext::sh -c id",
            "ext::sh% -c% id",
            "fd::7",
            "file:///etc",
            "git://a/b",
            "ftp://a/b",
            "",
            "-u",
            "--upload-pack=id",
            "ssh://-oProxyCommand=id/x",
            "-oProxyCommand=id:x",
            "ssh://a b/x",
            "https://user:token@a/b",
            "https://t@a/b",
            "https:///x",
            "HTTPS://a/b",
            "transport::https://a",
            "skep://server",
            "skep://A/x",
            "https://a;b/x",
            "ssh://a$(id)/x",
            "a$(id):x",
            "https://a\n/x",
            "https://[::1/x",
            "https://a:b/x",
            "http://allowed.example\\@127.0.0.1:80/x",
            "https://allowed.example\\.other.example/x",
            "ssh://git@allowed.example\\x/y",
            "::x",
        ] {
            assert!(Remote::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let refused = Remote::parse("https://user:hunter2@git.example/a").unwrap_err().to_string();
        assert!(!refused.contains("hunter2") && refused.contains("git.example"), "{refused}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(url in ".{0,80}") {
            if let Ok(Remote::Web { host, .. } | Remote::Ssh { host, .. }) = Remote::parse(&url) {
                prop_assert!(!host.is_empty() && !host.starts_with('-'));
                prop_assert!(!host.contains([' ', '$', ';', '\'', '"', '`', '&', '|', '@', '/']));
            }
        }
    }
}
