//! Decides which hosts git may connect to: by the operator's rules and, for a VM, by its egress policy.

use std::collections::BTreeSet;

use skep_api::{egress::EgressPolicy, git::GitReach};
use skep_egress::{HostRules, Reach, RefusedHost, Rules};

use super::remote::Remote;

const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;
const SSH_PORT: u16 = 22;

pub(super) const ADDRESS_REASON: &str = "has no address that git may connect to at this port; whoever runs the server allows private addresses, those of this machine, and other ports than 443 and 22 (ssh) by `--git-allow`, naming host or network, and forbids addresses by `--egress-deny`";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Https,
    Http,
    Ssh,
}

/// A host that git connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteHost<'a> {
    pub(super) protocol: Protocol,
    pub(super) name: &'a str,
    /// `None` if the URL has none: the usual one.
    pub(super) port: Option<u16>,
}

/// The hosts that git may connect to for a VM.
#[derive(Debug, Clone)]
pub(super) struct HostsOfVm {
    policy: EgressPolicy,
    /// The hosts of the account's credentials, as these are stored.
    with_credential: BTreeSet<String>,
}

/// The host and the port of a remote that is reached over the network.
pub fn remote_host(url: &str) -> Option<(String, u16)> {
    let remote = Remote::parse(url).ok()?;
    remote.host().map(|host| (host.name.to_owned(), host.port()))
}

impl Protocol {
    fn usual_port(self) -> u16 {
        match self {
            Self::Https => HTTPS_PORT,
            Self::Http => HTTP_PORT,
            Self::Ssh => SSH_PORT,
        }
    }

    /// The port that is open at every host. There is none without encryption.
    fn open_port(self) -> Option<u16> {
        (self != Self::Http).then_some(self.usual_port())
    }
}

impl Remote {
    /// `None` if it is reached without the network.
    pub(super) fn host(&self) -> Option<RemoteHost<'_>> {
        let (protocol, name, port) = match self {
            Self::Web { secure: true, host, port } => (Protocol::Https, host, *port),
            Self::Web { secure: false, host, port } => (Protocol::Http, host, *port),
            Self::Ssh { host, port } => (Protocol::Ssh, host, *port),
            Self::Local(_) | Self::Relayed(_) => return None,
        };
        Some(RemoteHost { protocol, name, port })
    }
}

impl<'a> RemoteHost<'a> {
    /// A host that a program connects to through the proxy.
    fn of_proxy(name: &'a str, port: u16) -> Self {
        Self { protocol: Protocol::Https, name, port: Some(port) }
    }

    pub(super) fn port(self) -> u16 {
        self.port.unwrap_or(self.protocol.usual_port())
    }

    /// Which of its addresses git may connect to.
    pub(super) fn reach(self) -> Reach {
        if self.protocol.open_port() == Some(self.port()) { Reach::PublicOrListed } else { Reach::Listed }
    }

    /// The name and the port, as in the URL.
    pub(super) fn text(self) -> String {
        self.port.map_or_else(|| self.name.to_owned(), |port| format!("{}:{port}", self.name))
    }

    /// The host under which its credential is stored.
    pub(super) fn credential_host(self) -> String {
        let scheme = if self.protocol == Protocol::Ssh { "ssh://" } else { "" };
        format!("{scheme}{}", self.text().to_ascii_lowercase())
    }

    /// Refuses a host that the operator or the policy of the VM forbids, and a port other than the usual ones if the operator
    /// cannot have allowed the host.
    ///
    /// # Errors
    /// The end of a sentence that begins with the remote.
    pub(super) fn check(self, rules: &Rules, of_vm: Option<&HostsOfVm>) -> Result<(), String> {
        let (name, port) = (self.name, self.port());
        if rules.denies_host(name) {
            return Err("is on a host that whoever runs the server forbids by `--egress-deny`".to_owned());
        }
        if of_vm.is_some_and(|hosts| !hosts.permit(self)) {
            return Err(self.policy_reason());
        }
        match self.protocol.open_port() {
            Some(open) if port != open && !rules.allow.may_name(name) => Err(format!(
                "has port {port}, and git may connect to port {open} only; whoever runs the server allows all ports of \
                 a host by `--git-allow {name}`"
            )),
            _ => Ok(()),
        }
    }

    /// Why the policy of a VM refuses it.
    fn policy_reason(self) -> String {
        let credential = match self.protocol {
            // A credential is never sent without encryption.
            Protocol::Http => String::new(),
            _ => format!(", store a credential for `{}`", self.credential_host()),
        };
        format!(
            "is at {}, port {}, which the egress policy of the VM does not permit; add it to the VM's `egress`{credential}, or \
             permit all remotes by `git_relay: \"any\"` of the account",
            self.name,
            self.port()
        )
    }
}

impl HostsOfVm {
    /// `None` if git does not connect for a VM, or the account permits all remotes.
    pub(super) fn of(reach: &GitReach) -> Option<Self> {
        let with_credential = reach.credentials.keys().cloned().collect();
        reach.policy.clone().map(|policy| Self { policy, with_credential })
    }

    fn permit(&self, host: RemoteHost<'_>) -> bool {
        self.policy.permits_host(host.name, host.port()) || self.has_credential(host)
    }

