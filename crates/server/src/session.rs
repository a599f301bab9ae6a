//! Browser sessions: the session cookie, and the check that the request comes from the dashboard's own origin.
//!
//! A browser also sends its cookies with requests that other sites cause (CSRF). So a cookie is used only where the
//! browser reports that the request is same-origin; otherwise it is ignored.

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Uri,
    header::{COOKIE, HOST, ORIGIN},
};
use jiff::Timestamp;
use skep_accounts::{SessionHash, SessionToken};

use crate::{bearer::has_key, door::origin::Origin};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The name of the cookie on a plain-text connection.
pub(crate) const PLAIN_COOKIE: &str = "skep_session";
/// The name of the cookie under TLS. Browsers accept the prefix `__Host-` only from this exact host, so that a sibling
/// domain cannot set the cookie.
const SECURE_COOKIE: &str = "__Host-skep_session";

/// The session of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentSession {
    pub hash: SessionHash,
    /// When the session expires at the latest.
    pub expires_at: Timestamp,
}

/// The session token of a request; `None` where it has none, or its cookie must be ignored.
pub(crate) fn session_token(
    uri: &Uri,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Option<Result<SessionToken, skep_accounts::Error>> {
    // A key takes precedence, even where it is refused. VMs have no browser sessions.
    if has_key(headers) || Origin::from_extensions(extensions).is_from_vm() {
        return None;
    }
    let encrypted = is_encrypted(extensions);
    let mut tokens = cookies(headers, cookie_name(encrypted));
    let first = tokens.next()?;
    if !is_same_origin(uri, headers, encrypted) {
        return None;
    }
    // Of two cookies of this name, one was set by an attacker, and it is unknown which.
    if tokens.next().is_some() {
        return Some(Err(skep_accounts::Error::InvalidToken));
    }
    Some(
        std::str::from_utf8(first)
            .map_err(|_| skep_accounts::Error::InvalidToken)
            .and_then(SessionToken::parse),
    )
}

/// Whether a request came under TLS.
pub(crate) fn is_encrypted(extensions: &Extensions) -> bool {
    Origin::from_extensions(extensions).https()
}

const fn cookie_name(encrypted: bool) -> &'static str {
    if encrypted { SECURE_COOKIE } else { PLAIN_COOKIE }
}

/// The values of all cookies of a name. HTTP/2 may split the header.
fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let pairs = headers.get_all(COOKIE).into_iter().flat_map(|value| value.as_bytes().split(|b| *b == b';'));
    pairs.filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value)
    })
}

/// Whether the request is same-origin by `Origin` and `Sec-Fetch-Site`. At least one of the headers must be present,
/// and each that is present must agree.
fn is_same_origin(uri: &Uri, headers: &HeaderMap, encrypted: bool) -> bool {
    let (Ok(origin), Ok(site)) = (single(headers, &ORIGIN), single(headers, &SEC_FETCH_SITE)) else {
        return false;
    };
    let Some(own) = own_origin(uri, headers, encrypted) else { return false };
    let origin_agrees = origin.is_none_or(|origin| origin.as_bytes() == own.as_bytes());
    let site_agrees = site.is_none_or(|site| site.as_bytes() == b"same-origin");
    (origin.is_some() || site.is_some()) && origin_agrees && site_agrees
}

/// Whether a browser reports that a page of another origin sent the request.
pub(crate) fn is_cross_origin(uri: &Uri, headers: &HeaderMap, extensions: &Extensions) -> bool {
    let is_from_browser = headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
    is_from_browser && !is_same_origin(uri, headers, is_encrypted(extensions))
}

/// The origin that the request was sent to, as a browser writes it; `None` where `Host` and the authority contradict.
pub(crate) fn own_origin(uri: &Uri, headers: &HeaderMap, encrypted: bool) -> Option<String> {
    let host = single(headers, &HOST)
        .ok()?
        .map(|host| host.to_str().ok())
        .map_or(Some(None), |host| host.map(Some))?;
    let authority = uri.authority().map(|authority| authority.as_str());
    let host = match (host, authority) {
        (Some(host), Some(authority)) if host != authority => return None,
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) => return None,
    };
    let scheme = if encrypted { "https" } else { "http" };
    Some(format!("{scheme}://{}", host.to_ascii_lowercase()))
}

