//! The key of a request: in `Authorization`, or among the subprotocols of a WebSocket.

use http::{
    HeaderMap,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use skep_api::{ErrorCode, Failure, exec_stream::BEARER_PROTOCOL};

/// Whether a request carries a key rather than a session.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || protocol_tokens(headers).next().is_some()
}

/// The tokens among the subprotocols of a WebSocket request, where a browser cannot set `Authorization`.
fn protocol_tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let is_upgrade =
        headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter().filter(move |_| is_upgrade);
    let offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    offered.filter_map(|protocol| protocol.trim_matches([' ', '\t']).strip_prefix(BEARER_PROTOCOL))
}

/// The single token of the request, not yet checked.
pub(crate) fn token_of_request(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut tokens = protocol_tokens(headers);
    match (tokens.next(), tokens.next(), headers.contains_key(AUTHORIZATION)) {
        (None, ..) => authorization_token(headers),
        (Some(token), None, false) => Ok(token),
        _ => {
            let message =
                "the request brings more than one key; send one, in `Authorization` or as a subprotocol";
            Err(Failure::new(ErrorCode::MalformedRequest, message))
        }
    }
}

/// The token of the `Authorization` header, not yet checked.
fn authorization_token(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Err(missing_token()) };
    if values.next().is_some() {
        let message = "the request has more than one `Authorization` header; send one";
        return Err(Failure::new(ErrorCode::MalformedRequest, message));
    }
    let text = value.as_bytes().trim_ascii();
    if text.is_empty() {
        return Err(missing_token());
    }
    let text = std::str::from_utf8(text).map_err(|_| invalid_token())?;
    let (scheme, token) = text.split_once([' ', '\t']).ok_or_else(invalid_token)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid_token());
    }
    Ok(token.trim_start_matches([' ', '\t']))
}

fn missing_token() -> Failure {
    Failure::new(ErrorCode::MissingToken, "Missing token")
}

fn invalid_token() -> Failure {
    skep_accounts::Error::InvalidToken.into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn token(values: &[&[u8]]) -> Result<String, (ErrorCode, String)> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        token_of_request(&headers).map(str::to_owned).map_err(|failure| (failure.code, failure.message))
    }

    #[test]
    fn the_scheme_matches_in_any_case_with_any_whitespace() {
        for value in ["Bearer k", "bearer k", "BEARER   k", "bEaReR \t k", "  Bearer k  "] {
            assert_eq!(token(&[value.as_bytes()]), Ok("k".to_owned()), "{value}");
        }
    }

    #[test]
    fn missing_and_invalid_tokens_have_the_messages_of_the_specification() {
        let missing = Err((ErrorCode::MissingToken, "Missing token".to_owned()));
        assert_eq!(token(&[]), missing);
        assert_eq!(token(&[b""]), missing);
        assert_eq!(token(&[b"  \t"]), missing);
        let invalid = Err((ErrorCode::InvalidToken, "Invalid token".to_owned()));
        for value in [&b"Bearer"[..], b"Basic abc", b"sk-skep-prod-1", b"Bearerx y", b"Bearer \xff"] {
            assert_eq!(token(&[value]), invalid, "{value:?}");
        }
        assert_eq!(token(&[b"Bearer a", b"Bearer a"]).unwrap_err().0, ErrorCode::MalformedRequest);
    }
}
