//! Output of the verbs: tables, JSON and error messages.

use std::{
    borrow::Cow,
    io::{self, ErrorKind, IsTerminal, Write},
    pin::pin,
    process::ExitCode,
    time::Duration,
};

use comfy_table::{Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::{escape, failure::Report, invocation::Invocation, target::UsageError};

/// Spinners appear after this delay.
const SPINNER_DELAY: Duration = Duration::from_millis(300);
/// The exit code of a usage error, the same as clap's.
const USAGE_EXIT_CODE: u8 = 2;
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// Prints text and a line end to standard output. On a terminal, control characters in it are escaped. All output goes
/// through here, [`json`] or [`eprint_line`], except the content of files and the output of programs. A closed pipe, as with
/// `head`, is not an error.
pub(crate) fn line(text: &str) -> io::Result<()> {
    bytes(format!("{}\n", for_stdout(text, escape::MULTI_LINE)).as_bytes())
}

/// Prints bytes unescaped, also on a terminal.
pub(crate) fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Prints a line to standard error. Failures to write are ignored: the terminal may have been closed.
pub(crate) fn eprint_line(text: &str) {
    let _ = if io::stderr().is_terminal() {
        writeln!(io::stderr(), "{}", escape::escaped(text, escape::MULTI_LINE))
    } else {
        writeln!(io::stderr(), "{text}")
    };
}

/// Whether the reading end of standard output is closed.
pub(crate) fn is_stdout_closed() -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Awaits `work`. On a terminal, shows a spinner with the text `what` if it takes long.
pub(crate) async fn with_spinner<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if !io::stderr().is_terminal() {
        return work.await;
    }
    if let Ok(done) = tokio::time::timeout(SPINNER_DELAY, &mut work).await {
        return done;
    }
    let bar = spinner();
    bar.set_message(what.to_owned());
    let done = work.await;
    bar.finish_and_clear();
    done
}

/// A spinner with the elapsed time; hidden if standard error is not a terminal.
pub(crate) fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(SPINNER_INTERVAL);
    bar
}

/// A progress bar for bytes, hidden until [`show_bar`].
pub(crate) fn bytes_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
    let style = "{bytes} of {total_bytes} ({bytes_per_sec}, {eta} left) {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// Shows a hidden bar if standard error is a terminal.
pub(crate) fn show_bar(bar: &ProgressBar) {
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.enable_steady_tick(SPINNER_INTERVAL);
}

/// Prints an answer of the API unchanged; on a terminal, control characters become JSON escapes.
pub(crate) fn json(text: &[u8]) -> io::Result<()> {
    if io::stdout().is_terminal() {
        bytes(escape::escaped_json(&String::from_utf8_lossy(text)).as_bytes())?;
    } else {
        bytes(text)?;
    }
    line("")
}

/// Prints a value as JSON, as the API would.
pub(crate) fn value(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(json(serde_json::to_string(value)?.as_bytes())?)
}

/// Prints a table without borders, so that other programs can split its columns.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| for_stdout(&cell, escape::FIELD).into_owned()));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    line(&lines.join("\n"))
}

/// Escapes a line of a file or a VM for a terminal, line ends included.
pub(crate) fn visible(text: &str) -> String {
    for_stdout(text, escape::SINGLE_LINE).into_owned()
}

/// Like [`visible`], but keeps line ends; for text that is printed by [`bytes`].
pub(crate) fn visible_lines(text: &str) -> String {
    for_stdout(text, escape::MULTI_LINE).into_owned()
}

/// Escapes control characters if standard output is a terminal.
fn for_stdout<'text>(text: &'text str, keep: &[char]) -> Cow<'text, str> {
    if io::stdout().is_terminal() { escape::escaped(text, keep) } else { Cow::Borrowed(text) }
}

/// Formats a duration in seconds, such as `3 m 20 s`.
pub(crate) fn duration(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an uptime, never negative")]
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3_600 => format!("{} m {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} m", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// Formats a count: `1 VM`, `3 VMs`.
pub(crate) fn counted(number: impl Into<u64>, thing: &str) -> String {
    let number = number.into();
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Formats a time; `-` for none.
pub(crate) fn time(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"))
}

/// Prints an error to standard error: as a sentence or, with `--json`, as one line of JSON. Returns the exit code.
pub(crate) fn report_error(error: &anyhow::Error) -> ExitCode {
    let is_usage_error = error.is::<UsageError>();
    let report = if is_usage_error { Report::usage(error.to_string()) } else { Report::of(error) };
    eprint_line(&if Invocation::current().json {
        report.json()
    } else {
        format!("skep: {}", report.message)
    });
    if is_usage_error {
        return ExitCode::from(USAGE_EXIT_CODE);
    }
    match error.downcast_ref() {
        // The exit code that a shell reports for a command that a signal ended.
        Some(skep_image::Error::Interrupted(signal)) => {
            ExitCode::from(128 + u8::try_from(*signal).unwrap_or(0))
        }
        _ => ExitCode::FAILURE,
    }
}

/// An error and its causes in one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let message = cause.to_string();
        // A transparent layer repeats the text of the error that it wraps.
        if !text.contains(&message) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{message}");
        }
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::{counted, duration};

    #[test]
    fn one_is_counted_in_the_singular() {
        assert_eq!([0_u32, 1, 2].map(|number| counted(number, "VM")), ["0 VMs", "1 VM", "2 VMs"]);
    }

    #[test]
    fn a_duration_is_short() {
        for (seconds, text) in [
            (0.04, "0.0 s"),
            (59.96, "60.0 s"),
            (200.0, "3 m 20 s"),
            (7_260.5, "2 h 1 m"),
            (90_000.0, "1 d 1 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
