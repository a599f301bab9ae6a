//! Where a request comes from, and whether it came by https.
//!
//! Everything that asks for the caller's address asks [`Origin::of`]: the allowlist, the log, the audit, sessions, the limits.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use http::{Extensions, HeaderMap};
use ipnet::IpNet;

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Put beside each request of a connection: how it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// To the service's own listener, in plain text.
    PlainText,
    /// To the service's own listener, under TLS.
    Tls,
    /// To the listener of the API for VMs.
    Vms,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    address: Option<IpAddr>,
    https: bool,
    trusted: bool,
    from_vm: bool,
}

impl Origin {
    /// Of a request that has passed [`crate::entrance::locate`]; unknown and by plain HTTP for any other.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or_default()
    }

    /// One that came by https.
    #[cfg(test)]
    pub(crate) fn by_https() -> Self {
        Self { https: true, ..Self::default() }
    }

    /// The caller's address, IPv4 where it is one. `None` where a trusted proxy does not tell it.
    pub(crate) fn address(self) -> Option<IpAddr> {
        self.address
    }

    /// Whether the rules of this server let the request in: not past the proxies, and not in plain text from elsewhere.
    pub(crate) fn trusted(self) -> bool {
        self.trusted
    }

    /// Whether it came to the listener for VMs: the address is that of a VM then, as the packet filter of the bridge has seen.
    pub(crate) fn is_from_vm(self) -> bool {
        self.from_vm
    }

    /// Whether the request came by https, to us or to a trusted proxy.
    pub(crate) fn https(self) -> bool {
        self.https
    }
}

/// The networks of the proxies whose word counts. None: callers come directly.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// These networks.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an address is one of them.
    pub(crate) fn hold(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Where a request comes from.
    pub(crate) fn origin_of(&self, headers: &HeaderMap, extensions: &Extensions) -> Origin {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        match extensions.get::<Carrier>() {
            // Connections from VMs pass no proxy, so forwarding headers count for nothing.
            Some(Carrier::Vms) => Origin { address: peer, https: false, trusted: true, from_vm: true },
            carrier => self.origin(peer, carrier == Some(&Carrier::Tls), headers),
        }
    }

    fn origin(&self, peer: Option<IpAddr>, encrypted: bool, headers: &HeaderMap) -> Origin {
        let peer = peer.map(|peer| peer.to_canonical());
        if self.is_empty() {
            // What is served in plain text is served on loopback addresses alone.
            return Origin { address: peer, https: encrypted, trusted: true, from_vm: false };
        }
        match peer.filter(|peer| self.hold(*peer)) {
            None => Origin { address: peer, https: encrypted, trusted: false, from_vm: false },
            Some(proxy) => {
                let https = listed(headers, FORWARDED_PROTO)
                    .last()
                    .is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
                Origin { address: self.forwarded(proxy, headers), https, trusted: https, from_vm: false }
            }
        }
    }

    /// The rightmost address that is not a proxy's own: what stands left of it, anybody may have written.
    fn forwarded(&self, proxy: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let mut nearest = proxy;
        for text in listed(headers, FORWARDED_FOR).into_iter().rev() {
            let address = address(text)?;
            nearest = address;
            if !self.hold(address) {
                break;
            }
        }
        Some(nearest)
    }
}

