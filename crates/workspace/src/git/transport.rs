//! Connections to remotes: proxy, ssh or local path, with the credentials that they need. Git-lfs uses the same
//! connection.

use std::net::Ipv4Addr;

use skep_api::git::{GitReach, NETWORK_LIMIT};
use skep_egress::{Allowlist, Proxy, Resolver, Rules};

use super::{
    GitError,
    callback::Callback,
    config::ConfigOverrides,
    credentials::{password_callback, ssh_key_socket},
    hosts::{ADDRESS_REASON, HostsOfVm, Protocol, RemoteHost, proxy_rules},
    program::{Git, GitOutput, NetworkAccess},
    remote::{Remote, redacted},
};
use crate::Error;

/// An open connection setup. Dropping it closes the proxy and the credentials.
#[derive(Debug)]
pub(super) struct Transport {
    protocol: &'static str,
    settings: ConfigOverrides,
    proxy: Option<Proxy>,
    callback: Option<Callback>,
    reach: NetworkAccess,
    url: String,
    /// The hosts that it may connect to, if it is for a VM.
    hosts_of_vm: Option<HostsOfVm>,
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
            hosts_of_vm: HostsOfVm::of(reach),
        };
        let host = self.host();
        if let Some(host) = host.filter(|_| !reach.anywhere) {
            host.check(resolver.rules(), transport.hosts_of_vm.as_ref()).map_err(|why| refused(&why))?;
        }
        match (self, host) {
            (Self::Relayed(_), _) => return Err(refused(RELAYED_REASON).into()),
            (_, None) => transport.reach = NetworkAccess::Nowhere,
            (_, Some(host)) => transport.set_up(host, url, reach, &resolver).await?,
        }
        // Git-lfs transfers files over https even if git connects by another protocol.
        if settings.has_large_files() && transport.proxy.is_none() && !reach.anywhere {
            transport.set_up_proxy(resolver).await?;
            if let Some(host) = host.filter(|host| host.protocol == Protocol::Http) {
                // The proxy is for https only. An empty value means none.
                let key = format!("http.http://{}/.proxy", host.text());
                transport.settings = transport.settings.with(key, "");
            }
        }
        Ok(transport)
    }
}

