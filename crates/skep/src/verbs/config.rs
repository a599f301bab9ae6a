//! `skep config check`.

use std::{fs, path::Path, process::ExitCode};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::serve;
use crate::{
    output,
    settings::unchecked::{
        InvalidSetting, Origin, SettingValue, UncheckedSettings, describe_origin, parse_settings, redacted,
    },
};

const EXIT_CODES: &str =
    "Exit codes: 0 a server accepts these settings; 1 it does not; 2 the command line is wrong.";
const HINT: &str = "`skep serve --help` lists the settings and their values";

/// Check the settings of a server.
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read all settings as `skep serve` does, and print the values, their origins and all errors.
    Check(Check),
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
struct Check {
    #[command(flatten)]
    given: UncheckedSettings,
    /// Print settings and errors as JSON.
    #[arg(long)]
    json: bool,
}

/// A setting in the output.
#[derive(Debug, Serialize)]
struct SettingLine {
    setting: String,
    /// Null if it is unset and has no default.
    value: Option<String>,
    from: &'static str,
    variable: Option<String>,
    line: Option<usize>,
}

/// An error in the output.
#[derive(Debug, Serialize)]
struct SettingError {
    setting: Option<String>,
    file: Option<String>,
    line: Option<usize>,
    variable: Option<String>,
    message: String,
    way_out: &'static str,
}

pub(crate) fn run(verb: Config) -> anyhow::Result<ExitCode> {
    let Verb::Check(Check { given, json }) = verb.verb;
    let file = given.file();
    let (text, unread) = match file.as_ref().map(fs::read_to_string) {
        None => (String::new(), None),
        Some(Ok(text)) => (text, None),
        Some(Err(error)) => (String::new(), Some(error)),
    };
    let (all, mut faults) = given.with_file(&text);
    if let (Some(error), Some(given)) = (unread, all.iter().find(|given| given.id == "config")) {
        let why = format!("the file cannot be read: {error}");
        faults.push(InvalidSetting { id: Some(given.id.clone()), origin: given.origin.clone(), why });
    }
    if faults.is_empty() {
        faults.extend(check_combination(&all));
    }
    let file = file.as_deref();
    let wrong: Vec<SettingError> = faults.iter().map(|fault| report_fault(fault, file)).collect();
    if json {
        let settings: Vec<SettingLine> = all.iter().map(line).collect();
        output::value(
            &serde_json::json!({"valid": wrong.is_empty(), "settings": settings, "errors": wrong}),
        )?;
    } else {
        show(&all, &wrong, file)?;
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Errors of settings that are valid individually but not together or not on this machine.
fn check_combination(all: &[SettingValue]) -> Vec<InvalidSetting> {
    let fault = |id: &str, why: String| {
        let origin =
            all.iter().find(|given| given.id == id).map_or(Origin::Default, |given| given.origin.clone());
        InvalidSetting { id: Some(id.to_owned()), origin, why }
    };
    match parse_settings(all) {
        Err(why) => vec![InvalidSetting { id: None, origin: Origin::Default, why }],
        Ok(settings) => match settings.resolved() {
            Err(error) => vec![InvalidSetting { id: None, origin: Origin::Default, why: error.to_string() }],
            Ok(settings) => {
                let found = serve::check(&settings).into_iter();
                found.map(|(id, error)| fault(id, output::one_line(&error))).collect()
            }
        },
    }
}

fn value(given: &SettingValue) -> Option<String> {
    let values: Vec<String> = given.values.iter().map(|value| redacted(value)).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn line(given: &SettingValue) -> SettingLine {
    let (from, variable, line) = parts(&given.origin);
    SettingLine { setting: given.id.clone(), value: value(given), from, variable, line }
}

fn parts(origin: &Origin) -> (&'static str, Option<String>, Option<usize>) {
    match origin {
        Origin::Flag => ("flag", None, None),
        Origin::Environment(variable) => ("environment", Some(variable.clone()), None),
        Origin::File(line) => ("file", None, Some(*line)),
        Origin::Default => ("default", None, None),
    }
}

fn report_fault(fault: &InvalidSetting, file: Option<&Path>) -> SettingError {
    let (_, variable, line) = parts(&fault.origin);
    SettingError {
        setting: fault.id.clone(),
        file: file.filter(|_| line.is_some()).map(|file| file.display().to_string()),
        line,
        variable,
        message: fault.why.clone(),
        way_out: HINT,
    }
}

fn show(all: &[SettingValue], wrong: &[SettingError], file: Option<&Path>) -> anyhow::Result<()> {
    let rows = all.iter().map(|given| {
        [given.id.clone(), value(given).unwrap_or_else(|| "-".to_owned()), describe_origin(given, file)]
    });
    output::table(["SETTING", "VALUE", "FROM"], rows)?;
    for SettingError { setting, file, line, variable, message, way_out } in wrong {
        let place = match (file, line, variable) {
            (Some(file), Some(line), _) => format!("{file}:{line}: "),
            (_, _, Some(variable)) => format!("{variable}: "),
            _ => String::new(),
        };
        let setting = setting.as_ref().map(|setting| format!("{setting}: ")).unwrap_or_default();
        output::eprint_line(&format!("{place}{setting}{message}\n    => {way_out}"));
    }
    Ok(())
}
