//! Connections to remotes: proxy, ssh or local path, with the credentials that they need. Filters of large files use
//! the same connection.

use std::net::{IpAddr, Ipv4Addr};

use skep_api::git::{GitReach, NETWORK_LIMIT};

use super::{
    Refused,
    address::Allowed,
    callback::Callback,
    credentials::{hand_over, hand_over_key},
    program::{Git, Reach, Said},
    proxy::{Proxy, pinned},
    remote::{Remote, shown},
    settings::Settings,
};
use crate::Error;

/// An open connection setup. Dropping it closes the proxy and the credentials.
#[derive(Debug)]
pub(super) struct Way {
    protocol: &'static str,
    settings: Settings,
    proxy: Option<Proxy>,
    callback: Option<Callback>,
    reach: Reach,
    url: String,
}

impl Remote {
    /// Prepares a connection to the remote at this URL.
    ///
    /// # Errors
    /// [`Refused::RemoteForbidden`] if the remote is not allowed.
    pub(super) async fn open(&self, url: &str, reach: &GitReach, settings: &Settings) -> Result<Way, Error> {
        let allowed = Allowed::of(&reach.allow);
        let refused = |why: &str| Refused::RemoteForbidden { remote: shown(url), why: why.to_owned() };
        let mut way = Way {
            // A remote on this machine is reached through a socket pair (see `LocalRemote`).
            protocol: "fd",
            settings: settings.clone(),
            proxy: None,
            callback: None,
            reach: Reach::Anywhere,
            url: shown(url),
        };
        match self {
            Self::Local(_) => way.reach = Reach::Nowhere,
            Self::Relayed(_) => return Err(refused(RELAYED).into()),
            Self::Web { secure: true, host, port } => way.encrypted(host, *port, reach).await?,
            Self::Web { secure: false, host, .. } => {
                way.protocol = "http";
                let address: Option<IpAddr> = host.parse().ok();
                let named = allowed.names(host) || address.is_some_and(|address| allowed.holds(address));
                if !named && !reach.anywhere {
                    return Err(refused("is not encrypted; take `https://`").into());
                }
                way.settings = patient(way.settings).with("http.followredirects", "false");
            }
            Self::Ssh { host, port } => {
                way.protocol = "ssh";
                let at = if reach.anywhere {
                    host.clone()
                } else {
                    let address = pinned(host, port.unwrap_or(22), &allowed).await;
                    let address = address.map_err(|error| Refused::RemoteFailed {
                        words: format!("the host `{host}` is not found: {error}"),
                    })?;
                    address.ok_or_else(|| refused(PRIVATE))?.to_string()
                };
                way.by_ssh(host, &at, *port, reach)?;
            }
        }
        // Filters use https themselves, whatever protocol git uses.
        if settings.has_filters() && way.proxy.is_none() && !reach.anywhere {
            way.lead_by_proxy(reach).await?;
        }
        Ok(way)
    }
}

const RELAYED: &str = "is in another workspace that only the server reaches; name it by `from` to clone it";
const PRIVATE: &str = "has a private or loopback address; whoever runs the server allows one by `--git-allow`, naming host or network";

/// Parts of the messages of git and ssh when a remote asks for credentials or rejects them.
const STRANGER: [&str; 4] =
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
fn with_port(host: &str, port: Option<u16>) -> String {
    port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Overrides for HTTP: a transfer without progress for one minute fails.
fn patient(settings: Settings) -> Settings {
    settings.with("http.lowspeedlimit", "1").with("http.lowspeedtime", "60")
}

impl Way {
    /// Sets up https: a proxy that checks each address, and the token for this host.
    async fn encrypted(&mut self, host: &str, port: Option<u16>, reach: &GitReach) -> Result<(), Error> {
        self.protocol = "https";
        self.settings = patient(self.settings.clone());
        if !reach.anywhere {
            self.reach = Reach::Nowhere;
            self.lead_by_proxy(reach).await?;
        }
        let named = with_port(host, port);
        let lower = named.to_ascii_lowercase();
        if let Some(credential) = reach.credentials.get(&lower) {
            let handed = hand_over(self.settings.clone(), &named, credential).map_err(|_| Error::Broken)?;
            (self.settings, self.callback) = (handed.0, Some(handed.1));
        }
        Ok(())
    }

    /// Sets up ssh with the key for this host, if there is one.
    fn by_ssh(
        &mut self,
        host: &str,
        address: &str,
        port: Option<u16>,
        reach: &GitReach,
    ) -> Result<(), Error> {
        let named = format!("ssh://{}", with_port(host, port).to_ascii_lowercase());
        let key = reach.credentials.get(&named).map(hand_over_key).transpose();
        let callback = key.and_then(|key| Callback::ssh(ssh_options(host, address), key));
        self.callback = Some(callback.map_err(|_| Error::Broken)?);
        Ok(())
    }

    async fn lead_by_proxy(&mut self, reach: &GitReach) -> Result<(), Error> {
        let allowed = Allowed::of(&reach.allow);
        // Programs written in Go, such as git-lfs, bypass every proxy for loopback addresses.
        let passes_by = self.settings.has_filters() && allowed.holds(Ipv4Addr::LOCALHOST.into());
        let proxy = Proxy::start(allowed).await.map_err(|_| Error::Broken)?;
        let settings = self.settings.clone().with("http.proxy", proxy.url());
        self.settings = settings.with("http.proxyauthmethod", "basic");
        self.reach = match self.reach {
            Reach::Nowhere if !passes_by => Reach::Port(proxy.port()),
            _ => Reach::Anywhere,
        };
        self.proxy = Some(proxy);
        Ok(())
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Lets the filters of a git use this connection. The git itself gets no protocol.
    pub(super) fn feed(&self, git: Git) -> Git {
        let git = git.within(NETWORK_LIMIT).reaching(self.reach);
        let Some(callback) = &self.callback else { return git };
        let git = git.passing(callback.descriptors.iter().cloned());
        callback.env().into_iter().fold(git, |git, (name, value)| git.env(name, value))
    }

    /// A git that uses this connection.
    pub(super) fn git(&self, git: impl FnOnce(&Settings) -> Git) -> Git {
        let git = self.feed(git(&self.settings)).env("GIT_ALLOW_PROTOCOL", self.protocol);
        // The missing objects of a partial clone are fetched from its remote through this connection. A remote on this
        // machine would need a second one.
        if self.protocol == "fd" { git } else { git.env("GIT_NO_LAZY_FETCH", "0") }
    }

    /// The error for a failed git that used this connection.
    pub(super) fn failed(&self, said: &Said) -> Refused {
        if let Some(host) = self.proxy.as_ref().and_then(Proxy::refused) {
            return Refused::RemoteForbidden { remote: host, why: PRIVATE.to_owned() };
        }
        let words = said.words();
        if words.contains(".lock': File exists") {
            return Refused::by_words(words);
        }
        let words = words.replace(&self.url, "the remote");
        if STRANGER.iter().any(|text| words.contains(text)) {
            let way_out = "store a token or a key that it accepts by `POST /api/git/credentials`";
            return Refused::RemoteFailed { words: format!("it denied access; {way_out}: {words}") };
        }
        Refused::RemoteFailed { words }
    }
}
