//! Log lines, to standard error.

use std::io;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, Settings};

/// Begins to log as the settings say.
pub(crate) fn begin(settings: &Settings) -> anyhow::Result<()> {
    let level = &settings.log_level;
    let filter = EnvFilter::builder()
        .parse(level)
        .with_context(|| format!("`{level}` is no log level; give error, warn, info, debug or trace"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let begun = match settings.log_format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Text => {
            let colours = rustix::termios::isatty(io::stderr());
            lines.with_ansi(colours).try_init()
        }
    };
    begun.map_err(|error| anyhow::anyhow!("logging could not begin: {error}"))
}