/// The words of a header that is a list, over all its lines. One that is no text counts as a word that says nothing.
fn listed<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter().map(|line| line.to_str().unwrap_or("?"));
    lines.flat_map(|line| line.split(',')).map(str::trim).collect()
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let parsed = text.parse().ok().or_else(bare);
    parsed
        .or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
        .map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn proxies() -> TrustedProxies {
        TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn seen(peer: &str, lines: &[(&str, &str)]) -> (Option<String>, bool) {
        let origin = proxies().origin(peer.parse().ok(), false, &headers(lines));
        (origin.address.map(|address| address.to_string()), origin.trusted)
    }

    #[test]
    fn the_rightmost_address_that_is_no_proxy_is_the_caller() {
        for (lines, expected) in [
            (&["192.0.2.1"][..], Some("192.0.2.1")),
            (&["203.0.113.9, 192.0.2.1"], Some("192.0.2.1")),
            (&["192.0.2.1, 10.0.0.9"], Some("192.0.2.1")),
            (&["203.0.113.9", "192.0.2.1, fd00::1", "10.0.0.9"], Some("192.0.2.1")),
            (&["203.0.113.9, 192.0.2.1:4711"], Some("192.0.2.1")),
            (&["[2001:db8::1]:443"], Some("2001:db8::1")),
            (&["[2001:db8::1]"], Some("2001:db8::1")),
            (&["::ffff:192.0.2.1"], Some("192.0.2.1")),
            (&["10.0.0.8, 10.0.0.9"], Some("10.0.0.8")),
            (&[], Some("10.0.0.1")),
            // What the nearest proxy could not name is not to be guessed from what a caller wrote.
            (&["192.0.2.1, unknown"], None),
            (&["192.0.2.1,"], None),
            (&[""], None),
        ] {
            let mut all = vec![(FORWARDED_PROTO, "https")];
            all.extend(lines.iter().map(|line| (FORWARDED_FOR, *line)));
            assert_eq!(seen("10.0.0.1", &all), (expected.map(str::to_owned), true), "{lines:?}");
        }
    }

    #[test]
    fn nobody_but_a_trusted_proxy_is_believed() {
        let lines = [(FORWARDED_FOR, "192.0.2.1"), (FORWARDED_PROTO, "https")];
        for peer in ["203.0.113.9", "127.0.0.1", "::1", "::ffff:203.0.113.9"] {
            let (address, trusted) = seen(peer, &lines);
            assert!(!trusted, "{peer}");
            assert_ne!(address.as_deref(), Some("192.0.2.1"), "{peer}");
        }
        assert!(seen("::ffff:10.0.0.1", &lines).1);
        let direct = TrustedProxies::default().origin("203.0.113.9".parse().ok(), false, &headers(&lines));
        let address = "203.0.113.9".parse().ok();
        assert_eq!(direct, Origin { address, https: false, trusted: true, from_vm: false });
    }

    #[test]
    fn what_comes_from_a_vm_is_not_told_where_it_comes_from() {
        let lines = headers(&[(FORWARDED_FOR, "192.0.2.1"), (FORWARDED_PROTO, "https")]);
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo::<SocketAddr>("10.77.0.2:1".parse().unwrap()));
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let seen = |extensions: &Extensions| proxies.origin_of(&lines, extensions);
        assert_eq!(seen(&extensions).address(), "192.0.2.1".parse().ok());
        extensions.insert(Carrier::Vms);
        let address = "10.77.0.2".parse().ok();
        assert_eq!(seen(&extensions), Origin { address, https: false, trusted: true, from_vm: true });
    }

    #[test]
    fn what_did_not_come_to_the_proxy_by_https_is_not_let_in() {
        for (lines, trusted) in [
            (&[][..], false),
            (&["http"], false),
            (&["https"], true),
            (&["HTTPS"], true),
            (&["https, http"], false),
            (&["https", "http"], false),
            (&["http, https"], true),
            (&["https,"], false),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| (FORWARDED_PROTO, *line)).collect();
            assert_eq!(seen("10.0.0.1", &lines).1, trusted, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_caller_writes_stands_left_of_the_truth(forged in "[ -~]{0,60}") {
            let line = format!("{forged}, 192.0.2.1");
            let lines = [(FORWARDED_FOR, line.as_str()), (FORWARDED_PROTO, "https")];
            let (address, _) = seen("10.0.0.1", &lines);
            prop_assert_eq!(address.as_deref(), Some("192.0.2.1"));
        }
    }
}
