//! Connections to remotes: proxy, ssh or local path, with the credentials that they need. Filters of large files use
//! the same connection.

use std::net::Ipv4Addr;

use skep_api::git::{GitReach, NETWORK_LIMIT};
use skep_egress::{Allowlist, Proxy, Reach, Resolver, Rules};

use super::{
    GitError,
    callback::Callback,
    config::ConfigOverrides,
    credentials::{password_callback, ssh_key_file},
    program::{Git, GitOutput, NetworkAccess},
    remote::{Remote, redacted},
};
use crate::Error;

const HTTPS_PORT: u16 = 443;
const SSH_PORT: u16 = 22;

/// An open connection setup. Dropping it closes the proxy and the credentials.
#[derive(Debug)]
pub(super) struct Transport {
    protocol: &'static str,
    settings: ConfigOverrides,
    proxy: Option<Proxy>,
    callback: Option<Callback>,
    reach: NetworkAccess,
    url: String,
}

impl Remote {
    /// Prepares a connection to the remote at this URL.
    ///
    /// # Errors
    /// [`GitError::RemoteForbidden`] if the remote is not allowed.
    pub(super) async fn connect(
        &self,
        url: &str,
        reach: &GitReach,
        settings: &ConfigOverrides,
    ) -> Result<Transport, Error> {
        let (allow, deny) = (Allowlist::parse(&reach.allow), Allowlist::parse(&reach.deny));
        let resolver = Resolver::system(Rules { allow, deny, ..Rules::default() });
        let refused = |why: &str| GitError::RemoteForbidden { remote: redacted(url), why: why.to_owned() };
        let mut transport = Transport {
            // A remote on this machine is reached through a socket pair (see `LocalRemote`).
            protocol: "fd",
            settings: settings.clone(),
            proxy: None,
            callback: None,
            reach: NetworkAccess::Anywhere,
            url: redacted(url),
        };
        if !reach.anywhere {
            self.check_host(resolver.rules()).map_err(|why| refused(&why))?;
        }
        match self {
            Self::Local(_) => transport.reach = NetworkAccess::Nowhere,
            Self::Relayed(_) => return Err(refused(RELAYED_REASON).into()),
            Self::Web { secure: true, host, port } => {
                transport.set_up_https(host, *port, reach, resolver.clone()).await?
            }
            Self::Web { secure: false, host, .. } => {
                transport.protocol = "http";
                // Git resolves the name itself, so no address of it can be checked.
                if !resolver.rules().allow.names(host) && !reach.anywhere {
                    return Err(refused("is not encrypted; take `https://`").into());
                }
                transport.settings =
                    with_stall_timeout(transport.settings).with("http.followredirects", "false");
            }
            Self::Ssh { host, port } => {
                transport.protocol = "ssh";
                let at = match reach.anywhere {
                    true => host.clone(),
                    false => ssh_address(url, host, *port, &resolver).await?,
                };
                transport.set_up_ssh(host, &at, *port, reach)?;
            }
        }
        // Filters use https themselves, whatever protocol git uses.
        if settings.has_filters() && transport.proxy.is_none() && !reach.anywhere {
            transport.set_up_proxy(resolver).await?;
        }
        Ok(transport)
    }

    /// Refuses a host that the operator forbids, and a port other than the usual one if the operator cannot have allowed
    /// the host.
    fn check_host(&self, rules: &Rules) -> Result<(), String> {
        let (host, port, usual) = match self {
            Self::Web { host, port, .. } => (host, *port, HTTPS_PORT),
            Self::Ssh { host, port } => (host, *port, SSH_PORT),
            Self::Local(_) | Self::Relayed(_) => return Ok(()),
        };
        if rules.denies_host(host) {
            return Err("is on a host that whoever runs the server forbids by `--egress-deny`".to_owned());
        }
        match port.filter(|port| *port != usual && !rules.allow.may_name(host)) {
            Some(port) => Err(format!(
                "has port {port}, and git may connect to port {usual} only; whoever runs the server allows all ports of \
                 a host by `--git-allow {host}`"
            )),
            None => Ok(()),
        }
    }
}

