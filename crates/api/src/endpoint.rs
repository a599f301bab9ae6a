//! Operations that callers reach over HTTP: the method, path, scopes, refusals and documentation of each.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ErrorCode, Failure, Scope,
    files::WriteCondition,
    git::{GitReach, Person},
    operation::{AddsFiles, AnswerLimit, HelperKind, Operation},
};

/// An operation with a route of its own. Its value is the query or the JSON body that callers send, without `vm` and
/// `path_encoding`, which name its place and the encoding of its paths.
pub trait Endpoint: Operation {
    /// How callers reach the operation.
    const ROUTE: Route;

    /// Checks what the types of the fields do not express.
    ///
    /// # Errors
    /// `invalid_value`, naming the field.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether the answer has status 201 instead of 200.
    fn has_created(_: &Self::Answer) -> bool {
        matches!(Self::ROUTE.success, Success::Created(_))
    }

    /// The fields of a request that are paths, in the encoding that `path_encoding` names.
    fn path_fields(_: &Map<String, Value>) -> &'static [&'static str] {
        Self::ROUTE.paths
    }
}

/// The method of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Reads; the operation is the query.
    Get,
    /// Changes; the operation is the body, a JSON object.
    Post,
    /// Removes; the operation is the query.
    Delete,
}

impl Method {
    /// The name in a request line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Whether the operation is the body of the request.
    pub const fn has_body(self) -> bool {
        matches!(self, Self::Post)
    }
}

/// The successful answers of a route, with their descriptions.
#[derive(Debug, Clone, Copy)]
pub enum Success {
    /// Status 200.
    Done(&'static str),
    /// Status 201.
    Created(&'static str),
    /// Status 200 or 201, which [`Endpoint::has_created`] decides.
    Either {
        /// The description of status 200.
        done: &'static str,
        /// The description of status 201.
        created: &'static str,
    },
}

/// How callers reach an operation, and how it is documented.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, such as `/api/git/commit`.
    pub path: &'static str,
    /// The id in the OpenAPI document and in the audit log.
    pub id: &'static str,
    /// The group in the OpenAPI document.
    pub tag: &'static str,
    /// A title of a few words.
    pub summary: &'static str,
    /// What the operation does, in Markdown.
    pub description: &'static str,
    /// A request as JSON; derived from the fields if empty.
    pub example: &'static str,
    /// The scopes that the key needs, all of them. A VM needs `swarm:exec` in addition.
    pub scopes: &'static [Scope],
    /// The refusals of the operation in groups, beside those that all routes share.
    pub refusals: &'static [&'static [ErrorCode]],
    /// The successful answers.
    pub success: Success,
    /// The maximum length of a body, in bytes.
    pub body_limit: usize,
    /// The fields that are paths. Without any, the request has no `path_encoding`.
    pub paths: &'static [&'static str],
    /// Whether the server adds the hosts that git may reach, and its credentials, to the context.
    pub uses_network: bool,
    /// Whether `If-Match` and `If-None-Match` are preconditions.
    pub conditional: bool,
}

impl Route {
    /// The maximum length of a body unless the route has its own, in bytes.
    pub const BODY_LIMIT: usize = 1 << 20;

    /// A route with this method, path and id. The fields that every route sets are empty.
    pub(crate) const fn new(method: Method, path: &'static str, id: &'static str) -> Self {
        Self {
            method,
            path,
            id,
            tag: "",
            summary: "",
            description: "",
            example: "",
            scopes: &[],
            refusals: &[],
            success: Success::Done(""),
            body_limit: Self::BODY_LIMIT,
            paths: &["path"],
            uses_network: false,
            conditional: false,
        }
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

/// Calls a macro with the types of all endpoints, each with its module: first those that one generic route of the
/// server serves, then those that have a handler of their own, because their content is streamed or their commits are
/// relayed.
#[macro_export]
macro_rules! for_each_endpoint {
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

macro_rules! routes {
    ([$($generic:path),* $(,)?] [$($special:path),* $(,)?]) => {
        &[$(&<$generic as Endpoint>::ROUTE),*, $(&<$special as Endpoint>::ROUTE),*]
    };
}

use crate::{files, git};

/// The routes of all endpoints.
pub const ROUTES: &[&Route] = for_each_endpoint!(routes);

/// The largest offset of a byte in a file or an output. Linux, and the format `int64` of the OpenAPI document, allow no
/// larger one.
pub const MAX_BYTE_OFFSET: u64 = i64::MAX.cast_unsigned();

/// Checks that a number is within a range.
///
/// # Errors
/// `invalid_value`, which names the field, the number and the range.
pub fn check_range<N: PartialOrd + std::fmt::Display>(
    field: &str,
    number: N,
    range: std::ops::RangeInclusive<N>,
) -> Result<(), Failure> {
    if range.contains(&number) {
        return Ok(());
    }
    let (first, last) = (range.start(), range.end());
    invalid(format!("`{field}` is {number}; it must be a whole number from {first} to {last}"))
}

/// Checks that a text has no zero byte, so that it can be an argument of a program.
pub(crate) fn check_argument(field: &str, text: &str) -> Result<(), Failure> {
    if text.contains('\0') {
        return invalid(format!("`{field}` contains a zero byte; leave it out"));
    }
    Ok(())
}

pub(crate) fn invalid(message: impl Into<String>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::InvalidValue, message))
}
