//! `skep git clone`.

use std::process::ExitCode;

use clap::Args;
use skep_api::{exec::VmField, git::GitClone, path::percent_encoded};

use crate::{
    connection::Connection,
    output,
    place::{PlaceOption, PlaceWithHome},
    target::UsageError,
    transfer::PathArgument,
};

const AFTER_HELP: &str = "SOURCE is an https or ssh URL, server:PATH in the server's workspace, or VM:PATH in a VM, given by process id, id,
name, host name or address; ssh://HOST/PATH is the ssh URL of a host without a user. TARGET is server:PATH or VM:PATH. A path
without a place is in the VM of --vm or in the workspace. Relative paths start at the workspace, in a VM at /root.

  skep git clone server:project web:          the repository project to /root/project in the VM `web`
  skep git clone https://host/project.git web:  the same from a remote; the VM needs no network
  skep git clone web:project server:copy      a repository of the VM into the workspace

In such a clone, a pull or a push with --vm uses the source.";

/// Clone a repository.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Clone {
    /// Source: an https or ssh URL, server:PATH, VM:PATH, or a path.
    source: String,
    /// Target folder [default: the name of the source].
    target: Option<String>,
    /// Branch to check out [default: that of the source].
    #[arg(short, long)]
    branch: Option<String>,
    /// Number of commits of the history to fetch [default: all].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

/// The source or the target on the command line.
#[derive(Debug, PartialEq, Eq)]
enum Endpoint {
    /// A URL or `HOST:PATH`, which git resolves.
    Url(String),
    /// In the server's workspace (`None`) or a VM.
    Placed { vm: Option<String>, path: String },
    /// In the place that `--vm` selects.
    Path(String),
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, UsageError> {
        if text.contains("://") {
            return Ok(Self::Url(text.to_owned()));
        }
        Ok(match text.parse::<PathArgument>().map_err(UsageError)? {
            PathArgument::Remote { vm, path } => Self::Placed { vm, path },
            // As in git, a colon before any slash separates host and path.
            PathArgument::Local(_)
                if text.find(':') < text.find('/').or(Some(text.len())) && text.contains(':') =>
            {
                Self::Url(text.to_owned())
            }
            PathArgument::Local(_) => Self::Path(text.to_owned()),
        })
    }
}

impl Clone {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let source = Endpoint::parse(&self.source)?;
        let (vm, path) = self.target(&source)?;
        let client = self.connection.client()?;
        let target = PlaceWithHome::open(&client, vm.as_deref()).await?;
        let path = target.path(&path)?;
        let (url, from) = match source {
            Endpoint::Url(url) => (url, None),
            Endpoint::Path(path) => (text_of(&target.path(&path)?)?, None),
            Endpoint::Placed { vm: from, path } => {
                let place = PlaceWithHome::open(&client, from.as_deref()).await?;
                let url = percent_encoded(place.path(&path)?.as_path().as_os_str());
                (url, Some(VmField::Text(from.unwrap_or_else(|| "server".to_owned()))))
            }
        };
        let clone = GitClone { url, from, path, branch: self.branch, depth: self.depth };
        let made = output::with_spinner("cloning", target.remote.run(&clone)).await?;
        if self.connection.json {
            output::json(&made.text)?;
        } else {
            output::line(&output::visible(&made.value.path))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The place and the folder of the clone.
    fn target(&self, source: &Endpoint) -> Result<(Option<String>, String), UsageError> {
        let own = self.place.vm().map(str::to_owned);
        let (vm, path) = match self.target.as_deref().map(Endpoint::parse).transpose()? {
            None => (own, String::new()),
            Some(Endpoint::Path(path)) => (own, path),
            Some(Endpoint::Placed { vm, path }) if own.is_none() || own == vm => (vm, path),
            Some(Endpoint::Placed { .. }) => {
                return Err(UsageError(
                    "the target is in a different place than --vm; leave out --vm".to_owned(),
                ));
            }
            Some(Endpoint::Url(url)) => {
                return Err(UsageError(format!(
                    "the target `{url}` is a URL; give a path, server:PATH or VM:PATH, and push to a URL with `skep git push`"
                )));
            }
        };
        if !path.is_empty() {
            return Ok((vm, path));
        }
        let (Endpoint::Url(named) | Endpoint::Path(named) | Endpoint::Placed { path: named, .. }) = source;
        match repository_name(named) {
            Some(name) => Ok((vm, name.to_owned())),
            None => Err(UsageError(format!(
                "`{}` does not contain a folder name; give TARGET after it",
                self.source
            ))),
        }
    }
}

/// The path as text, for the request.
fn text_of(path: &skep_api::AbsolutePath) -> anyhow::Result<String> {
    Ok(path
        .as_path()
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| UsageError("the path is not UTF-8".to_owned()))?)
}

/// The repository name in a URL or path: `project` for `https://host/owner/project.git`.
fn repository_name(url: &str) -> Option<&str> {
    let url = url.trim_end_matches('/');
    let url = url.strip_suffix("/.git").unwrap_or(url);
    let name = url.rsplit(['/', ':']).next().unwrap_or(url);
    Some(name.strip_suffix(".git").unwrap_or(name)).filter(|name| !matches!(*name, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, repository_name};

    #[test]
    fn a_clone_is_named_after_its_source() {
        for url in [
            "https://x/a/p.git",
            "https://x/a/p",
            "git@x:a/p.git",
            "git@x:p.git",
            "/srv/p/",
            "p",
            "/srv/p/.git",
        ] {
            assert_eq!(repository_name(url), Some("p"), "{url}");
        }
        assert_eq!((repository_name("/"), repository_name(".")), (None, None));
    }

    #[test]
    fn places_urls_and_paths_are_distinguished() {
        let url = |text: &str| Endpoint::Url(text.to_owned());
        let there = |vm: Option<&str>, path: &str| Endpoint::Placed {
            vm: vm.map(str::to_owned),
            path: path.to_owned(),
        };
        for (text, end) in [
            ("https://x/p", url("https://x/p")),
            ("git@x:p", url("git@x:p")),
            ("git.example.com:p", url("git.example.com:p")),
            ("server:p", there(None, "p")),
            ("web:", there(Some("web"), "")),
            ("vm_01h:/root/p", there(Some("vm_01h"), "/root/p")),
            ("/srv/a:b", Endpoint::Path("/srv/a:b".to_owned())),
            ("./web:p", Endpoint::Path("./web:p".to_owned())),
            ("p", Endpoint::Path("p".to_owned())),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap(), end, "{text}");
        }
        assert!(Endpoint::parse(":p").unwrap_err().0.contains("is empty"));
    }
}