/// The address that ssh connects to, so that it does not look the name up itself.
async fn ssh_address(url: &str, host: RemoteHost<'_>, resolver: &Resolver) -> Result<String, GitError> {
    match resolver.resolve(host.name, host.reach()).await {
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

/// Options for an ssh that connects to exactly this address and port, also if git-lfs has another URL. Ssh takes the first value of
/// an option.
fn ssh_options(host: &str, address: &str, port: u16) -> Vec<String> {
    let own = [format!("HostKeyAlias={host}"), format!("HostName={address}"), format!("Port={port}")];
    let all = SSH_OPTIONS.iter().map(|option| (*option).to_owned()).chain(own);
    let file = ["-F".to_owned(), "/dev/null".to_owned()];
    file.into_iter().chain(all.flat_map(|option| ["-o".to_owned(), option])).collect()
}

/// Overrides for HTTP: a transfer without progress for one minute fails.
fn with_stall_timeout(settings: ConfigOverrides) -> ConfigOverrides {
    settings.with("http.lowspeedlimit", "1").with("http.lowspeedtime", "60")
}

impl Transport {
    /// Sets up the connection to a host.
    async fn set_up(
        &mut self,
        host: RemoteHost<'_>,
        url: &str,
        reach: &GitReach,
        resolver: &Resolver,
    ) -> Result<(), Error> {
        match host.protocol {
            Protocol::Https => self.set_up_https(host, reach, resolver.clone()).await,
            Protocol::Http => {
                self.protocol = "http";
                // Git resolves the name itself, so no address of it can be checked.
                if !resolver.rules().allow.names(host.name) && !reach.anywhere {
                    let why = "is not encrypted; take `https://`".to_owned();
                    return Err(GitError::RemoteForbidden { remote: redacted(url), why }.into());
                }
                let settings = with_stall_timeout(self.settings.clone());
                self.settings = settings.with("http.followredirects", "false");
                Ok(())
            }
            Protocol::Ssh => {
                self.protocol = "ssh";
                let address = match reach.anywhere {
                    true => host.name.to_owned(),
                    false => ssh_address(url, host, resolver).await?,
                };
                self.set_up_ssh(host, &address, reach)
            }
        }
    }

    /// Sets up https: a proxy that checks each address, and the token for this host.
    async fn set_up_https(
        &mut self,
        host: RemoteHost<'_>,
        reach: &GitReach,
        resolver: Resolver,
    ) -> Result<(), Error> {
        self.protocol = "https";
        self.settings = with_stall_timeout(self.settings.clone());
        if !reach.anywhere {
            self.reach = NetworkAccess::Nowhere;
            self.set_up_proxy(resolver).await?;
        }
        if let Some(credential) = reach.credentials.get(&host.credential_host()) {
            let handed = password_callback(self.settings.clone(), &host.text(), credential)
                .map_err(|_| Error::WorkerFailed)?;
            (self.settings, self.callback) = (handed.0, Some(handed.1));
        }
        Ok(())
    }

    /// Sets up ssh with the key for this host, if there is one.
    fn set_up_ssh(&mut self, host: RemoteHost<'_>, address: &str, reach: &GitReach) -> Result<(), Error> {
        let key = reach.credentials.get(&host.credential_host()).map(ssh_key_socket).transpose();
        let callback = key.and_then(|key| Callback::ssh(ssh_options(host.name, address, host.port()), key));
        self.callback = Some(callback.map_err(|_| Error::WorkerFailed)?);
        Ok(())
    }

    async fn set_up_proxy(&mut self, resolver: Resolver) -> Result<(), Error> {
        // Programs written in Go, such as git-lfs, bypass every proxy for loopback addresses.
        let passes_by =
            self.settings.has_large_files() && resolver.rules().allow.has_address(Ipv4Addr::LOCALHOST.into());
        let proxy = Proxy::start(resolver, proxy_rules(self.hosts_of_vm.clone()))
            .await
            .map_err(|_| Error::WorkerFailed)?;
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

    /// A git that uses this connection.
    pub(super) fn git(&self, git: impl FnOnce(&ConfigOverrides) -> Git) -> Git {
        let git = self.git_without_credential(git);
        let Some(callback) = &self.callback else { return git };
        let git = git.inherit_fds(callback.descriptors.iter().cloned());
        callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value))
    }

    /// A git that uses this connection, but can ask for no token or key.
    pub(super) fn git_without_credential(&self, git: impl FnOnce(&ConfigOverrides) -> Git) -> Git {
        let git = git(&self.settings).timeout(NETWORK_LIMIT).network(self.reach);
        let git = git.env("GIT_ALLOW_PROTOCOL", self.protocol);
        // The missing objects of a partial clone are fetched from its remote through this connection. A remote on this
        // machine would need a second one.
        if self.protocol == "fd" { git } else { git.env("GIT_NO_LAZY_FETCH", "0") }
    }

    /// The error for a failed git that used this connection.
    pub(super) fn remote_error(&self, output: &GitOutput) -> GitError {
        if let Some(refused) = self.proxy.as_ref().and_then(Proxy::refused) {
            let why = HostsOfVm::reason(self.hosts_of_vm.as_ref(), &refused);
            return GitError::RemoteForbidden { remote: refused.host, why };
        }
        let message = output.message();
        if message.contains(".lock': File exists") {
            return GitError::from_message(message);
        }
        let message = message.replace(&self.url, "the remote");
        if AUTHENTICATION_ERRORS.iter().any(|text| message.contains(text)) {
            let way_out = "store a credential for its host that it accepts";
            return GitError::RemoteFailed { message: format!("it denied access; {way_out}: {message}") };
        }
        GitError::RemoteFailed { message }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use skep_api::git::Credential;

    use super::*;

    #[test]
    fn the_key_of_a_host_is_that_of_the_systems_file_and_an_unknown_one_is_accepted() {
        let options = ssh_options("git.example", "192.0.2.1", 2222);
        assert_eq!(options[..2], ["-F", "/dev/null"]);
        for wanted in ["StrictHostKeyChecking=accept-new", "HostKeyAlias=git.example", "HostName=192.0.2.1"] {
            assert!(options.iter().any(|option| option == wanted), "{wanted}: {options:?}");
        }
        // The options leave ssh's own files of known hosts in use.
        assert!(!options.iter().any(|option| option.contains("KnownHosts")), "{options:?}");
        let mut ssh = Command::new("ssh");
        let output = ssh.args(&options).args(["-p", "22", "-G", "git.example"]).output().unwrap();
        let read = String::from_utf8(output.stdout).unwrap();
        for line in [
            "batchmode yes",
            "hostkeyalias git.example",
            "hostname 192.0.2.1",
            "port 2222",
            "stricthostkeychecking accept-new",
        ] {
            assert!(read.lines().any(|other| other == line), "{line}: {read}");
        }
        assert!(read.contains("\nglobalknownhostsfile /etc/ssh/ssh_known_hosts"), "{read}");
    }

    #[tokio::test]
    async fn a_key_is_for_ssh_and_a_token_for_https_of_the_same_host() {
        let (https, ssh) = ("https://git.example/x", "ssh://git@git.example/x");
        for (stored, url, has_secret) in [
            ("git.example", https, true),
            ("ssh://git.example", https, false),
            ("ssh://git.example", ssh, true),
            ("git.example", ssh, false),
        ] {
            let credential = Credential { username: "x".to_owned(), token: "y".to_owned() };
            let credentials = [(stored.to_owned(), credential)].into();
            let reach = GitReach { anywhere: true, credentials, ..GitReach::default() };
            let remote = Remote::parse(url).unwrap();
            let transport = remote.connect(url, &reach, &ConfigOverrides::default()).await.unwrap();
            // The first descriptor is that of the executable, which git starts to ask for the secret.
            let secrets = transport.callback.map_or(0, |callback| callback.descriptors.len() - 1);
            assert_eq!(secrets > 0, has_secret, "{stored} for {url}");
        }
    }
}
