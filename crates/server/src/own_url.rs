//! The address under which callers reach this server, for links in answers.

use std::{fmt, net::IpAddr, net::SocketAddr, str::FromStr};

use http::{Extensions, HeaderMap, Uri};
use serde::{Deserialize, Serialize};
use skep_api::{ErrorCode, Failure};

use crate::session::{is_encrypted, own_origin};

/// The local address of a connection, an extension of each of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalAddress(pub SocketAddr);

/// The address under which browsers reach the server, such as `https://skep.example`: scheme, host and port alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicUrl(String);

impl PublicUrl {
    /// The address of a listening socket. An unspecified address is reached at `localhost`.
    pub fn of_listener(address: SocketAddr, encrypted: bool) -> Self {
        let scheme = if encrypted { "https" } else { "http" };
        if address.ip().is_unspecified() {
            return Self(format!("{scheme}://localhost:{}", address.port()));
        }
        Self(format!("{scheme}://{address}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no address of a server; give scheme and host, such as https://skep.example")
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !text.contains('#');
        match (scheme, authority, is_bare) {
            (Some(scheme), Some(authority), true) => Ok(Self(format!("{scheme}://{authority}"))),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for PublicUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PublicUrl> for String {
    fn from(url: PublicUrl) -> Self {
        url.0
    }
}

/// The URL under which the sender of a request reaches this server: the configured one, or the `Host` of the request if
/// it names the address of the connection. Any other `Host` is of the sender's choosing.
///
/// # Errors
/// `invalid_value` for another `Host`.
pub(crate) fn url_of_request(
    configured: Option<&PublicUrl>,
    uri: &Uri,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<PublicUrl, Failure> {
    if let Some(configured) = configured {
        return Ok(configured.clone());
    }
    let local = extensions.get::<LocalAddress>().map(|local| local.0);
    let origin = own_origin(uri, headers, is_encrypted(extensions)).and_then(|origin| origin.parse().ok());
    match (origin, local) {
        (Some(origin), Some(local)) if names_address(&origin, local.ip()) => Ok(origin),
        (origin, _) => {
            let host =
                origin.map_or_else(|| "missing or malformed".to_owned(), |origin| format!("`{origin}`"));
            let message = format!(
                "the address of this request, {host}, is not known to be this server's; send it to the address that \
                 the server listens on, or start the server with `--public-url`"
            );
            Err(Failure::new(ErrorCode::InvalidValue, message))
        }
    }
}

/// Whether the host of a URL is this address. On loopback, all loopback addresses and names are.
fn names_address(url: &PublicUrl, local: IpAddr) -> bool {
    let local = local.to_canonical();
    let Some(host) = url.0.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_ascii_lowercase)) else {
        return false;
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) => ip == local || (ip.is_loopback() && local.is_loopback()),
        Err(_) => local.is_loopback() && (host == "localhost" || host.ends_with(".localhost")),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header::HOST};

    use super::*;

    #[test]
    fn a_public_url_is_scheme_and_host() {
        for (text, expected) in [
            ("https://skep.example", "https://skep.example"),
            ("http://[::1]:7700/", "http://[::1]:7700"),
            ("https://skep.example:8443", "https://skep.example:8443"),
        ] {
            assert_eq!(text.parse::<PublicUrl>().unwrap().as_str(), expected);
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
            "https://x y",
            "javascript:alert(1)",
        ] {
            assert!(wrong.parse::<PublicUrl>().is_err(), "{wrong}");
        }
    }

    fn url(host: &str, local: &str, configured: Option<&str>) -> Result<String, ErrorCode> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        let mut extensions = Extensions::new();
        extensions.insert(LocalAddress(local.parse().unwrap()));
        let configured = configured.map(|url| url.parse::<PublicUrl>().unwrap());
        url_of_request(configured.as_ref(), &Uri::from_static("/api/session/links"), &headers, &extensions)
            .map(|url| url.to_string())
            .map_err(|failure| failure.code)
    }

    #[test]
    fn only_the_address_of_the_connection_or_the_configured_one_gets_into_a_link() {
        let refused = Err(ErrorCode::InvalidValue);
        for (host, local, expected) in [
            ("127.0.0.1:7700", "127.0.0.1:7700", Ok("http://127.0.0.1:7700")),
            // Through a tunnel to another port.
            ("localhost:8080", "127.0.0.1:7700", Ok("http://localhost:8080")),
            ("skep.localhost", "[::1]:7700", Ok("http://skep.localhost")),
            ("[::1]:7700", "[::ffff:127.0.0.1]:7700", Ok("http://[::1]:7700")),
            ("192.0.2.7:7700", "192.0.2.7:7700", Ok("http://192.0.2.7:7700")),
            ("evil.example", "127.0.0.1:7700", Err(())),
            ("evil.example:7700", "192.0.2.7:7700", Err(())),
            ("localhost:7700", "192.0.2.7:7700", Err(())),
            ("127.0.0.1:7700", "192.0.2.7:7700", Err(())),
            ("198.51.100.1:7700", "192.0.2.7:7700", Err(())),
            ("notlocalhost", "127.0.0.1:7700", Err(())),
            ("127.0.0.1@evil.example", "127.0.0.1:7700", Err(())),
            ("127.0.0.1/../evil", "127.0.0.1:7700", Err(())),
            ("127.0.0.1#evil.example", "127.0.0.1:7700", Err(())),
        ] {
            let expected = expected.map(str::to_owned).map_err(|()| ErrorCode::InvalidValue);
            assert_eq!(url(host, local, None), expected, "{host} {local}");
            let configured = Ok("https://skep.example".to_owned());
            assert_eq!(url(host, local, Some("https://skep.example")), configured, "{host}");
        }
        let without = url_of_request(None, &Uri::from_static("/"), &HeaderMap::new(), &Extensions::new());
        assert_eq!(without.map(|url| url.to_string()).map_err(|failure| failure.code), refused);
    }
}
