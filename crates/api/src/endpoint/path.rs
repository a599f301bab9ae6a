//! The variable segments of paths.

use std::fmt::Display;

use crate::Failure;

/// The variable segments of a path, in their order.
pub trait PathFields: Sized + Send + Sync + 'static {
    /// The description of each segment.
    const FIELDS: &'static [PathField];

    /// Parses segments whose percent-encoding is removed, one for each of [`Self::FIELDS`].
    ///
    /// # Errors
    /// That of a resource that does not exist, if none can have such segments.
    fn parse(segments: &[String]) -> Result<Self, Failure>;

    /// The segments as text.
    fn to_segments(&self) -> Vec<String>;
}

/// The description of a variable segment.
#[derive(Debug, Clone, Copy)]
pub struct PathField {
    /// The name in braces in [`super::Route::path`].
    pub name: &'static str,
    /// What it names, in Markdown.
    pub description: &'static str,
    /// An example.
    pub example: &'static str,
}

/// The id of a resource, as the only variable segment of a path.
pub trait PathId: Display + Sized + Send + Sync + 'static {
    /// The description of the segment.
    const FIELD: PathField;

    /// Parses the segment.
    ///
    /// # Errors
    /// That of a resource that does not exist, if none can have this id.
    fn parse(text: &str) -> Result<Self, Failure>;
}

impl PathFields for () {
    const FIELDS: &'static [PathField] = &[];

    fn parse(_: &[String]) -> Result<Self, Failure> {
        Ok(())
    }

    fn to_segments(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<I: PathId> PathFields for I {
    const FIELDS: &'static [PathField] = &[I::FIELD];

    fn parse(segments: &[String]) -> Result<Self, Failure> {
        <I as PathId>::parse(segments.first().map_or("", String::as_str))
    }

    fn to_segments(&self) -> Vec<String> {
        vec![self.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccountId, ErrorCode, KeyId, WebhookId, waitlist::WaitlistRef, webhooks::DeliveryPath};

    fn parsed<P: PathFields>(segments: &[&str]) -> Result<Vec<String>, Failure> {
        let segments: Vec<String> = segments.iter().map(|&segment| segment.to_owned()).collect();
        assert_eq!(segments.len(), P::FIELDS.len());
        P::parse(&segments).map(|path| path.to_segments())
    }

    #[test]
    fn the_segments_of_a_path_are_those_that_it_was_parsed_from() {
        let delivery = [WebhookId::FIELD.example, "dlv_01jv0000000000000000000000"];
        assert_eq!(parsed::<DeliveryPath>(&delivery).unwrap(), delivery);
        for text in ["wait_01jv0000000000000000000000", "ada@example.com"] {
            assert_eq!(parsed::<WaitlistRef>(&[text]).unwrap(), [text]);
        }
        assert_eq!(parsed::<()>(&[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_malformed_id_names_nothing_that_exists() {
        let webhook = WebhookId::FIELD.example;
        for (refused, code, named) in [
            (parsed::<KeyId>(&["key_x"]), ErrorCode::UnknownKey, "`key_x`"),
            (parsed::<AccountId>(&[""]), ErrorCode::UnknownAccount, "``"),
            (parsed::<WebhookId>(&["../x"]), ErrorCode::UnknownWebhook, "`../x`"),
            (parsed::<DeliveryPath>(&["x", "y"]), ErrorCode::UnknownWebhook, "`x`"),
            (parsed::<DeliveryPath>(&[webhook, "y"]), ErrorCode::UnknownDelivery, "`y`"),
        ] {
            let failure = refused.unwrap_err();
            assert_eq!(failure.code, code, "{failure}");
            assert!(failure.message.contains(named), "{failure}");
        }
    }
}
