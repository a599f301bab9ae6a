//! The address under which callers reach this server, for links in answers.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use http::Uri;
use serde::{Deserialize, Serialize};

/// The local address of a connection, an extension of each of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalAddress(pub SocketAddr);

/// The address under which browsers reach the server, such as `https://skep.example`: scheme, host and port alone, as a
/// browser writes an origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicUrl {
    encrypted: bool,
    /// In lower case; an IPv6 address stands in brackets.
    host: String,
    /// `None` for the default of the scheme.
    port: Option<u16>,
}

impl PublicUrl {
    /// The address of a listening socket. An unspecified address is reached at `localhost`.
    pub fn of_listener(address: SocketAddr, encrypted: bool) -> Self {
        let host = match address.ip() {
            ip if ip.is_unspecified() => "localhost".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self::new(encrypted, host, Some(address.port()))
    }

    fn new(encrypted: bool, host: String, port: Option<u16>) -> Self {
        let default = if encrypted { 443 } else { 80 };
        Self { encrypted, host, port: port.filter(|port| *port != default) }
    }

    /// The same scheme and port at another host name.
    pub(crate) fn at_host(&self, name: String) -> Self {
        Self { host: name, ..*self }
    }

    /// The host name, without the dot that may end it.
    pub(crate) fn host_name(&self) -> &str {
        self.host.strip_suffix('.').unwrap_or(&self.host)
    }

    /// The address that the host is, with IPv4-mapped addresses as IPv4; `None` for a name.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            format!("`{text}` is no address of a server; give scheme and host, such as https://skep.example")
        })
    }
}

fn parse(text: &str) -> Option<PublicUrl> {
    let uri: Uri = text.parse().ok()?;
    let encrypted = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !text.contains('#');
    let host = uri.host().filter(|host| is_bare && !host.is_empty())?;
    // Without a user before the host.
    let port = match uri.authority()?.as_str().strip_prefix(host)? {
        "" => None,
        port => {
            let digits =
                port.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?;
            Some(digits.parse().ok()?)
        }
    };
    Some(PublicUrl::new(encrypted, canonical_host(host)?, port))
}

/// Normalizes a host as browsers do; `None` for an IPv4 address that is not written as four decimal numbers.
fn canonical_host(host: &str) -> Option<String> {
    if let Some(bare) = host.strip_prefix('[') {
        let ip: Ipv6Addr = bare.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{ip}]"));
    }
    let is_name = host.trim_end_matches('.').rsplit('.').next()?.bytes().any(|byte| !byte.is_ascii_digit());
    (is_name || host.parse::<Ipv4Addr>().is_ok()).then(|| host.to_ascii_lowercase())
}

impl TryFrom<String> for PublicUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PublicUrl> for String {
    fn from(url: PublicUrl) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_is_scheme_and_host() {
        for (text, expected) in [
            ("https://skep.example", "https://skep.example"),
            ("https://Skep.Example:443/", "https://skep.example"),
            ("http://[::1]:7700/", "http://[::1]:7700"),
            ("http://[0:0:0:0:0:0:0:1]:7700", "http://[::1]:7700"),
            ("http://127.0.0.1", "http://127.0.0.1"),
            ("https://skep.example:8443", "https://skep.example:8443"),
            ("https://skep.example:80", "https://skep.example:80"),
        ] {
            assert_eq!(text.parse::<PublicUrl>().unwrap().to_string(), expected);
        }
        for wrong in [
            "",
            "skep.example",
            "ftp://x",
            "https://",
            "https://x/below",
            "https://x?a=b",
            "https://x/#a",
            "https://user@x",
            "https://user@x:1",
            "https://x@x",
            "https://x:",
            "https://x:65536",
            "https://x:+80",
            "https://x:y",
            "https://x y",
            "http://127.1:7700",
            "http://2130706433",
            "javascript:alert(1)",
        ] {
            assert!(wrong.parse::<PublicUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_address_of_a_listener_is_one_that_browsers_reach() {
        for (address, encrypted, expected) in [
            ("127.0.0.1:7700", false, "http://127.0.0.1:7700"),
            ("0.0.0.0:443", true, "https://localhost"),
            ("[::]:7700", true, "https://localhost:7700"),
            ("[2001:db8::1]:7700", true, "https://[2001:db8::1]:7700"),
        ] {
            let url = PublicUrl::of_listener(address.parse().unwrap(), encrypted);
            assert_eq!(url.to_string(), expected);
            assert_eq!(expected.parse::<PublicUrl>().unwrap(), url);
        }
    }
}
