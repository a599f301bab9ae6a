//! Filters that the operator allowed: programs that convert contents between repository and work tree (`filter` in
//! gitattributes(5)). Their commands come from the system config of git, which no repository can write.

use std::{path::PathBuf, process::Command};

use serde::{Deserialize, Serialize};

use super::{
    config::{ConfigEntry, last_value, parse_config_list},
    program::PATH,
    repository::is_true,
};
use crate::Error;

/// The filter for large files (git-lfs(1)).
pub(super) const LFS: &str = "lfs";
/// Characters.
const MAX_NAME_LENGTH: usize = 64;

/// A filter and its commands. Missing commands are empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFilter {
    /// The name in `filter=NAME` of gitattributes.
    pub name: String,
    clean: String,
    smudge: String,
    process: String,
    required: bool,
}

/// What the operator grants to the gits of a workspace.
#[derive(Debug, Clone, Default)]
pub struct GitGrants {
    /// Filters that run in every repository that uses them.
    pub filters: Vec<GitFilter>,
    /// A file with trusted CA certificates, which replaces those of the system.
    pub ca_file: Option<PathBuf>,
}

impl GitFilter {
    /// Reads the filter of this name from the system config of git. Starts git and blocks until it ends.
    ///
    /// # Errors
    /// The name is invalid, or the system config has no such filter.
    pub fn installed(name: &str) -> Result<Self, Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > MAX_NAME_LENGTH || !name.bytes().all(fits) {
            let why = "a name has letters, digits, `-` and `_`, at most 64";
            return Err(refused(format!("is `{name}`, which is no name of a filter: {why}")));
        }
        let mut git = Command::new("git");
        git.args(["config", "--system", "--list", "-z"]).env("PATH", PATH);
        let output =
            git.output().map_err(|source| refused(format!("needs git, which does not start: {source}")))?;
        // Without any config git fails; that is the same as a missing filter.
        Self::from_config(&parse_config_list(&output.stdout), name).ok_or_else(|| {
            let way_out = if name == LFS { "git lfs install --system" } else { "git config --system" };
            refused(format!(
                "names `{name}`, which the system config of git does not define as a filter; define it by \
                 `{way_out}`, or leave it out"
            ))
        })
    }

    /// The filter of this name in this config.
    fn from_config(config: &[ConfigEntry], name: &str) -> Option<Self> {
        let text = |key: &str| {
            let value = last_value(config, format!("filter.{name}.{key}").as_bytes());
            value.map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
        };
        let required = format!("filter.{name}.required");
        let required = config.iter().rev().find(|own| own.key == required.as_bytes());
        let filter = Self {
            name: name.to_owned(),
            clean: text("clean"),
            smudge: text("smudge"),
            process: text("process"),
            // A key without a value is true as well.
            required: required.is_some_and(|own| own.value.as_deref().is_none_or(is_true)),
        };
        let commands = [&filter.clean, &filter.smudge, &filter.process];
        commands.iter().any(|command| !command.is_empty()).then_some(filter)
    }

    /// The overrides for this filter. They cover all of its keys, so that a repository cannot add any.
    pub(super) fn overrides(&self) -> impl Iterator<Item = (String, String)> {
        let named = |key: &str, value: &str| (format!("filter.{}.{key}", self.name), value.to_owned());
        let required = if self.required { "true" } else { "false" };
        // An empty `process` would win over the other two commands (convert.c).
        let process = self.has_process().then(|| named("process", &self.process));
        let all = [named("clean", &self.clean), named("smudge", &self.smudge), named("required", required)];
        all.into_iter().chain(process)
    }

    /// Whether one process handles all files.
    pub(super) fn has_process(&self) -> bool {
        !self.process.is_empty()
    }
}

fn refused(reason: String) -> Error {
    Error::InvalidValue { field: "git_filter", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_as_git_reads_it() {
        let filter = |text: &[u8]| GitFilter::from_config(&parse_config_list(text), "lfs");
        let read = filter(b"filter.lfs.clean\na %f\0filter.lfs.clean\nb %f\0filter.lfs.required\0").unwrap();
        assert_eq!((read.clean.as_str(), read.required, read.has_process()), ("b %f", true, false));
        let read = filter(b"filter.lfs.process\np\0filter.lfs.required\nYes\0").unwrap();
        assert!(read.required && read.has_process());
        let read = filter(b"filter.lfs.smudge\ns\0filter.lfs.required\nfalse\0").unwrap();
        assert!(!read.required);
        for other in [&b""[..], b"filter.lfs.clean\n\0", b"filter.other.clean\nx\0", b"filter.lfs.required\0"]
        {
            assert_eq!(filter(other), None);
        }
    }
}
