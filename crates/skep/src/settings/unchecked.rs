//! Settings with the origin of each value, before they are validated. `skep config check` reports all their errors.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use clap::{
    ArgMatches, Args, Command, FromArgMatches,
    builder::{OsStr as Name, Resettable},
    parser::ValueSource,
    value_parser,
};
use toml::de::DeTable;

use super::{
    FILE, Settings,
    file::{setting_ids, unknown_setting, value_text},
    parse::first_line,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    /// The environment variable of this name.
    Environment(String),
    /// Line of the settings file, counted from 1.
    File(usize),
    Default,
}

/// One setting with its unparsed values.
#[derive(Debug, Clone)]
pub(crate) struct SettingValue {
    /// The key in the file, and the name of the flag with `-`.
    pub(crate) id: String,
    /// Several for a setting that may be given several times; empty if it is unset and has no default.
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
}

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidSetting {
    /// The setting; `None` if the whole file cannot be parsed.
    pub(crate) id: Option<String>,
    pub(crate) origin: Origin,
    /// The reason, for the user.
    pub(crate) why: String,
}

/// The values from the command line, the environment and the defaults. [`UncheckedSettings::with_file`] adds those of the
/// file.
#[derive(Debug, Clone)]
pub(crate) struct UncheckedSettings(Vec<SettingValue>);

/// The flags of [`Settings`], each accepting any text.
fn lenient_command() -> Command {
    Settings::augment_args(Command::new("settings"))
        .mut_args(|argument| argument.value_parser(value_parser!(OsString)))
}

impl Args for UncheckedSettings {
    fn augment_args(command: Command) -> Command {
        let flags: Vec<_> = lenient_command().get_arguments().cloned().collect();
        command.args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for UncheckedSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = lenient_command();
        let given = flags.get_arguments().map(|argument| {
            let id = argument.get_id().to_string();
            let values = matches.get_many::<OsString>(&id).into_iter().flatten().cloned().collect();
            let variable = argument.get_env().unwrap_or(OsStr::new("")).to_string_lossy().into_owned();
            let origin = match matches.value_source(&id) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                Some(ValueSource::EnvVariable) => Origin::Environment(variable),
                _ => Origin::Default,
            };
            SettingValue { id, values, origin }
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl UncheckedSettings {
    /// The settings file, if one is named.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.0.iter().find(|given| given.id == FILE)?.values.first().map(PathBuf::from)
    }

    /// All settings, including those of the file, and all errors. Overridden values are checked too.
    pub(crate) fn with_file(self, text: &str) -> (Vec<SettingValue>, Vec<InvalidSetting>) {
        let (from_file, mut faults) = parse_file(text);
        faults.extend(from_file.iter().filter_map(fault_of));
        let mut all = self.0;
        faults.extend(all.iter().filter_map(fault_of));
        for given in all.iter_mut().filter(|given| given.origin == Origin::Default) {
            if let Some(found) = from_file.iter().find(|found| found.id == given.id) {
                *given = found.clone();
            }
        }
        (all, faults)
    }
}

/// Parses the values into [`Settings`].
///
/// # Errors
/// The reason, for the user.
pub(crate) fn parse_settings(all: &[SettingValue]) -> Result<Settings, String> {
    let flags = all.iter().flat_map(as_flags);
    let matches = strict_command().try_get_matches_from(flags).map_err(|error| first_line(&error))?;
    Settings::from_arg_matches(&matches).map_err(|error| first_line(&error))
}

/// The flags of [`Settings`] with their own parsers, ignoring the environment: each value is checked by itself.
fn strict_command() -> Command {
    let command = Settings::augment_args(Command::new("settings").no_binary_name(true));
    command.mut_args(|argument| argument.env(Resettable::<Name>::Reset))
}

fn as_flags(given: &SettingValue) -> impl Iterator<Item = OsString> {
    let flag = format!("--{}=", given.id.replace('_', "-"));
    given.values.clone().into_iter().map(move |word| {
        let mut text = OsString::from(&flag);
        text.push(word);
        text
    })
}

fn fault_of(given: &SettingValue) -> Option<InvalidSetting> {
    let error = strict_command().try_get_matches_from(as_flags(given)).err()?;
    let why = first_line(&error);
    Some(InvalidSetting { id: Some(given.id.clone()), origin: given.origin.clone(), why })
}

/// The values of a file, and its errors.
fn parse_file(text: &str) -> (Vec<SettingValue>, Vec<InvalidSetting>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let line = |at: usize| text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
    if !errors.is_empty() {
        let syntax_fault = |error: &toml::de::Error| InvalidSetting {
            id: None,
            origin: Origin::File(line(error.span().map_or(0, |span| span.start))),
            why: error.message().to_owned(),
        };
        return (Vec::new(), errors.iter().map(syntax_fault).collect());
    }
    let known = setting_ids();
    let (mut found, mut faults): (Vec<SettingValue>, Vec<InvalidSetting>) = (Vec::new(), Vec::new());
    let values: toml::Table = text.parse().unwrap_or_default();
    let mut keys: Vec<(usize, String)> =
        table.get_ref().keys().map(|key| (key.span().start, key.get_ref().to_string())).collect();
    keys.sort();
    for (at, key) in keys {
        let (id, origin) = (key.replace('-', "_"), Origin::File(line(at)));
        let mut refuse =
            |why: String| faults.push(InvalidSetting { id: Some(key.clone()), origin: origin.clone(), why });
        if !known.contains(&id) {
            refuse(unknown_setting(&key, &known));
        } else if found.iter().any(|given| given.id == id) {
            refuse(format!("`{id}` is set twice, with `-` and with `_`"));
        } else if let Some(value) = values.get(&key) {
            match value_texts(&key, value) {
                Ok(values) => found.push(SettingValue { id, values, origin }),
                Err(why) => refuse(why),
            }
        }
    }
    (found, faults)
}

fn value_texts(key: &str, value: &toml::Value) -> Result<Vec<OsString>, String> {
    match value {
        toml::Value::Array(values) => {
            values.iter().map(|value| value_text(key, value).map(OsString::from)).collect()
        }
        value => Ok(vec![value_text(key, value)?.into()]),
    }
}

/// Formats a value for output. The user name and password of a URL are replaced by `***`.
pub(crate) fn redacted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let Some((scheme, rest)) = text.split_once("://") else { return text.into_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => text.into_owned(),
    }
}

/// Describes the origin of a value, such as `flag --listen`.
pub(crate) fn describe_origin(given: &SettingValue, file: Option<&Path>) -> String {
    match (&given.origin, file) {
        (Origin::Flag, _) => format!("flag --{}", given.id.replace('_', "-")),
        (Origin::Environment(variable), _) => format!("environment {variable}"),
        (Origin::File(line), Some(file)) => format!("file {}:{line}", file.display()),
        (Origin::File(line), None) => format!("line {line} of the file"),
        (Origin::Default, _) => "default".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(flags: &[&str]) -> UncheckedSettings {
        let command = UncheckedSettings::augment_args(Command::new("check").no_binary_name(true));
        let command = command.mut_args(|argument| argument.env(Resettable::<Name>::Reset));
        UncheckedSettings::from_arg_matches(&command.try_get_matches_from(flags).unwrap()).unwrap()
    }

    fn one<'a>(all: &'a [SettingValue], id: &str) -> &'a SettingValue {
        all.iter().find(|given| given.id == id).unwrap()
    }

