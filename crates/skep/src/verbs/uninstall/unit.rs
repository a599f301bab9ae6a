//! The systemd unit of the server.

use std::{fs, io, path::PathBuf};

use anyhow::Context;

/// Installation path of `packaging/skep.service`.
pub(super) const UNIT_FILE: &str = "/etc/systemd/system/skep.service";

/// The settings of the unit that identify its server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// The data directory of the server; `None` if it depends on a settings file.
    pub(super) data_dir: Option<PathBuf>,
}

impl Unit {
    /// Reads the installed unit; `None` if there is none.
    pub(super) fn read() -> anyhow::Result<Option<Self>> {
        match fs::read_to_string(UNIT_FILE) {
            Ok(text) => Ok(Some(Self::parse(&text, |path| fs::read_to_string(path).unwrap_or_default()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{UNIT_FILE} cannot be read")),
        }
    }

    fn parse(text: &str, read: impl Fn(&str) -> String) -> Self {
        let values = |key: &str| {
            let key = format!("{key}=");
            text.lines()
                .filter_map(move |line| line.trim().strip_prefix(&key).map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let mut words = Vec::new();
        for line in values("ExecStart") {
            words.extend(line.split_whitespace().map(str::to_owned));
        }
        let mut variables = values("Environment").join("\n");
        for file in values("EnvironmentFile") {
            variables = format!("{variables}\n{}", read(file.trim_start_matches('-')));
        }
        let variable = |name: &str| {
            let start = format!("{name}=");
            let found = variables
                .split_whitespace()
                .find_map(|word| word.trim_matches('"').strip_prefix(&start).map(str::to_owned));
            found.map(|value| value.trim_matches('"').to_owned())
        };
        let flag = |name: &str| {
            let position =
                words.iter().position(|word| word == name || word.starts_with(&format!("{name}=")))?;
            match words[position].split_once('=') {
                Some((_, value)) => Some(value.to_owned()),
                None => words.get(position + 1).cloned(),
            }
        };
        let given = flag("--data-dir").or_else(|| variable("SKEP_DATA_DIR"));
        let by_file = flag("--config").or_else(|| variable("SKEP_CONFIG")).is_some();
        let data_dir = match given {
            Some(dir) => Some(PathBuf::from(dir)),
            None if by_file => None,
            None => Some(PathBuf::from("/var/lib/skep")),
        };
        Self { data_dir }
    }

    /// Describes the data directory for a message.
    pub(super) fn describe_data_dir(self) -> String {
        self.data_dir.map_or_else(
            || format!("a data directory that only the settings file of {UNIT_FILE} names"),
            |dir| dir.display().to_string(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_is_read_from_the_unit() {
        let packaged = include_str!("../../../../../packaging/skep.service");
        let of = |text: &str, file: &str| Unit::parse(text, |_| file.to_owned()).data_dir;
        let default = Some(PathBuf::from("/var/lib/skep"));
        assert_eq!(of(packaged, ""), default);
        let other = Some(PathBuf::from("/srv/skep"));
        assert_eq!(of(packaged, "SKEP_LISTEN=1\nSKEP_DATA_DIR=\"/srv/skep\"\n"), other);
        assert_eq!(of("ExecStart=/usr/bin/skep serve --data-dir /srv/skep", ""), other);
        assert_eq!(of("ExecStart=/usr/bin/skep serve --data-dir=/srv/skep --config x", ""), other);
        assert_eq!(of("Environment=SKEP_DATA_DIR=/srv/skep A=b", ""), other);
        assert_eq!(of("ExecStart=/usr/bin/skep serve --config /etc/skep.toml", ""), None);
    }
}