/// The address that ssh connects to, so that it does not look the name up itself.
async fn ssh_address(
    url: &str,
    host: &str,
    port: Option<u16>,
    resolver: &Resolver,
) -> Result<String, GitError> {
    let is_usual = port.unwrap_or(SSH_PORT) == SSH_PORT;
    let in_reach = if is_usual { Reach::PublicOrListed } else { Reach::Listed };
    match resolver.resolve(host, in_reach).await {
        Ok(pinned) => Ok(pinned.first().to_string()),
        Err(skep_egress::Error::Refused { .. }) => {
            Err(GitError::RemoteForbidden { remote: redacted(url), why: ADDRESS_REASON.to_owned() })
        }
        Err(ref error @ skep_egress::Error::NotFound { ref source, .. }) => {
            Err(GitError::RemoteFailed { message: format!("{error}: {source}") })
        }
    }
}

const RELAYED_REASON: &str =
    "is in another workspace that only the server reaches; name it by `from` to clone it";
const ADDRESS_REASON: &str = "has no address that git may connect to at this port; whoever runs the server allows private addresses, those of this machine, and other ports than 443 and 22 (ssh) by `--git-allow`, naming host or network, and forbids addresses by `--egress-deny`";

/// Parts of the messages of git and ssh when a remote asks for credentials or rejects them.
const AUTHENTICATION_ERRORS: [&str; 4] =
    ["could not read Username", "unable to get password", "Authentication failed", "Permission denied"];

/// Makes ssh ignore its config files and never prompt.
const SSH_OPTIONS: [&str; 8] = [
    "BatchMode=yes",
    "StrictHostKeyChecking=accept-new",
    "PermitLocalCommand=no",
    "ProxyCommand=none",
    "ForwardAgent=no",
    "ClearAllForwardings=yes",
    "ConnectTimeout=20",
    "CanonicalizeHostname=no",
];

/// Options for an ssh that connects to exactly this address.
fn ssh_options(host: &str, address: &str) -> Vec<String> {
    let own = [format!("HostKeyAlias={host}"), format!("HostName={address}")];
    let all = SSH_OPTIONS.iter().map(|option| (*option).to_owned()).chain(own);
    let file = ["-F".to_owned(), "/dev/null".to_owned()];
    file.into_iter().chain(all.flat_map(|option| ["-o".to_owned(), option])).collect()
}

