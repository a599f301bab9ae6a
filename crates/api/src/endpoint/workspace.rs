//! Operations on a workspace that callers reach over HTTP, and what the server adds to them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Endpoint, Route};
use crate::{
    Failure,
    files::WriteCondition,
    git::{GitReach, Person},
    operation::{AddsFiles, AnswerLimit, HelperKind, Operation},
    path::plain_path,
};

/// An operation on a workspace with a route of its own. Callers send its fields, and `vm` and `path_encoding`, which name
/// its place and the encoding of its paths.
pub trait WorkspaceEndpoint: Operation + 'static {
    /// How callers reach the operation.
    const ROUTE: Route;

    /// Checks what the types of the fields do not express.
    ///
    /// # Errors
    /// `invalid_value`, naming the field.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// As [`Endpoint::has_created`].
    fn has_created(_: &Self::Answer) -> bool {
        false
    }

    /// The fields of a request that are paths, in the encoding that `path_encoding` names.
    fn path_fields(_: &Map<String, Value>) -> &'static [&'static str] {
        Self::ROUTE.paths
    }
}

impl<O: WorkspaceEndpoint> Endpoint for O {
    const ROUTE: Route = <O as WorkspaceEndpoint>::ROUTE;
    type Path = ();
    type Answer = <O as Operation>::Answer;

    fn check(&self) -> Result<(), Failure> {
        WorkspaceEndpoint::check(self)
    }

    /// Paths are written plainly if all of them are UTF-8. Null fields, which count as absent, are left out.
    fn to_fields(&self) -> serde_json::Result<Map<String, Value>> {
        let mut fields: Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        fields.retain(|_, value| !value.is_null());
        let encoded = |name: &&'static str| Some((*name, fields.get(*name)?.as_str()?.to_owned()));
        let paths: Vec<_> = O::path_fields(&fields).iter().filter_map(encoded).collect();
        let plain: Option<Vec<_>> =
            paths.iter().map(|(name, path)| Some((*name, plain_path(path)?))).collect();
        match plain {
            Some(plain) => {
                fields.extend(plain.into_iter().map(|(name, path)| (name.to_owned(), Value::String(path))));
            }
            None => drop(fields.insert("path_encoding".to_owned(), Value::from("percent"))),
        }
        Ok(fields)
    }

    fn has_created(answer: &Self::Answer) -> bool {
        <O as WorkspaceEndpoint>::has_created(answer)
    }
}

/// What the server adds to an operation. Callers cannot send it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallContext {
    /// The committer of commits and tags: the calling key.
    pub committer: Person,
    /// The hosts that git may reach, and its credentials. Empty for an operation in a VM.
    pub reach: GitReach,
    /// The precondition in the headers of the request.
    pub condition: WriteCondition,
}

/// An operation with its context, as the server sends it to a guest agent or a helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call<O> {
    /// What the server adds.
    pub context: CallContext,
    /// What the caller sent.
    pub operation: O,
}

impl<O> From<O> for Call<O> {
    fn from(operation: O) -> Self {
        Self { context: CallContext::default(), operation }
    }
}

impl<O: Operation> Operation for Call<O> {
    const NAME: &'static str = O::NAME;
    const HELPER: Option<HelperKind> = O::HELPER;
    type Answer = O::Answer;

    fn time_limit(&self) -> std::time::Duration {
        self.operation.time_limit()
    }

    fn answer_limit(&self) -> AnswerLimit {
        self.operation.answer_limit()
    }

    fn adds_files(&self) -> AddsFiles {
        self.operation.adds_files()
    }
}

/// Calls a macro with the types of all operations on a workspace that have a route, each with its module: first those that one generic route of the
/// server serves, then those that have a handler of their own, because their content is streamed or their commits are
/// relayed.
#[macro_export]
macro_rules! for_each_workspace_endpoint {
    ($callback:ident) => {
        $callback! {
            [
                files::WriteFile, files::ListFolder, files::SearchFiles, files::GrepFiles, files::RemoveFile,
                files::MakeFolder, files::MakeLink, files::MoveFile, files::CopyFile,
                git::GitRepositories, git::GitStatus, git::GitDiff, git::GitLog, git::GitBranches, git::GitWorktrees,
                git::GitAdd, git::GitCommit, git::GitCheckout, git::GitChangeBranch, git::GitChangeWorktree,
                git::GitReset, git::GitStash, git::GitInit, git::GitShow, git::GitTags, git::GitChangeTag,
                git::GitMerge, git::GitRemotes, git::GitChangeRemote,
            ]
            [files::ReadFile, git::GitClone, git::GitPush, git::GitPull, git::GitFetchRemote]
        }
    };
}