    /// A credential is never sent without encryption, so it permits no other connection.
    fn has_credential(&self, host: RemoteHost<'_>) -> bool {
        let port = host.port();
        let usual = (port == host.protocol.usual_port()).then_some(None);
        let mut ports = [Some(port)].into_iter().chain(usual);
        let is_stored = |port| self.with_credential.contains(&RemoteHost { port, ..host }.credential_host());
        host.protocol != Protocol::Http && ports.any(is_stored)
    }

    /// The reason of a refusal by the proxy.
    pub(super) fn reason(of_vm: Option<&Self>, refused: &RefusedHost) -> String {
        let host = RemoteHost::of_proxy(&refused.host, refused.port);
        match of_vm.is_some_and(|hosts| !hosts.permit(host)) {
            true => host.policy_reason(),
            false => ADDRESS_REASON.to_owned(),
        }
    }
}

/// The rules for the proxy, which also gets the hosts of redirects.
pub(super) fn proxy_rules(of_vm: Option<HostsOfVm>) -> HostRules {
    Box::new(move |name, port| {
        let host = RemoteHost::of_proxy(name, port);
        of_vm.as_ref().is_none_or(|hosts| hosts.permit(host)).then_some(host.reach())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use skep_api::git::Credential;
    use skep_egress::Allowlist;

    use super::*;

    fn reach(policy: serde_json::Value, credentials: &[&str]) -> GitReach {
        let credential = Credential { username: "x".to_owned(), token: "y".to_owned() };
        let credentials: BTreeMap<_, _> =
            credentials.iter().map(|host| ((*host).to_owned(), credential.clone())).collect();
        let policy = Some(EgressPolicy::try_from(policy).unwrap());
        GitReach { policy, credentials, ..GitReach::default() }
    }

    fn permits(reach: &GitReach, url: &str) -> bool {
        HostsOfVm::of(reach).unwrap().permit(Remote::parse(url).unwrap().host().unwrap())
    }

    #[test]
    fn a_policy_permits_the_hosts_and_ports_that_it_lists() {
        let listed = reach(
            json!({"allow": ["git.example", "*.wild.example", "203.0.113.0/24"], "ports": [443, 22, 8443]}),
            &[],
        );
        for url in [
            "https://git.example/x",
            "https://GIT.example.:8443/x",
            "ssh://git@git.example/x",
            "git@a.wild.example:x",
            "https://203.0.113.7/x",
        ] {
            assert!(permits(&listed, url) && permits(&reach(json!("all"), &[]), url), "{url}");
            assert!(!permits(&reach(json!("none"), &[]), url), "{url}");
        }
        for url in [
            "https://other.example/x",
            "https://wild.example/x",
            "https://git.example:80/x",
            "http://git.example/x",
            "ssh://git.example:2222/x",
            "https://203.0.114.7/x",
            "https://3405803783/x",
            "https://[2001:db8::1]/x",
            "https://[::ffff:203.0.113.7]/x",
        ] {
            assert!(!permits(&listed, url) && permits(&reach(json!("all"), &[]), url), "{url}");
        }
    }

    #[test]
    fn a_credential_permits_its_host_port_and_protocol() {
        let stored = ["git.example", "own.example:8443", "ssh://code.example", "ssh://own.example:2222"];
        let known = reach(json!("none"), &stored);
        for url in [
            "https://git.example/x",
            "https://Git.Example:443/x",
            "https://own.example:8443/x",
            "git@code.example:x",
            "ssh://code.example:22/x",
            "ssh://own.example:2222/x",
        ] {
            assert!(permits(&known, url), "{url}");
        }
        for url in [
            "http://git.example/x",
            "http://git.example:443/x",
            "https://git.example:8443/x",
            "git@git.example:x",
            "https://own.example/x",
            "http://own.example:8443/x",
            "https://code.example/x",
            "ssh://own.example/x",
        ] {
            assert!(!permits(&known, url), "{url}");
        }
    }

    #[test]
    fn the_proxy_asks_the_policy_for_each_host_and_port() {
        let reach = reach(json!({"allow": ["git.example"], "ports": [443, 8443]}), &["known.example"]);
        let rules = proxy_rules(HostsOfVm::of(&reach));
        assert_eq!(rules("git.example", 443), Some(Reach::PublicOrListed));
        assert_eq!(rules("git.example", 8443), Some(Reach::Listed));
        assert_eq!(rules("known.example", 443), Some(Reach::PublicOrListed));
        assert_eq!((rules("git.example", 80), rules("other.example", 443)), (None, None));
        // Without a policy the resolver decides alone.
        assert_eq!(proxy_rules(None)("other.example", 443), Some(Reach::PublicOrListed));
    }

    #[test]
    fn what_the_operator_forbids_stays_forbidden_whatever_the_policy_permits() {
        let deny = Allowlist::parse(&["git.example"]);
        let refusing = Rules { deny, ..Rules::default() };
        let hosts = HostsOfVm::of(&reach(json!("all"), &["git.example"]));
        let remote = Remote::parse("https://git.example/x").unwrap();
        let check = |rules: &Rules| remote.host().unwrap().check(rules, hosts.as_ref());
        assert_eq!(check(&Rules::default()), Ok(()), "the control");
        assert!(check(&refusing).unwrap_err().contains("--egress-deny"));
    }
}
