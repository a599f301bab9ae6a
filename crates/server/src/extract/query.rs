//! Query parameters.

use std::collections::BTreeMap;

use axum::extract::FromRequestParts;
use http::request::Parts;
use serde::{Deserialize, de::DeserializeOwned};
use skep_api::{ErrorCode, Failure};

use crate::{body::field_failure, error::Refusal, percent::percent_decoded};

/// Query parameters. An unknown parameter is refused by name.
#[derive(Debug)]
pub(crate) struct Query<T>(pub T);

/// The query of an operation without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParameters {}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Ok(Self(read_query(parts.uri.query().unwrap_or_default())?))
    }
}

/// Query parameters with a key in their name, after a prefix.
pub(crate) trait KeyPrefix {
    /// The prefix, such as `metadata.`.
    const PREFIX: &'static str;
}

/// Query parameters, and a map of those whose name is a prefix and a key.
#[derive(Debug)]
pub(crate) struct KeyedQuery<T>(pub T, pub BTreeMap<String, String>);

impl<T: DeserializeOwned + KeyPrefix, S: Send + Sync> FromRequestParts<S> for KeyedQuery<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let (rest, keyed) = split_keyed(parts.uri.query().unwrap_or_default(), T::PREFIX)?;
        Ok(Self(read_query(&rest)?, keyed))
    }
}

/// Splits a query into the parameters without the prefix and a map of those with it.
fn split_keyed(query: &str, prefix: &str) -> Result<(String, BTreeMap<String, String>), Failure> {
    let mut keyed = BTreeMap::new();
    let mut rest = Vec::new();
    for part in query.split('&') {
        let found = form_urlencoded::parse(part.as_bytes())
            .next()
            .and_then(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.into_owned())));
        match found {
            Some(_) if percent_decoded(part).is_err() => return Err(query_not_utf8()),
            Some((key, value)) => {
                if keyed.insert(key.clone(), value).is_some() {
                    let message = format!("`{prefix}{key}` is given twice; give it once");
                    return Err(Failure::new(ErrorCode::InvalidValue, message));
                }
            }
            None => rest.push(part),
        }
    }
    Ok((rest.join("&"), keyed))
}

fn query_not_utf8() -> Failure {
    let message = "the query is not UTF-8 once its %xx are decoded; a path that is not is written with \
                   `path_encoding=percent`";
    Failure::new(ErrorCode::MalformedRequest, message)
}

/// The names and values of a query.
///
/// # Errors
/// `malformed_request` if they are not UTF-8: the parser would replace invalid bytes by U+FFFD, and a path would name
/// another file.
pub(crate) fn query_pairs(query: &str) -> Result<form_urlencoded::Parse<'_>, Failure> {
    if percent_decoded(query).is_err() {
        return Err(query_not_utf8());
    }
    Ok(form_urlencoded::parse(query.as_bytes()))
}

/// Deserializes the parameters of a query.
///
/// # Errors
/// `malformed_request` as [`query_pairs`]; `unknown_field`, `missing_parameter` or `invalid_value`, each naming the
/// parameter.
pub(crate) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, Failure> {
    let pairs = serde_urlencoded::Deserializer::new(query_pairs(query)?);
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        let mut failure = field_failure(&path, &message);
        failure.message = failure.message.replacen("unknown field", "unknown query parameter", 1);
        failure
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Page {
        limit: Option<u32>,
    }

    #[test]
    fn parameters_with_a_key_in_their_name_are_kept_apart() {
        let (rest, keyed) = split_keyed("a=1&m.x=%C3%A9&m.=&m%2Ey+z=&b", "m.").unwrap();
        assert_eq!(rest, "a=1&b");
        let keyed: Vec<_> = keyed.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(keyed, [("", ""), ("x", "é"), ("y z", "")]);
        assert_eq!(split_keyed("m.x=1&m.x=1", "m.").unwrap_err().code, ErrorCode::InvalidValue);
        assert_eq!(split_keyed("m.x=%ff", "m.").unwrap_err().code, ErrorCode::MalformedRequest);
        assert_eq!(split_keyed("", "m.").unwrap(), (String::new(), BTreeMap::new()));
    }

    #[test]
    fn a_query_is_refused_by_name() {
        assert_eq!(read_query::<Page>("limit=7").unwrap().limit, Some(7));
        for (query, code, name) in [
            ("limti=7", ErrorCode::UnknownField, "query parameter `limti`"),
            ("limit=x", ErrorCode::InvalidValue, "`limit`"),
            ("limit=", ErrorCode::InvalidValue, "`limit`"),
            ("limit=%ff", ErrorCode::MalformedRequest, "UTF-8"),
            ("limit=1&limit=2", ErrorCode::InvalidValue, "`limit`"),
        ] {
            let failure = read_query::<Page>(query).unwrap_err();
            assert_eq!(failure.code, code, "{query}: {failure}");
            assert!(failure.message.contains(name), "{query}: {failure}");
        }
        assert!(read_query::<NoParameters>("").is_ok());
        assert!(read_query::<NoParameters>("a").is_err());
    }
}
