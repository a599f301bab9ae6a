//! The IP address of a caller, and its check against the account's allowlist.

use std::{convert::Infallible, net::IpAddr};

use axum::extract::FromRequestParts;
use http::request::Parts;
use skep_api::{ErrorCode, Failure};
use skep_egress::Networks;

use super::origin::Origin;

/// The caller's address, where it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallerAddress(pub Option<IpAddr>);

impl<S: Sync> FromRequestParts<S> for CallerAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(Origin::from_extensions(&parts.extensions).address()))
    }
}

/// Checks a caller's address against an account's allowlist. An empty list allows every address.
///
/// # Errors
/// `address_not_allowed`, also where the address is unknown. An entry that is no address or network matches nothing.
pub(crate) fn check(allowed: &[String], peer: Option<IpAddr>) -> Result<(), Failure> {
    if allowed.is_empty() {
        return Ok(());
    }
    // A dual-stack listener sees IPv4 callers as ::ffff:a.b.c.d.
    let peer = peer.map(|address| address.to_canonical());
    if peer.is_some_and(|peer| Networks::parse(allowed).contains(peer)) {
        return Ok(());
    }
    let from = peer.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string());
    let message = format!("this account does not allow calls from {from}; call from an allowed address");
    Err(Failure::new(ErrorCode::AddressNotAllowed, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_networks_of_the_list_may_call() {
        let list = ["10.0.0.0/8".to_owned(), "2001:db8::/32".to_owned(), "192.0.2.7".to_owned()];
        for (peer, allowed) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8::1", true),
            ("::1", false),
        ] {
            assert_eq!(check(&list, peer.parse().ok()).is_ok(), allowed, "{peer}");
        }
        assert!(check(&list, None).is_err());
        assert!(check(&["nonsense".to_owned()], "10.0.0.1".parse().ok()).is_err());
        assert!(check(&[], None).is_ok());
    }
}
