//! Log lines, to standard error.

use std::io;

use anyhow::{Context, bail};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::settings::{LogFormat, Settings};

/// Begins to log as the settings say.
pub(crate) fn begin(settings: &Settings) -> anyhow::Result<()> {
    let filter = filter(&settings.log_level)?;
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

/// Whether the levels are levels.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
    filter(&settings.log_level).map(drop)
}

/// Levels, alone or of a module: `info,skep_swarm=debug`.
fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    for directive in text.split(',') {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level).trim();
        // The library takes a word that is no level for a module's name, and then nothing else would be logged; an
        // empty one it takes for `error`.
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            bail!("`{directive}` is no log level; give error, warn, info, debug or trace, or MODULE=LEVEL");
        }
    }
    EnvFilter::builder().parse(text).with_context(|| format!("`{text}` names no log levels"))
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn only_levels_are_taken_for_levels() {
        for good in ["info", "WARN", "off", "info,skep_swarm=debug", "skep_server=trace, error"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for wrong in ["", "loud", "info,", "info,skep_server", "skep_server=loud", "="] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
    }
}