/// The value of a header that may occur once; an error where it occurs more often.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ()> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(()) } else { Ok(first) }
}

/// The `Set-Cookie` value that stores a token for its lifetime.
pub(crate) fn set_session_cookie(
    token: &SessionToken,
    max_age: std::time::Duration,
    encrypted: bool,
) -> String {
    set_cookie(token.expose(), max_age.as_secs(), encrypted)
}

/// The `Set-Cookie` value that deletes the cookie.
pub(crate) fn clear_session_cookie(encrypted: bool) -> String {
    set_cookie("", 0, encrypted)
}

fn set_cookie(value: &str, seconds: u64, encrypted: bool) -> String {
    let (name, secure) = (cookie_name(encrypted), if encrypted { "; Secure" } else { "" });
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(
        lines: &[(&'static str, &str)],
        encrypted: bool,
    ) -> Option<Result<String, skep_accounts::Error>> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let mut extensions = Extensions::new();
        if encrypted {
            extensions.insert(Origin::by_https());
        }
        let found = session_token(&Uri::from_static("/api/whoami"), &headers, &extensions);
        found.map(|token| token.map(|token| token.expose().to_owned()))
    }

    #[test]
    fn under_tls_only_the_host_prefixed_cookie_is_used() {
        let token = "ab".repeat(32);
        let plain = format!("{PLAIN_COOKIE}={token}");
        let secure = format!("other=1;  {SECURE_COOKIE}={token}");
        let same = ("origin", "https://skep.example");
        let host = ("host", "skep.example");
        assert_eq!(request(&[host, same, ("cookie", &secure)], true), Some(Ok(token.clone())));
        assert_eq!(request(&[host, same, ("cookie", &plain)], true), None);
        assert_eq!(
            request(&[host, same, ("cookie", &secure)], false),
            None,
            "https is another origin than http"
        );
        assert!(
            set_session_cookie(
                &SessionToken::parse(&token).unwrap(),
                std::time::Duration::from_secs(7),
                true
            )
            .starts_with("__Host-skep_session=ab")
        );
        for (line, encrypted) in [(clear_session_cookie(true), true), (clear_session_cookie(false), false)] {
            assert_eq!(line.contains("; Secure"), encrypted, "{line}");
            assert!(
                line.contains("; HttpOnly")
                    && line.contains("; SameSite=Strict")
                    && line.contains("; Path=/")
            );
            assert!(!line.contains("Domain"), "{line}");
        }
    }

    #[test]
    fn the_cookie_of_a_contradictory_request_is_ignored() {
        let cookie = format!("{PLAIN_COOKIE}={}", "ab".repeat(32));
        let cookie = ("cookie", cookie.as_str());
        let same = ("origin", "http://skep.example");
        let host = ("host", "skep.example");
        assert!(request(&[host, same, cookie], false).is_some());
        assert!(request(&[("host", "SKEP.example"), same, cookie], false).is_some(), "hosts have no case");
        for lines in [
            &[same, cookie][..],
            &[host, host, same, cookie],
            &[host, same, same, cookie],
            &[host, same, ("sec-fetch-site", "cross-site"), cookie],
            &[host, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "same-origin"), cookie],
            &[host, same, ("authorization", ""), cookie],
        ] {
            assert_eq!(request(lines, false), None, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn no_cookie_panics(bytes in prop::collection::vec(32_u8..=255, 0..100), at in 0_usize..3) {
            let not_ascii = bytes.into_iter().filter(|b| *b != 127).collect::<Vec<_>>();
            let begun = [&b""[..], b"skep_session=", b"skep_session"][at];
            let mut headers = HeaderMap::new();
            let value = HeaderValue::from_bytes(&[begun, &not_ascii].concat()).unwrap();
            headers.insert(COOKIE, value);
            headers.insert(HOST, HeaderValue::from_static("x"));
            headers.insert(ORIGIN, HeaderValue::from_static("http://x"));
            if let Some(Ok(token)) = session_token(&Uri::from_static("/"), &headers, &Extensions::new()) {
                prop_assert_eq!(token.expose().len(), 64);
            }
        }
    }
}
