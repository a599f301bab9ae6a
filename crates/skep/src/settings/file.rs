//! The settings file.

use std::path::PathBuf;

use clap::{Args, Command};
use toml::{Table, Value};

use super::{FILE, Settings};

/// Settings that skep once had. They have no successor.
const REMOVED: [&str; 1] = ["shell_ahead"];

/// An error in the settings file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileError {
    pub(super) file: PathBuf,
    pub(super) why: String,
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the settings in {} cannot be used: {}", self.file.display(), self.why)
    }
}

impl std::error::Error for FileError {}

/// The values of a settings file, by the id of their flag.
pub(super) fn values(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let known = setting_ids();
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| error.to_string().trim_end().to_owned())?;
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for (key, value) in &table {
        // Flags use dashes and variables use underscores; the file may use either.
        let id = key.replace('-', "_");
        if !known.contains(&id) {
            return Err(unknown_setting(key, &known));
        }
        if found.iter().any(|(other, _)| *other == id) {
            return Err(format!("`{id}` is set twice, with `-` and with `_`"));
        }
        let values = match value {
            Value::Array(values) => {
                values.iter().map(|value| value_text(key, value)).collect::<Result<_, _>>()?
            }
            value => vec![value_text(key, value)?],
        };
        found.push((id, values));
    }
    Ok(found)
}

/// Why this key is refused.
pub(super) fn unknown_setting(key: &str, known: &[String]) -> String {
    if REMOVED.contains(&key.replace('-', "_").as_str()) {
        return format!("`{key}` is no longer a setting; delete its line");
    }
    format!("`{key}` is not a setting; the settings are: {}", known.join(", "))
}

pub(super) fn value_text(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        // The only setting that is not whole.
        Value::Float(number) if key.replace('-', "_") == "memory_overcommit" => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!("`{key}` is a {}; give a string or a whole number", other.type_str())),
    }
}

/// The ids of all settings, which are also their keys in the file.
pub(super) fn setting_ids() -> Vec<String> {
    let command = Settings::augment_args(Command::new("settings"));
    let ids = command.get_arguments().map(|argument| argument.get_id().to_string());
    ids.filter(|id| id != FILE).collect()
}
