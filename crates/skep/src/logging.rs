//! Sets up logging to standard error.

use std::{fmt, io};

use anyhow::{Context, bail};
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    filter::LevelFilter,
    fmt::{
        FormatFields,
        format::{DefaultFields, Writer},
    },
};

use crate::{
    escape,
    settings::{LogFormat, Settings},
};

/// Formats fields, including the message, on one line. Text from callers and guests can neither start a new log line
/// nor contain control characters; JSON needs no such formatter.
struct SingleLineFields;

impl<'writer> FormatFields<'writer> for SingleLineFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&escape::escaped(&text, escape::FIELD))
    }
}

/// Starts logging with the format and level of the settings.
pub(crate) fn init(settings: &Settings) -> anyhow::Result<()> {
    let filter = filter(&settings.log_level)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let begun = match settings.log_format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Text => {
            let colours = rustix::termios::isatty(io::stderr());
            lines.with_ansi(colours).fmt_fields(SingleLineFields).try_init()
        }
    };
    begun.map_err(|error| anyhow::anyhow!("logging could not be set up: {error}"))
}

/// Checks the log level of the settings.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
    filter(&settings.log_level).map(drop)
}

/// Parses levels, alone or per module: `info,skep_swarm=debug`.
fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    for directive in text.split(',') {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level).trim();
        // EnvFilter would take an unknown word for a module name and log nothing else; it takes an empty one for
        // `error`.
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            bail!("`{directive}` is no log level: use error, warn, info, debug or trace, or MODULE=LEVEL");
        }
    }
    EnvFilter::builder().parse(text).with_context(|| format!("`{text}` is not a list of log levels"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{SingleLineFields, filter};

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn untrusted_text_cannot_forge_a_log_line() {
        const TEXT: &str = "x\nINFO forged\u{1b}[2J\u{202e}";
        let logged = |one_line: bool| {
            let written = LogBuffer::default();
            let writer = {
                let written = written.clone();
                move || written.clone()
            };
            let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(writer);
            let log = || {
                tracing::info!(name = TEXT, shown = %TEXT, "about {TEXT}");
                tracing::info_span!("call", who = %TEXT).in_scope(|| tracing::info!("within"));
            };
            if one_line {
                tracing::subscriber::with_default(lines.fmt_fields(SingleLineFields).finish(), log);
            } else {
                tracing::subscriber::with_default(lines.finish(), log);
            }
            let bytes = written.0.lock().unwrap().clone();
            String::from_utf8(bytes).unwrap()
        };
        let text = logged(true);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.contains("\\nINFO forged"), "{text}");
        // Control: without the formatter, the forged line is written.
        assert!(logged(false).lines().any(|line| line.starts_with("INFO forged")));
    }

    #[test]
    fn invalid_levels_are_refused() {
        for good in ["info", "WARN", "off", "info,skep_swarm=debug", "skep_server=trace, error"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for wrong in ["", "loud", "info,", "info,skep_server", "skep_server=loud", "="] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
    }
}
