//! A clone between two places: one exports a repository, the other imports it, and the server passes the pack on. And the
//! URL of a repository in another place of the same server.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Cloned, GitReach, NETWORK_LIMIT, Noted};
use crate::{
    VmRef,
    operation::{AnswerLimit, HelperKind, Operation},
    path::{AbsolutePath, PathEncoding, encoded},
};

/// Branches and tags that a relayed clone may have together.
pub const MOST_EXPORTED_REFS: usize = 20_000;
/// Commits at which the exported history may begin.
const MOST_BOUNDARY: u32 = 10_000;

/// Checks that a repository can be made in a folder: it is missing, or empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCheckTarget {
    /// The folder.
    pub path: AbsolutePath,
}

/// Where an exported repository is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportSource {
    /// A repository of the place that exports it.
    Path(AbsolutePath),
    /// A remote, by https or ssh.
    Url {
        /// Its URL.
        url: String,
        /// What may be reached.
        reach: GitReach,
    },
}

/// Lists branches and tags of a repository, and packs their commits. The pack follows the answer, unless there is no commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitExport {
    /// The repository.
    pub source: ExportSource,
    /// The branch or tag that will be checked out; that of the source where `None`.
    pub branch: Option<String>,
    /// The number of commits of one branch; all of all branches where `None`.
    pub depth: Option<u32>,
    /// Commits that are known where the pack goes.
    #[serde(default)]
    pub has: Vec<String>,
    /// Those whose parents are not known there.
    #[serde(default)]
    pub has_boundary: Vec<String>,
}

/// A repository as it was exported. The importing place trusts none of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The current branch, which may have no commit; `None` where a commit is checked out that no branch is at.
    pub head: Option<String>,
    /// The current commit.
    pub commit: Option<String>,
    /// Branches and tags, by name.
    pub refs: Vec<ExportedRef>,
    /// Commits whose parents are not in the pack.
    pub boundary: Vec<String>,
}

/// A branch or a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedRef {
    /// The full name: `refs/heads/main`.
    pub name: String,
    /// The hash of its object.
    pub id: String,
}

/// Makes a repository out of an exported one. Its pack follows the request. What fails leaves nothing behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitImport {
    /// The folder, which is missing or empty.
    pub path: AbsolutePath,
    /// The URL of the remote `origin`.
    pub url: String,
    /// The branch or tag that is checked out; that of the source where `None`.
    pub branch: Option<String>,
    /// What was exported.
    pub exported: Exported,
    /// What filters may reach.
    pub reach: GitReach,
}

impl Operation for GitCheckTarget {
    const NAME: &'static str = "git-check-target";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = Noted;

    fn time_limit(&self) -> Duration {
        super::ANSWERED_WITHIN
    }
}

impl Operation for GitExport {
    const NAME: &'static str = "git-export";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = Exported;

    fn time_limit(&self) -> Duration {
        NETWORK_LIMIT + super::ANSWERED_WITHIN
    }

    fn answer_limit(&self) -> AnswerLimit {
        let refs = u32::try_from(MOST_EXPORTED_REFS).unwrap_or(u32::MAX);
        AnswerLimit::of_elements(refs + MOST_BOUNDARY, 3)
    }
}

impl Operation for GitImport {
    const NAME: &'static str = "git-import";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = Cloned;

    fn time_limit(&self) -> Duration {
        NETWORK_LIMIT + super::ANSWERED_WITHIN
    }
}

/// How the URL of a repository in another place begins. Git knows no such transport: only the server follows it.
const SCHEME: &str = "skep://";
/// The server's workspace, which no VM is called.
const SERVER: &str = "server";

/// A place of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayPlace {
    /// The workspace of the account.
    Server,
    /// A VM.
    Vm(VmRef),
}

impl RelayPlace {
    /// Reads `server`, or what refers to a VM. `None` is neither.
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

/// A repository in another place of the same server: `skep://server/srv/project`, `skep://vm_.../root/project`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayUrl {
    /// The place.
    pub place: RelayPlace,
    /// The repository there.
    pub path: AbsolutePath,
}

impl RelayUrl {
    /// Reads such a URL; `None` is another one, or a malformed one.
    pub fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix(SCHEME)?;
        let (place, path) = rest.split_at(rest.find('/')?);
        let path = AbsolutePath::parse("url", path, PathEncoding::Percent).ok()?;
        Some(Self { place: RelayPlace::parse(place)?, path })
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.place, encoded(self.path.as_path().as_os_str()))
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
