//! `/a/b`, `server:/a/b`, `4242:/a/b`.

use std::{convert::Infallible, path::PathBuf, str::FromStr};

/// The name of the server's workspace on the command line.
const SERVER: &str = "server";
/// What the id of a VM begins with.
const VM_ID: &str = "vm_";

/// A path, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    /// On this machine.
    Here(PathBuf),
    /// In the server's workspace (`None`) or a VM.
    There {
        /// Its process id or id.
        vm: Option<String>,
        /// As it was given.
        path: String,
    },
}

impl FromStr for Spot {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let there = |vm, path: &str| Self::There { vm, path: path.to_owned() };
        Ok(match text.split_once(':') {
            Some((SERVER, path)) => there(None, path),
            Some((name, path)) if is_vm(name) => there(Some(name.to_owned()), path),
            _ => Self::Here(text.into()),
        })
    }
}

/// Whether a word can only be meant as a VM.
pub(crate) fn is_vm(word: &str) -> bool {
    let is_pid = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    is_pid || word.starts_with(VM_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_server_and_no_vm_lies_here() {
        let there =
            |vm: Option<&str>, path: &str| Spot::There { vm: vm.map(str::to_owned), path: path.to_owned() };
        for (text, spot) in [
            ("server:/srv/a", there(None, "/srv/a")),
            ("server:", there(None, "")),
            ("4242:/root/a:b", there(Some("4242"), "/root/a:b")),
            ("vm_01h:notes", there(Some("vm_01h"), "notes")),
            ("./4242:/root", Spot::Here("./4242:/root".into())),
            ("notes:today", Spot::Here("notes:today".into())),
            (":/a", Spot::Here(":/a".into())),
            ("a/b", Spot::Here("a/b".into())),
        ] {
            assert_eq!(text.parse::<Spot>().unwrap(), spot, "{text}");
        }
    }
}
