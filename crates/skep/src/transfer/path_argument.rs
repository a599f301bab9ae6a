//! Path arguments: `a/b` on this machine, `server:/a/b`, `4242:/a/b`, `web:/a/b`.

use std::{path::PathBuf, str::FromStr};

use skep_api::VmRef;

/// The name of the server's workspace on the command line.
const SERVER: &str = "server";

/// A path and the machine it is on, as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathArgument {
    /// On the machine that runs this command.
    Local(PathBuf),
    /// In the server's workspace (`None`) or a VM.
    Remote { vm: Option<String>, path: String },
}

impl FromStr for PathArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let there = |vm, path: &str| Self::Remote { vm, path: path.to_owned() };
        Ok(match text.split_once(':') {
            Some((SERVER, path)) => there(None, path),
            Some(("", _)) => {
                return Err(format!(
                    "the VM before `:` is empty; if it comes from a variable, set it, and a file of this machine is ./{text}"
                ));
            }
            Some((name, path)) if VmRef::parse(name).is_some() => there(Some(name.to_owned()), path),
            _ => Self::Local(text.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_without_a_vm_are_local() {
        let there = |vm: Option<&str>, path: &str| PathArgument::Remote {
            vm: vm.map(str::to_owned),
            path: path.to_owned(),
        };
        for (text, spot) in [
            ("server:/srv/a", there(None, "/srv/a")),
            ("server:", there(None, "")),
            ("4242:/root/a:b", there(Some("4242"), "/root/a:b")),
            ("vm_01h:notes", there(Some("vm_01h"), "notes")),
            ("./4242:/root", PathArgument::Local("./4242:/root".into())),
            ("web:notes", there(Some("web"), "notes")),
            ("10.77.0.2:/a", there(Some("10.77.0.2"), "/a")),
            ("./web:notes", PathArgument::Local("./web:notes".into())),
            ("Notes:today", PathArgument::Local("Notes:today".into())),
            ("my file:1", PathArgument::Local("my file:1".into())),
            ("a/b", PathArgument::Local("a/b".into())),
        ] {
            assert_eq!(text.parse::<PathArgument>().unwrap(), spot, "{text}");
        }
        // The argument `$VM:/a` with an unset variable.
        assert!(":/a".parse::<PathArgument>().unwrap_err().contains("is empty"));
    }
}
