//! Filters that the operator named: programs that change contents on their way into a repository and out of it
//! (gitattributes(5), `filter`). What they are is told by the system's settings of git, which no repository writes.

use std::{path::PathBuf, process::Command};

use serde::{Deserialize, Serialize};

use super::{
    program::PATH,
    repository::is_true,
    settings::{Own, listed, value},
};
use crate::Error;

/// The filter of large files (git-lfs(1)). It reaches remotes by itself, and a push needs it too.
pub(super) const LFS: &str = "lfs";
/// The longest name.
const LONGEST: usize = 64;

/// A filter as git knows it. What it does not have is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFilter {
    /// What attributes call it.
    pub name: String,
    clean: String,
    smudge: String,
    process: String,
    required: bool,
}

/// What an operator grants to git here.
#[derive(Debug, Clone, Default)]
pub struct GitGrants {
    /// Filters that run, whatever repository asks for them.
    pub filters: Vec<GitFilter>,
    /// A file of certificates that are trusted, instead of the system's.
    pub authorities: Option<PathBuf>,
}

impl GitFilter {
    /// The filter of this name in the system's settings of git. It starts git, and waits for it.
    ///
    /// # Errors
    /// No name of a filter, or there is none.
    pub fn installed(name: &str) -> Result<Self, Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > LONGEST || !name.bytes().all(fits) {
            let why = "a name has letters, digits, `-` and `_`, at most 64";
            return Err(refused(format!("is `{name}`, which is no name of a filter: {why}")));
        }
        let mut git = Command::new("git");
        git.args(["config", "--system", "--list", "-z"]).env("PATH", PATH);
        let said =
            git.output().map_err(|source| refused(format!("needs git, which does not start: {source}")))?;
        // Without any settings git says that there are none, which is no answer either.
        Self::among(&listed(&said.stdout), name).ok_or_else(|| {
            let way_out = if name == LFS { "git lfs install --system" } else { "git config --system" };
            refused(format!(
                "names `{name}`, which the system's settings of git do not know as a filter; make it known by \
                 `{way_out}`, or leave it out"
            ))
        })
    }

    /// The one of this name in these settings.
    fn among(own: &[Own], name: &str) -> Option<Self> {
        let text = |key: &str| {
            let value = value(own, format!("filter.{name}.{key}").as_bytes());
            value.map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
        };
        let required = format!("filter.{name}.required");
        let required = own.iter().rev().find(|own| own.key == required.as_bytes());
        let filter = Self {
            name: name.to_owned(),
            clean: text("clean"),
            smudge: text("smudge"),
            process: text("process"),
            // Only named, without a value, it is true too.
            required: required.is_some_and(|own| own.value.as_deref().is_none_or(is_true)),
        };
        let commands = [&filter.clean, &filter.smudge, &filter.process];
        commands.iter().any(|command| !command.is_empty()).then_some(filter)
    }

    /// Its settings, so that a repository adds nothing to them.
    pub(super) fn settings(&self) -> impl Iterator<Item = (String, String)> {
        let named = |key: &str, value: &str| (format!("filter.{}.{key}", self.name), value.to_owned());
        let required = if self.required { "true" } else { "false" };
        // An empty process would win over the other two (convert.c).
        let process = self.has_process().then(|| named("process", &self.process));
        let all = [named("clean", &self.clean), named("smudge", &self.smudge), named("required", required)];
        all.into_iter().chain(process)
    }

    /// Whether it is one process for all files.
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
        let filter = |text: &[u8]| GitFilter::among(&listed(text), "lfs");
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
