//! Content negotiation: chooses the media type of an answer from the `Accept` header.

use http::{HeaderMap, header::ACCEPT};
use skep_api::{ErrorCode, Failure};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediaType {
    /// `application/json`.
    Json,
    /// `text/csv`.
    Csv,
    /// `application/octet-stream`.
    Raw,
}

/// Chooses between JSON and CSV for a list. JSON wins where there is no `Accept` header or both have the same weight.
///
/// # Errors
/// `not_acceptable` where it takes neither.
pub(crate) fn list_media_type(headers: &HeaderMap) -> Result<MediaType, Failure> {
    choose_json_or(MediaType::Csv, headers)
}

/// Chooses between JSON and raw bytes for the content of a file, by the rules of [`list_media_type`].
///
/// # Errors
/// `not_acceptable` where it takes neither.
pub(crate) fn content_media_type(headers: &HeaderMap) -> Result<MediaType, Failure> {
    choose_json_or(MediaType::Raw, headers)
}

/// Whether the `Accept` header prefers HTML to JSON, as that of a browser does.
pub(crate) fn prefers_html(headers: &HeaderMap) -> bool {
    let ranges = media_ranges(headers);
    weight(&ranges, "text", "html") > weight(&ranges, "application", "json")
}

/// Whether the `Accept` header accepts one of these media types. A missing or empty header accepts all.
pub(crate) fn accepts_one_of(headers: &HeaderMap, media_types: &[String]) -> bool {
    let ranges = media_ranges(headers);
    let named = media_types.iter().map(|form| form.split(';').next().unwrap_or_default().trim());
    let mut named = named.map(|form| form.split_once('/').unwrap_or((form, "")));
    ranges.is_empty() || named.any(|(kind, subkind)| weight(&ranges, kind, subkind) > 0.0)
}

fn media_ranges(headers: &HeaderMap) -> Vec<MediaRange> {
    let mut ranges = Vec::new();
    for value in headers.get_all(ACCEPT) {
        let text = value.to_str().unwrap_or_default();
        ranges
            .extend(text.split(',').map(str::trim).filter(|range| !range.is_empty()).map(MediaRange::parse));
    }
    ranges
}

fn choose_json_or(other: MediaType, headers: &HeaderMap) -> Result<MediaType, Failure> {
    let ranges = media_ranges(headers);
    if ranges.is_empty() {
        return Ok(MediaType::Json);
    }
    let (kind, subkind) = other.media_type();
    let json = weight(&ranges, "application", "json");
    let weight = weight(&ranges, kind, subkind);
    match (json > 0.0, weight > 0.0) {
        (_, true) if weight > json => Ok(other),
        (true, _) => Ok(MediaType::Json),
        _ => {
            let message = format!(
                "`Accept` takes neither `application/json` nor `{kind}/{subkind}`; here are those two"
            );
            Err(Failure::new(ErrorCode::NotAcceptable, message))
        }
    }
}

impl MediaType {
    fn media_type(self) -> (&'static str, &'static str) {
        match self {
            Self::Json => ("application", "json"),
            Self::Csv => ("text", "csv"),
            Self::Raw => ("application", "octet-stream"),
        }
    }
}

/// One media range of an `Accept` header.
struct MediaRange {
    kind: String,
    subtype: String,
    weight: f32,
}

impl MediaRange {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (kind, subkind) = name.split_once('/').unwrap_or((&name, ""));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        // An invalid weight is ignored.
        let weight = weight.and_then(|text| text.parse().ok()).filter(|q| (0.0..=1.0).contains(q));
        Self { kind: kind.to_owned(), subtype: subkind.to_owned(), weight: weight.unwrap_or(1.0) }
    }

    /// The specificity with which this range matches a media type: 0 for `*/*`, 2 for an exact match.
    fn specificity(&self, kind: &str, subkind: &str) -> Option<u8> {
        match (self.kind.as_str(), self.subtype.as_str()) {
            ("*", "*") => Some(0),
            (own, "*") if own == kind => Some(1),
            (own, own_sub) if own == kind && own_sub == subkind => Some(2),
            _ => None,
        }
    }
}

/// The weight of the most specific range that matches a media type; 0 where none does.
fn weight(ranges: &[MediaRange], kind: &str, subkind: &str) -> f32 {
    let named = ranges.iter().filter_map(|range| Some((range.specificity(kind, subkind)?, range.weight)));
    named.max_by_key(|(exactness, _)| *exactness).map_or(0.0, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn list_media_type_for(accept: &[u8]) -> Option<MediaType> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_bytes(accept).unwrap())]);
        list_media_type(&headers).ok()
    }

    #[test]
    fn the_media_type_with_the_highest_weight_is_chosen() {
        assert_eq!(list_media_type(&HeaderMap::new()), Ok(MediaType::Json));
        for (accept, expected) in [
            ("text/csv", Some(MediaType::Csv)),
            ("Text/CSV; charset=utf-8", Some(MediaType::Csv)),
            ("text/*", Some(MediaType::Csv)),
            ("application/json;q=0.5, text/csv", Some(MediaType::Csv)),
            ("text/csv, */*;q=0.1", Some(MediaType::Csv)),
            ("*/*", Some(MediaType::Json)),
            ("", Some(MediaType::Json)),
            ("text/csv;q=0.2, application/json", Some(MediaType::Json)),
            ("text/csv;q=0, */*", Some(MediaType::Json)),
            ("text/html", None),
            ("text/csv;q=0", None),
            ("csv", None),
        ] {
            assert_eq!(list_media_type_for(accept.as_bytes()), expected, "{accept}");
        }
    }

    #[test]
    fn one_accepted_media_type_suffices() {
        let forms = ["application/json".to_owned(), "text/plain; version=0.0.4".to_owned()];
        assert!(accepts_one_of(&HeaderMap::new(), &forms));
        for (accept, expected) in [
            ("", true),
            ("*/*", true),
            ("text/html, */*;q=0.1", true),
            ("application/*", true),
            ("Text/Plain", true),
            ("application/json;q=0, text/plain", true),
            ("application/json;q=0, text/*;q=0", false),
            ("image/png", false),
            ("*/*;q=0", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(accepts_one_of(&headers, &forms), expected, "{accept}");
        }
    }

    proptest! {
        #[test]
        fn no_accept_header_panics(bytes in prop::collection::vec(32_u8..127, 0..60)) {
            let _ = list_media_type_for(&bytes);
        }
    }
}