/// The key under which credentials are stored.
fn credential_host(host: &str, port: Option<u16>) -> String {
    port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Overrides for HTTP: a transfer without progress for one minute fails.
fn with_stall_timeout(settings: ConfigOverrides) -> ConfigOverrides {
    settings.with("http.lowspeedlimit", "1").with("http.lowspeedtime", "60")
}

impl Transport {
    /// Sets up https: a proxy that checks each address, and the token for this host.
    async fn set_up_https(
        &mut self,
        host: &str,
        port: Option<u16>,
        reach: &GitReach,
        resolver: Resolver,
    ) -> Result<(), Error> {
        self.protocol = "https";
        self.settings = with_stall_timeout(self.settings.clone());
        if !reach.anywhere {
            self.reach = NetworkAccess::Nowhere;
            self.set_up_proxy(resolver).await?;
        }
        let named = credential_host(host, port);
        let lower = named.to_ascii_lowercase();
        if let Some(credential) = reach.credentials.get(&lower) {
            let handed = password_callback(self.settings.clone(), &named, credential)
                .map_err(|_| Error::WorkerFailed)?;
            (self.settings, self.callback) = (handed.0, Some(handed.1));
        }
        Ok(())
    }

    /// Sets up ssh with the key for this host, if there is one.
    fn set_up_ssh(
        &mut self,
        host: &str,
        address: &str,
        port: Option<u16>,
        reach: &GitReach,
    ) -> Result<(), Error> {
        let named = format!("ssh://{}", credential_host(host, port).to_ascii_lowercase());
        let key = reach.credentials.get(&named).map(ssh_key_file).transpose();
        let callback = key.and_then(|key| Callback::ssh(ssh_options(host, address), key));
        self.callback = Some(callback.map_err(|_| Error::WorkerFailed)?);
        Ok(())
    }

    async fn set_up_proxy(&mut self, resolver: Resolver) -> Result<(), Error> {
        // Programs written in Go, such as git-lfs, bypass every proxy for loopback addresses.
        let passes_by =
            self.settings.has_filters() && resolver.rules().allow.has_address(Ipv4Addr::LOCALHOST.into());
        let proxy = Proxy::start(resolver, HTTPS_PORT).await.map_err(|_| Error::WorkerFailed)?;
        let settings = self.settings.clone().with("http.proxy", proxy.url());
        self.settings = settings.with("http.proxyauthmethod", "basic");
        self.reach = match self.reach {
            NetworkAccess::Nowhere if !passes_by => NetworkAccess::Port(proxy.port()),
            _ => NetworkAccess::Anywhere,
        };
        self.proxy = Some(proxy);
        Ok(())
    }

    pub(super) fn settings(&self) -> &ConfigOverrides {
        &self.settings
    }

    /// Lets the filters of a git use this connection. The git itself gets no protocol.
    pub(super) fn attach_filters(&self, git: Git) -> Git {
        let git = git.timeout(NETWORK_LIMIT).network(self.reach);
        let Some(callback) = &self.callback else { return git };
        let git = git.inherit_fds(callback.descriptors.iter().cloned());
        callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value))
    }

    /// A git that uses this connection.
    pub(super) fn git(&self, git: impl FnOnce(&ConfigOverrides) -> Git) -> Git {
        let git = self.attach_filters(git(&self.settings)).env("GIT_ALLOW_PROTOCOL", self.protocol);
        // The missing objects of a partial clone are fetched from its remote through this connection. A remote on this
        // machine would need a second one.
        if self.protocol == "fd" { git } else { git.env("GIT_NO_LAZY_FETCH", "0") }
    }

    /// The error for a failed git that used this connection.
    pub(super) fn remote_error(&self, output: &GitOutput) -> GitError {
        if let Some(host) = self.proxy.as_ref().and_then(Proxy::refused) {
            return GitError::RemoteForbidden { remote: host, why: ADDRESS_REASON.to_owned() };
        }
        let message = output.message();
        if message.contains(".lock': File exists") {
            return GitError::from_message(message);
        }
        let message = message.replace(&self.url, "the remote");
        if AUTHENTICATION_ERRORS.iter().any(|text| message.contains(text)) {
            let way_out = "store a token or a key that it accepts by `POST /api/git/credentials`";
            return GitError::RemoteFailed { message: format!("it denied access; {way_out}: {message}") };
        }
        GitError::RemoteFailed { message }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_key_of_a_host_is_that_of_the_systems_file_and_an_unknown_one_is_accepted() {
        let options = ssh_options("git.example", "192.0.2.1");
        assert_eq!(options[..2], ["-F", "/dev/null"]);
        for wanted in ["StrictHostKeyChecking=accept-new", "HostKeyAlias=git.example", "HostName=192.0.2.1"] {
            assert!(options.iter().any(|option| option == wanted), "{wanted}: {options:?}");
        }
        // The options leave ssh's own files of known hosts in use.
        assert!(!options.iter().any(|option| option.contains("KnownHosts")), "{options:?}");
        // The machine that runs the tests may lack ssh.
        let Ok(output) = Command::new("ssh").args(&options).args(["-G", "git.example"]).output() else {
            return;
        };
        let read = String::from_utf8(output.stdout).unwrap();
        for line in [
            "batchmode yes",
            "hostkeyalias git.example",
            "hostname 192.0.2.1",
            "stricthostkeychecking accept-new",
        ] {
            assert!(read.lines().any(|other| other == line), "{line}: {read}");
        }
        assert!(read.contains("\nglobalknownhostsfile /etc/ssh/ssh_known_hosts"), "{read}");
    }
}