    #[test]
    fn each_value_says_where_it_came_from() {
        let file = "# mine\nlisten = \"127.0.0.1:1\"\n\nmax-vms = 7\nroot = [\"/a\", \"/b\"]\n";
        let (all, faults) = given(&["--max-vms", "9"]).with_file(file);
        assert_eq!(faults, []);
        assert_eq!(one(&all, "listen").origin, Origin::File(2));
        assert_eq!(
            (&one(&all, "max_vms").origin, &one(&all, "max_vms").values[0]),
            (&Origin::Flag, &"9".into())
        );
        assert_eq!(one(&all, "root").values, ["/a", "/b"]);
        assert_eq!(one(&all, "log_level").origin, Origin::Default);
        assert!(one(&all, "user").values.is_empty());
        let settings = parse_settings(&all).unwrap();
        assert_eq!(
            (settings.capacity.max_vms, settings.root.len(), settings.log_level.as_str()),
            (Some(9), 2, "info")
        );
    }

    #[test]
    fn every_fault_is_found_with_its_line() {
        let file = "listen = \"x\"\nbogus = 1\nmax_vms = 1.5\nmax-vms = 2\nmax_vms_ = 0\nlog_format = \"loud\"\n\
                    [root]\na = 1\n";
        let (_, faults) = given(&["--pool-size", "many"]).with_file(file);
        let mut found: Vec<_> =
            faults.iter().map(|fault| (fault.origin.clone(), fault.id.clone().unwrap())).collect();
        found.sort_by_key(|(origin, id)| (format!("{origin:?}"), id.clone()));
        let expected = [
            (Origin::File(1), "listen"),
            (Origin::File(2), "bogus"),
            (Origin::File(3), "max_vms"),
            (Origin::File(5), "max_vms_"),
            (Origin::File(6), "log_format"),
            (Origin::File(7), "root"),
            (Origin::Flag, "pool_size"),
        ];
        assert_eq!(found, expected.map(|(origin, id)| (origin, id.to_owned())));
    }

    #[test]
    fn an_overridden_value_in_the_file_is_checked_too() {
        let (all, faults) = given(&["--listen", "127.0.0.1:2"]).with_file("listen = \"x\"");
        assert_eq!((faults.len(), &faults[0].origin), (1, &Origin::File(1)));
        assert_eq!(one(&all, "listen").values, ["127.0.0.1:2"]);
    }

    #[test]
    fn a_file_that_is_no_toml_names_its_line() {
        let (_, faults) = given(&[]).with_file("listen = \"127.0.0.1:1\"\nmax_vms = = 3\n");
        assert!(
            !faults.is_empty() && faults.iter().all(|fault| fault.origin == Origin::File(2)),
            "{faults:?}"
        );
    }

    #[test]
    fn a_password_is_not_shown() {
        for (value, expected) in [
            ("postgres://skep:hunter2@db:5432/skep", "postgres://***@db:5432/skep"),
            ("postgres://hunter2@db", "postgres://***@db"),
            ("postgres://a:b@c@db/x", "postgres://***@db/x"),
            ("https://host/path@x", "https://host/path@x"),
            ("/var/lib/skep", "/var/lib/skep"),
        ] {
            assert_eq!(redacted(OsStr::new(value)), expected);
        }
    }
}
