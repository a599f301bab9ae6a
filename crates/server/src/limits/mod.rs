//! How often somebody may ask.

pub(crate) mod hourly;
