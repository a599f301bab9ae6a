//! The list of operations, each looked up by name, with a JSON request and a JSON answer.

use std::future::Future;

use skep_api::{
    Operation,
    exec::RunCommand,
    exec_stream::{EndStdin, SignalCommand},
    files::{
        GrepFiles, ListFolder, MakeFolder, MakeLink, ReadFile, Relocate, RemoveFile, SearchFiles, WriteFile,
    },
    git::{
        GitAdd, GitBranches, GitChangeBranch, GitChangeRemote, GitChangeTag, GitChangeWorktree,
        GitCheckTarget, GitCheckout, GitClone, GitCommit, GitDiff, GitExchange, GitFetchRemote, GitInit,
        GitLog, GitMerge, GitNotePush, GitPull, GitPush, GitRemotes, GitRepositories, GitReset, GitShow,
        GitStash, GitStatus, GitTags, GitWorktrees,
    },
};

use crate::{Error, Place};

/// An operation of a workspace with a JSON request and a JSON answer.
#[warn(missing_docs)]
pub trait Run: Operation {
    /// Runs without starting a program if possible. `None` means that the caller must call [`Self::run`], also after
    /// an error.
    fn run_without_programs(&self, _: &Place) -> impl Future<Output = Option<Self::Answer>> + Send {
        std::future::ready(None)
    }

    /// The most memory that the operation and its answer may take, in bytes.
    fn memory_bytes(&self, _: &Place) -> impl Future<Output = u64> + Send {
        std::future::ready(self.answer_limit().bytes as u64)
    }

    /// Runs the operation at `place`.
    fn run(self, place: &Place) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

/// Runs the operation called `name` with a JSON request and returns its answer as JSON.
///
/// # Errors
/// The name is unknown, the JSON does not match the request type, or the operation fails.
pub async fn run_by_name(name: &str, request: &[u8], place: &Place) -> Result<Vec<u8>, Error> {
    match name {
        RunCommand::NAME => run_json::<RunCommand>(request, place).await,
        EndStdin::NAME => run_json::<EndStdin>(request, place).await,
        SignalCommand::NAME => run_json::<SignalCommand>(request, place).await,
        ReadFile::NAME => run_json::<ReadFile>(request, place).await,
        WriteFile::NAME => run_json::<WriteFile>(request, place).await,
        ListFolder::NAME => run_json::<ListFolder>(request, place).await,
        MakeFolder::NAME => run_json::<MakeFolder>(request, place).await,
        MakeLink::NAME => run_json::<MakeLink>(request, place).await,
        RemoveFile::NAME => run_json::<RemoveFile>(request, place).await,
        SearchFiles::NAME => run_json::<SearchFiles>(request, place).await,
        GrepFiles::NAME => run_json::<GrepFiles>(request, place).await,
        Relocate::NAME => run_json::<Relocate>(request, place).await,
        name => git_by_name(name, request, place).await,
    }
}

async fn git_by_name(name: &str, request: &[u8], place: &Place) -> Result<Vec<u8>, Error> {
    match name {
        GitStatus::NAME => run_json::<GitStatus>(request, place).await,
        GitDiff::NAME => run_json::<GitDiff>(request, place).await,
        GitLog::NAME => run_json::<GitLog>(request, place).await,
        GitBranches::NAME => run_json::<GitBranches>(request, place).await,
        GitWorktrees::NAME => run_json::<GitWorktrees>(request, place).await,
        GitAdd::NAME => run_json::<GitAdd>(request, place).await,
        GitCommit::NAME => run_json::<GitCommit>(request, place).await,
        GitPush::NAME => run_json::<GitPush>(request, place).await,
        GitPull::NAME => run_json::<GitPull>(request, place).await,
        GitInit::NAME => run_json::<GitInit>(request, place).await,
        GitClone::NAME => run_json::<GitClone>(request, place).await,
        GitCheckout::NAME => run_json::<GitCheckout>(request, place).await,
        GitChangeBranch::NAME => run_json::<GitChangeBranch>(request, place).await,
        GitChangeWorktree::NAME => run_json::<GitChangeWorktree>(request, place).await,
        GitReset::NAME => run_json::<GitReset>(request, place).await,
        GitStash::NAME => run_json::<GitStash>(request, place).await,
        GitExchange::NAME => run_json::<GitExchange>(request, place).await,
        GitRepositories::NAME => run_json::<GitRepositories>(request, place).await,
        GitShow::NAME => run_json::<GitShow>(request, place).await,
        GitTags::NAME => run_json::<GitTags>(request, place).await,
        GitChangeTag::NAME => run_json::<GitChangeTag>(request, place).await,
        GitMerge::NAME => run_json::<GitMerge>(request, place).await,
        GitRemotes::NAME => run_json::<GitRemotes>(request, place).await,
        GitChangeRemote::NAME => run_json::<GitChangeRemote>(request, place).await,
        GitFetchRemote::NAME => run_json::<GitFetchRemote>(request, place).await,
        GitCheckTarget::NAME => run_json::<GitCheckTarget>(request, place).await,
        GitNotePush::NAME => run_json::<GitNotePush>(request, place).await,
        _ => Err(Error::UnknownOperation { name: name.to_owned() }),
    }
}

async fn run_json<O: Run>(request: &[u8], place: &Place) -> Result<Vec<u8>, Error> {
    let operation: O =
        serde_json::from_slice(request).map_err(|source| Error::Malformed { operation: O::NAME, source })?;
    let answer = operation.run(place).await?;
    serde_json::to_vec(&answer).map_err(Error::NotSerializable)
}
