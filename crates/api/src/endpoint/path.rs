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
    /// That of a resource that does not exist: no resource has a malformed id.
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
    /// That of a resource that does not exist.
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
