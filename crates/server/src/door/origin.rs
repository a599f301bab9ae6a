//! The origin of a request: the caller's address, and whether it came by https.
//!
//! [`Origin::from_extensions`] is the only source of the caller's address: for the allowlist, the log, the audit, sessions
//! and limits.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use http::{Extensions, HeaderMap};
use ipnet::IpNet;
use skep_egress::Networks;

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// An extension of each request of a connection: the listener and the transport that it came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// The main listener, in plain text.
    PlainText,
    /// The main listener, under TLS.
    Tls,
    /// The listener of the API for VMs.
    Vms,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    address: Option<IpAddr>,
    https: bool,
    trusted: bool,
    from_vm: bool,
    by_proxy: bool,
}

impl Origin {
    /// The origin that [`super::admission::resolve_origin`] stored; without one, an unknown address and plain HTTP.
    pub(crate) fn from_extensions(extensions: &Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn by_https() -> Self {
        Self { https: true, ..Self::default() }
    }

    /// The caller's address, with IPv4-mapped addresses as IPv4. `None` where a trusted proxy does not send it.
    pub(crate) fn address(self) -> Option<IpAddr> {
        self.address
    }

    /// Whether the request may be served: it did not bypass the proxies, and its proxy received it by https.
    pub(crate) fn trusted(self) -> bool {
        self.trusted
    }

    /// Whether it came to the listener for VMs. Its address is then that of a VM, as checked by the packet filter.
    pub(crate) fn is_from_vm(self) -> bool {
        self.from_vm
    }

    /// Whether a trusted proxy sent it.
    pub(crate) fn by_proxy(self) -> bool {
        self.by_proxy
    }

    /// Whether the request came by https, to this server or to a trusted proxy.
    pub(crate) fn https(self) -> bool {
        self.https
    }
}

/// The networks of the proxies whose `X-Forwarded-*` headers are used. Empty: callers connect directly.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Networks);

impl TrustedProxies {
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks.into_iter().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an address is one of a trusted proxy.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }

    pub(crate) fn origin_of(&self, headers: &HeaderMap, extensions: &Extensions) -> Origin {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        match extensions.get::<Transport>() {
            // Connections from VMs pass no proxy, so forwarding headers are ignored.
            Some(Transport::Vms) => {
                Origin { address: peer, trusted: true, from_vm: true, ..Origin::default() }
            }
            carrier => self.origin(peer, carrier == Some(&Transport::Tls), headers),
        }
    }

    fn origin(&self, peer: Option<IpAddr>, encrypted: bool, headers: &HeaderMap) -> Origin {
        let peer = peer.map(|peer| peer.to_canonical());
        if self.is_empty() {
            // Plain text without a proxy is served on loopback addresses only.
            return Origin { address: peer, https: encrypted, trusted: true, ..Origin::default() };
        }
        match peer.filter(|peer| self.contains(*peer)) {
            None => Origin { address: peer, https: encrypted, ..Origin::default() },
            Some(proxy) => {
                let https = list_elements(headers, FORWARDED_PROTO)
                    .last()
                    .is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
                let address = self.forwarded(proxy, headers);
                Origin { address, https, trusted: https, from_vm: false, by_proxy: true }
            }
        }
    }

    /// The rightmost address that is not a proxy's. The client may have forged everything left of it.
    fn forwarded(&self, proxy: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let mut nearest = proxy;
        for text in list_elements(headers, FORWARDED_FOR).into_iter().rev() {
            let address = parse_address(text)?;
            nearest = address;
            if !self.contains(address) {
                break;
            }
        }
        Some(nearest)
    }
}

/// The elements of a list header, over all its lines. A line that is not visible ASCII counts as the element `?`.
fn list_elements<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter().map(|line| line.to_str().unwrap_or("?"));
    lines.flat_map(|line| line.split(',')).map(str::trim).collect()
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn parse_address(text: &str) -> Option<IpAddr> {
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

    fn origin_seen(peer: &str, lines: &[(&str, &str)]) -> (Option<String>, bool) {
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
            // An address that the nearest proxy did not know must not be taken from the client's part of the header.
            (&["192.0.2.1, unknown"], None),
            (&["192.0.2.1,"], None),
            (&[""], None),
        ] {
            let mut all = vec![(FORWARDED_PROTO, "https")];
            all.extend(lines.iter().map(|line| (FORWARDED_FOR, *line)));
            assert_eq!(origin_seen("10.0.0.1", &all), (expected.map(str::to_owned), true), "{lines:?}");
        }
    }

    #[test]
    fn only_a_trusted_proxy_may_set_the_address() {
        let lines = [(FORWARDED_FOR, "192.0.2.1"), (FORWARDED_PROTO, "https")];
        for peer in ["203.0.113.9", "127.0.0.1", "::1", "::ffff:203.0.113.9"] {
            let (address, trusted) = origin_seen(peer, &lines);
            assert!(!trusted, "{peer}");
            assert_ne!(address.as_deref(), Some("192.0.2.1"), "{peer}");
        }
        assert!(origin_seen("::ffff:10.0.0.1", &lines).1);
        let direct = TrustedProxies::default().origin("203.0.113.9".parse().ok(), false, &headers(&lines));
        let address = "203.0.113.9".parse().ok();
        assert_eq!(direct, Origin { address, trusted: true, ..Origin::default() });
    }

    #[test]
    fn a_vm_cannot_set_its_address_by_a_header() {
        let lines = headers(&[(FORWARDED_FOR, "192.0.2.1"), (FORWARDED_PROTO, "https")]);
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo::<SocketAddr>("10.77.0.2:1".parse().unwrap()));
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let seen = |extensions: &Extensions| proxies.origin_of(&lines, extensions);
        assert_eq!(seen(&extensions).address(), "192.0.2.1".parse().ok());
        extensions.insert(Transport::Vms);
        let address = "10.77.0.2".parse().ok();
        assert_eq!(seen(&extensions), Origin { address, trusted: true, from_vm: true, ..Origin::default() });
    }

    #[test]
    fn a_request_that_reached_the_proxy_without_https_is_not_trusted() {
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
            assert_eq!(origin_seen("10.0.0.1", &lines).1, trusted, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn a_forged_prefix_does_not_change_the_address(forged in "[ -~]{0,60}") {
            let line = format!("{forged}, 192.0.2.1");
            let lines = [(FORWARDED_FOR, line.as_str()), (FORWARDED_PROTO, "https")];
            let (address, _) = origin_seen("10.0.0.1", &lines);
            prop_assert_eq!(address.as_deref(), Some("192.0.2.1"));
        }
    }
}
