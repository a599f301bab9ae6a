//! The addresses of the server at which browser sessions may be created.
//!
//! A browser sends the cookies of a host to all ports of that host (RFC 6265, section 8.5). Where it reaches the server
//! over the loopback interface, other programs of its machine serve at other ports of the same host. So the sessions of
//! each key are created at a host name of their own there, see [`session_host`].

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use axum::extract::FromRequestParts;
use http::request::Parts;
use skep_accounts::{KeyHash, session_host};
use skep_api::{ErrorCode, Failure};

use crate::{
    door::origin::Origin,
    own_url::{LocalAddress, PublicUrl},
    session::own_origin,
};

impl PublicUrl {
    /// The address at which sessions of a key are created, for a browser that reaches the server at this address. `None` for
    /// loopback addresses other than `127.0.0.1` and `::1`: the session host does not resolve to them, so a link could lead
    /// to another program.
    pub fn for_sessions_of(&self, key: &KeyHash) -> Option<Self> {
        match (self.is_localhost(), self.ip()) {
            (true, _) => Some(self.at_host(session_host(key))),
            (false, Some(ip)) if ip.is_loopback() => None,
            (false, _) => Some(self.clone()),
        }
    }

    /// Whether the host is `localhost`, a name below it, or an address that it stands for.
    fn is_localhost(&self) -> bool {
        match self.ip() {
            // Systems connect to an unspecified address over the loopback interface.
            Some(ip) => ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST || ip.is_unspecified(),
            None => self.host_name() == "localhost" || self.host_name().ends_with(".localhost"),
        }
    }

    fn is_loopback(&self) -> bool {
        self.is_localhost() || self.ip().is_some_and(|ip| ip.is_loopback())
    }
}

/// The address that a request was sent to.
#[derive(Debug)]
pub(crate) struct RequestAddress {
    /// The address in `Host`, which the sender chooses; `None` if it is missing or malformed.
    named: Option<PublicUrl>,
    /// The local address of the connection.
    local: Option<IpAddr>,
    by_proxy: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}

impl RequestAddress {
    fn of(parts: &Parts) -> Self {
        let Parts { uri, headers, extensions, .. } = parts;
        let origin = Origin::from_extensions(extensions);
        Self {
            named: own_origin(uri, headers, origin.https()).and_then(|origin| origin.parse().ok()),
            local: extensions.get::<LocalAddress>().map(|local| local.0.ip().to_canonical()),
            by_proxy: origin.by_proxy(),
        }
    }

    /// The address for a link that opens a session of a key: the configured one, or the one that the sender names if it is
    /// an address of this server.
    ///
    /// # Errors
    /// `invalid_value` for an address that another server may have.
    pub(crate) fn for_link(
        &self,
        configured: Option<&PublicUrl>,
        key: &KeyHash,
    ) -> Result<PublicUrl, Failure> {
        if let Some(configured) = configured {
            return Ok(configured.clone());
        }
        let known = match &self.named {
            // A proxy that replaces `Host` may send its own loopback address, which is not that of the browser.
            Some(named) if named.is_localhost() && !self.by_proxy => named.for_sessions_of(key),
            Some(named) if named.ip().is_some() && named.ip() == self.local => named.for_sessions_of(key),
            _ => None,
        };
        known.ok_or_else(|| {
            let address =
                self.named.as_ref().map_or_else(|| "missing or malformed".to_owned(), |named| format!("`{named}`"));
            let message = format!(
                "no login link leads to the address of this request, {address}; send it to the address that the server \
                 listens on, or start the server with `--public-url`"
            );
            Failure::new(ErrorCode::InvalidValue, message)
        })
    }

    /// Checks that a session of a key may be created at this address.
    ///
    /// # Errors
    /// `session_host_required`.
    pub(crate) fn check_session(&self, configured: Option<&PublicUrl>, key: &KeyHash) -> Result<(), Failure> {
        let Some(named) = &self.named else {
            return Err(required("the `Host` of the request is missing or malformed".to_owned()));
        };
        if configured == Some(named) || !(named.is_loopback() || self.is_direct_over_loopback()) {
            return Ok(());
        }
        let own = named.at_host(session_host(key));
        if *named == own {
            return Ok(());
        }
        let allowed = configured.unwrap_or(&own);
        Err(required(format!(
            "browsers send cookies of `{named}` to other ports of this machine too, so no session is created there, but at \
             {allowed}"
        )))
    }

    /// Whether the request arrived over the loopback interface, and not from a trusted proxy.
    fn is_direct_over_loopback(&self) -> bool {
        !self.by_proxy && self.local.is_some_and(|local| local.is_loopback())
    }
}

fn required(reason: String) -> Failure {
    let message =
        format!("{reason}; log in by a link of `skep open`, or start the server with `--public-url`");
    Failure::new(ErrorCode::SessionHostRequired, message)
}

#[cfg(test)]
mod tests {
    use http::{Request, header::HOST};

    use super::*;

    const KEY: KeyHash = KeyHash::from_bytes([7; 32]);

