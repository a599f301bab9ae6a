//! A clone between two workspaces: one exports a repository, the other imports it, and the server passes the pack on.
//! Also the `skep://` URL of a repository in another workspace of the same server.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Cloned, EmptyAnswer, GitReach, NETWORK_LIMIT};
use crate::{
    VmRef,
    operation::{AddsFiles, AnswerLimit, HelperKind, Operation},
    path::{AbsolutePath, PathEncoding, percent_encoded},
};

/// The maximum number of branches and tags together that a relayed clone may have.
pub const MAX_EXPORTED_REFS: usize = 20_000;
/// The maximum number of commits at which an exported shallow history may begin.
const MAX_BOUNDARY_COMMITS: u32 = 10_000;

/// Checks that a repository can be created in a folder: the folder is missing or empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCheckTarget {
    /// The folder.
    pub path: AbsolutePath,
}

/// The location of the repository to export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportSource {
    /// A repository of the workspace that runs the export.
    Path(AbsolutePath),
    /// A remote, reached by https or ssh.
    Url {
        /// The URL of the remote.
        url: String,
        /// The addresses that git may connect to.
        reach: GitReach,
    },
}

/// Lists branches and tags of a repository, and packs their commits. The pack follows the answer, unless there is no
/// commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitExport {
    /// The repository.
    pub source: ExportSource,
    /// The branch or tag to check out; the current branch of the source if `None`.
    pub branch: Option<String>,
    /// The number of commits of history of a single branch; the full history of all branches if `None`.
    pub depth: Option<u32>,
    /// Commits that the receiver of the pack already has.
    #[serde(default)]
    pub has: Vec<String>,
    /// Commits in `has` whose parents the receiver does not have.
    #[serde(default)]
    pub has_boundary: Vec<String>,
}

/// The content of an exported repository. The importing side must treat it as untrusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The current branch, which may have no commit; `None` if a commit without a branch is checked out.
    pub head: Option<String>,
    /// The hash of the current commit; `None` if there is none.
    pub commit: Option<String>,
    /// Branches and tags, sorted by name.
    pub refs: Vec<ExportedRef>,
    /// Commits whose parents are not in the pack, in a shallow history.
    pub boundary: Vec<String>,
}

/// A branch or a tag of an exported repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedRef {
    /// The full name, such as `refs/heads/main`.
    pub name: String,
    /// The hash of the object that the reference names.
    pub id: String,
}

/// Creates a repository from an exported one. The pack follows the request. A failed import leaves nothing behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitImport {
    /// The folder, which must be missing or empty.
    pub path: AbsolutePath,
    /// The URL to configure for the remote `origin`.
    pub url: String,
    /// The branch or tag to check out; the current branch of the source if `None`.
    pub branch: Option<String>,
    /// The answer of the export.
    pub exported: Exported,
    /// The addresses that filters, such as Git LFS, may connect to.
    pub reach: GitReach,
}

impl Operation for GitCheckTarget {
    const NAME: &'static str = "git-check-target";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = EmptyAnswer;

    fn time_limit(&self) -> Duration {
        super::LOCAL_ANSWER_LIMIT
    }
}

impl Operation for GitExport {
    const NAME: &'static str = "git-export";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = Exported;

    fn time_limit(&self) -> Duration {
        NETWORK_LIMIT + super::LOCAL_ANSWER_LIMIT
    }

    fn answer_limit(&self) -> AnswerLimit {
        let refs = u32::try_from(MAX_EXPORTED_REFS).unwrap_or(u32::MAX);
        AnswerLimit::of_elements(refs + MAX_BOUNDARY_COMMITS, 3)
    }

    /// The server keeps what it fetches, and a shallow copy, in the workspace until that is sent.
    fn adds_files(&self) -> AddsFiles {
        AddsFiles::unless(matches!(self.source, ExportSource::Path(_)) && self.depth.is_none())
    }
}

impl Operation for GitImport {
    const NAME: &'static str = "git-import";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = Cloned;

    fn time_limit(&self) -> Duration {
        NETWORK_LIMIT + super::LOCAL_ANSWER_LIMIT
    }

    fn adds_files(&self) -> AddsFiles {
        AddsFiles::Always
    }
}

/// The URL scheme of a repository in another workspace. Git has no such transport: only the server resolves it.
const SCHEME: &str = "skep://";
/// The name of the server's workspace. No VM can have this name.
const SERVER: &str = "server";

/// A place between which a server relays commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayPlace {
    /// The account's workspace on the server.
    Server,
    /// A VM of the account.
    Vm(VmRef),
}

impl RelayPlace {
    /// Parses `server` or a reference to a VM. Returns `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        if text == SERVER { Some(Self::Server) } else { VmRef::parse(text).map(Self::Vm) }
    }
}

impl fmt::Display for RelayPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str(SERVER),
            Self::Vm(vm) => vm.fmt(f),
        }
    }
}

/// The URL of a repository in another workspace of the same server: `skep://server/srv/project`,
/// `skep://vm_.../root/project`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayUrl {
    /// The workspace that has the repository.
    pub place: RelayPlace,
    /// The path of the repository in that workspace.
    pub path: AbsolutePath,
}

impl RelayUrl {
    /// Parses a `skep://` URL. Returns `None` for other schemes and malformed URLs.
    pub fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix(SCHEME)?;
        let (place, path) = rest.split_at(rest.find('/')?);
        let path = AbsolutePath::parse("url", path, PathEncoding::Percent).ok()?;
        Some(Self { place: RelayPlace::parse(place)?, path })
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.place, percent_encoded(self.path.as_path().as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_another_place_is_read_as_it_was_written() {
        for text in
            ["skep://server/srv/a b", "skep://builder/root/x", "skep://server/100%25", "skep://10.77.0.2/x"]
        {
            assert_eq!(RelayUrl::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["skep://server", "skep:///x", "skep://A/x", "https://server/x", "skep://server/%zz", "/x", ""]
        {
            assert_eq!(RelayUrl::parse(text), None, "{text}");
        }
    }
}
