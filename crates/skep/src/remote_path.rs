//! Path arguments of verbs that work in one place: `PATH` (with or without `--vm`), `VM:PATH` and `server:PATH`.

use skep_api::{AbsolutePath, VmRef};
use skep_client::Client;

use crate::{
    place::{PlaceOption, PlaceWithHome},
    target::UsageError,
    transfer::PathArgument,
};

/// A path in the server's workspace or in a VM, as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemotePath {
    /// `None` is the server's workspace.
    pub(crate) vm: Option<String>,
    pub(crate) path: String,
}

impl RemotePath {
    /// Parses `path` or `VM:path`; `--vm` names the VM of a bare path.
    ///
    /// # Errors
    /// Both the argument and `--vm` name a place, or the VM or the path is empty.
    pub(crate) fn parse(place: &PlaceOption, given: &str) -> Result<Self, UsageError> {
        let spot = given.parse::<PathArgument>().map_err(|_| {
            UsageError(format!(
                "the VM before `:` is empty in `{given}`; if it comes from a variable, set it; a file of that name is ./{given}"
            ))
        })?;
        let located = match (spot, place.vm()) {
            (PathArgument::Local(_), vm) => Self { vm: vm.map(str::to_owned), path: given.to_owned() },
            (PathArgument::Remote { vm, path }, None) => Self { vm, path },
            (PathArgument::Remote { .. }, Some(_)) => {
                return Err(UsageError(format!(
                    "`{given}` names a place, and so does --vm; give one of them; a file of that name is ./{given}"
                )));
            }
        };
        if located.path.is_empty() {
            return Err(UsageError(format!("`{given}` has no path; give one, such as {given}notes.md")));
        }
        Ok(located)
    }

    pub(crate) async fn open(&self, client: &Client) -> anyhow::Result<(PlaceWithHome, AbsolutePath)> {
        let place = PlaceWithHome::open(client, self.vm.as_deref()).await?;
        let path = place.path(&self.path)?;
        Ok((place, path))
    }
}

/// Whether an argument could also be a VM: it names no place and has no form that only paths have.
pub(crate) fn may_be_vm(place: &PlaceOption, given: &str) -> bool {
    place.vm().is_none() && VmRef::parse(given).is_some()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        place: PlaceOption,
    }

    #[test]
    fn a_path_is_in_one_place() {
        let on_server = Line::parse_from(["x"]).place;
        let in_vm = Line::parse_from(["x", "--vm", "web"]).place;
        let located = |vm: Option<&str>, path: &str| {
            Ok(RemotePath { vm: vm.map(str::to_owned), path: path.to_owned() })
        };
        for (given, expected) in [
            ("notes", located(None, "notes")),
            ("a/b", located(None, "a/b")),
            ("server:a", located(None, "a")),
            ("web:a", located(Some("web"), "a")),
            ("./web:a", located(None, "./web:a")),
            ("Notes:today", located(None, "Notes:today")),
        ] {
            assert_eq!(RemotePath::parse(&on_server, given).map_err(|wrong| wrong.0), expected, "{given}");
        }
        assert_eq!(RemotePath::parse(&in_vm, "a").map_err(|wrong| wrong.0), located(Some("web"), "a"));
        for (place, given) in [(&on_server, ":a"), (&on_server, "web:"), (&on_server, ""), (&in_vm, "web:a")]
        {
            assert!(RemotePath::parse(place, given).is_err(), "{given}");
        }
        assert!(may_be_vm(&on_server, "web") && may_be_vm(&on_server, "4242"));
        assert!(!may_be_vm(&in_vm, "web"));
        for path in ["./web", "notes.md", "a/b", "/a", "A", "web:a"] {
            assert!(!may_be_vm(&on_server, path), "{path}");
        }
    }
}