    fn address(host: &str, local: &str, by_proxy: bool) -> RequestAddress {
        let mut request = Request::builder().uri("/api/session");
        if !host.is_empty() {
            request = request.header(HOST, host);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        parts.extensions.insert(LocalAddress(local.parse().unwrap()));
        RequestAddress { by_proxy, ..RequestAddress::of(&parts) }
    }

    #[test]
    fn only_the_address_of_the_connection_or_the_configured_one_gets_into_a_link() {
        let own = session_host(&KEY);
        let by_proxy = address("localhost", "127.0.0.1:7700", true).for_link(None, &KEY);
        assert_eq!(by_proxy.map_err(|failure| failure.code), Err(ErrorCode::InvalidValue));
        for (host, local, expected) in [
            ("127.0.0.1:7700", "127.0.0.1:7700", Some(format!("http://{own}:7700"))),
            // Through a tunnel: to another port, and to another address of the server.
            ("localhost:8080", "127.0.0.1:7700", Some(format!("http://{own}:8080"))),
            ("localhost:8080", "192.0.2.7:7700", Some(format!("http://{own}:8080"))),
            ("skep.localhost", "[::1]:7700", Some(format!("http://{own}"))),
            (own.as_str(), "127.0.0.1:7700", Some(format!("http://{own}"))),
            ("[::1]:7700", "[::ffff:127.0.0.1]:7700", Some(format!("http://{own}:7700"))),
            ("192.0.2.7:7700", "192.0.2.7:7700", Some("http://192.0.2.7:7700".to_owned())),
            // Browsers look for names below `localhost` at other addresses.
            ("127.0.0.2:7700", "127.0.0.2:7700", None),
            ("evil.example", "127.0.0.1:7700", None),
            ("evil.example:7700", "192.0.2.7:7700", None),
            ("198.51.100.1:7700", "192.0.2.7:7700", None),
            ("notlocalhost", "127.0.0.1:7700", None),
            ("localhost.evil.example", "127.0.0.1:7700", None),
            ("127.0.0.1@evil.example", "127.0.0.1:7700", None),
            ("127.0.0.1/../evil", "127.0.0.1:7700", None),
            ("127.0.0.1#evil.example", "127.0.0.1:7700", None),
            ("", "127.0.0.1:7700", None),
        ] {
            let address = address(host, local, false);
            let link =
                address.for_link(None, &KEY).map(|url| url.to_string()).map_err(|failure| failure.code);
            assert_eq!(link, expected.ok_or(ErrorCode::InvalidValue), "{host} {local}");
            let configured: PublicUrl = "https://skep.example".parse().unwrap();
            assert_eq!(address.for_link(Some(&configured), &KEY).unwrap(), configured, "{host}");
        }
    }

    #[test]
    fn over_the_loopback_interface_sessions_are_created_at_the_host_of_their_key_only() {
        let own = session_host(&KEY);
        let of_other_key = session_host(&KeyHash::from_bytes([8; 32]));
        let loopback = "127.0.0.1:7700";
        for (host, local, by_proxy, allowed) in [
            (format!("{own}:7700"), loopback, false, true),
            (format!("{}:9999", own.to_ascii_uppercase()), loopback, false, true),
            ("localhost:7700".to_owned(), loopback, false, false),
            ("localhost.:7700".to_owned(), loopback, false, false),
            (format!("{own}.:7700"), loopback, false, false),
            (format!("{of_other_key}:7700"), loopback, false, false),
            (format!("x.{own}:7700"), loopback, false, false),
            ("127.0.0.1:7700".to_owned(), loopback, false, false),
            ("127.8.8.8:7700".to_owned(), "127.8.8.8:7700", false, false),
            ("0.0.0.0:7700".to_owned(), loopback, false, false),
            ("[::]:7700".to_owned(), "[::1]:7700", false, false),
            ("[::1]:7700".to_owned(), "[::1]:7700", false, false),
            ("[::ffff:127.0.0.1]:7700".to_owned(), loopback, false, false),
            // Names of the loopback address in /etc/hosts.
            ("ip6-localhost:7700".to_owned(), "[::1]:7700", false, false),
            ("localhost.localdomain:7700".to_owned(), loopback, false, false),
            (String::new(), "192.0.2.7:7700", false, false),
            // By a tunnel from the machine of the browser.
            ("localhost:7700".to_owned(), "192.0.2.7:7700", false, false),
            ("localhost:7700".to_owned(), loopback, true, false),
            // Other machines, and a proxy on this one.
            ("192.0.2.7:7700".to_owned(), "192.0.2.7:7700", false, true),
            ("skep.example".to_owned(), "192.0.2.7:7700", false, true),
            ("skep.example".to_owned(), loopback, true, true),
        ] {
            let checked = address(&host, local, by_proxy).check_session(None, &KEY);
            let expected = if allowed { Ok(()) } else { Err(ErrorCode::SessionHostRequired) };
            assert_eq!(checked.map_err(|failure| failure.code), expected, "{host} {local}");
        }
        let named: PublicUrl = "http://localhost:7700".parse().unwrap();
        let check = |host| address(host, loopback, false).check_session(Some(&named), &KEY);
        assert!(check("localhost:7700").is_ok(), "the operator chose this address");
        assert!(check("localhost:7701").is_err() && check("127.0.0.1:7700").is_err());
        assert!(check(&format!("{own}:7700")).is_ok());
    }
}
