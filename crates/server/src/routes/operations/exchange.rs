//! Pushes, pulls, fetches and clones where the server relays the pack: the place of the repository creates or applies
//! it, and the server, or the place of the remote, talks to the remote. So no token enters a VM.

use skep_api::{
    AbsolutePath, Call, CallContext, ErrorCode, Failure, Operation, Scope,
    git::{
        Cloned, FetchedRefs, GitCheckTarget, GitClone, GitExchange, GitExport, GitFetch, GitFetchRemote,
        GitImport, GitImportFetched, GitJoin, GitNotePush, GitPack, GitPull, GitPush, GitReach, GitSend,
        Pulled, Pushed, RelayPlace, RelayUrl,
    },
};
use skep_workspace::Run;

use super::remote::Remote;
use crate::{
    auth::Identity,
    error::Refusal,
    extract::check_scope,
    operation_runner::{OperationRunner, Target},
};

/// Sends a branch to its remote. Pushes from and to a VM are relayed by the server.
pub(super) async fn push(
    runner: &OperationRunner,
    caller: &Identity,
    at: Target,
    push: Call<GitPush>,
) -> Result<Pushed, Refusal> {
    match run_without_relay(runner, caller, &at, &push).await {
        Some(done) => done,
        None => relayed_push(runner, caller, at, push).await,
    }
}

/// Fetches a branch, and merges or rebases the current one. Pulls into and from a VM are relayed by the server.
pub(super) async fn pull(
    runner: &OperationRunner,
    caller: &Identity,
    at: Target,
    pull: Call<GitPull>,
) -> Result<Pulled, Refusal> {
    match run_without_relay(runner, caller, &at, &pull).await {
        Some(done) => done,
        None => relayed_pull(runner, caller, at, pull).await,
    }
}

/// Fetches all branches of a remote. Fetches into and from a VM are relayed by the server.
pub(super) async fn fetch(
    runner: &OperationRunner,
    caller: &Identity,
    at: Target,
    fetch: Call<GitFetchRemote>,
) -> Result<FetchedRefs, Refusal> {
    match run_without_relay(runner, caller, &at, &fetch).await {
        Some(done) => done,
        None => relayed_fetch(runner, caller, at, fetch).await,
    }
}

/// Runs an operation with git on the server, without a relay. `None` if the repository or its remote is in a VM.
async fn run_without_relay<O: Operation + Run + Clone>(
    runner: &OperationRunner,
    caller: &Identity,
    at: &Target,
    operation: &O,
) -> Option<Result<O::Answer, Refusal>> {
    if *at != Target::Workspace {
        return None;
    }
    match runner.run(caller, Target::Workspace, operation.clone()).await {
        Err(refusal) if refusal.failure().code == ErrorCode::RemoteForbidden => None,
        done => Some(done),
    }
}

/// Packs a branch in its place, and sends it to its remote.
async fn relayed_push(
    runner: &OperationRunner,
    caller: &Identity,
    at: Target,
    push: Call<GitPush>,
) -> Result<Pushed, Refusal> {
    let at = runner.resolve(caller, at).await?;
    let Call { context, operation: push } = push;
    let (path, remote, branch) = (push.path.clone(), push.remote.clone(), push.branch.clone());
    let plan = GitExchange { path, remote, branch, pushes: true };
    let plan = runner.run(caller, at.clone(), plan).await?;
    if plan.is_local {
        return runner.run(caller, at, without_network(context, push)).await;
    }
    let remote = Remote::resolve(runner, caller, &at, plan.url, context.reach).await?;
    let commit = plan.commit.ok_or_else(|| Failure::new(ErrorCode::Internal, "internal error"))?;
    let pack = GitPack { path: push.path.clone(), commit: commit.clone() };
    let (_, pack) = runner.run_git_streamed(caller, at.clone(), &pack, None).await?;
    let send = GitSend {
        url: remote.url.clone(),
        here: remote.place.is_some(),
        branch: plan.branch.clone(),
        commit: commit.clone(),
        last_seen: plan.last_seen,
        force_with_lease: push.force_with_lease,
        boundary: plan.boundary,
        reach: remote.reach.clone(),
    };
    let (sent, _) = remote.run(runner, caller, &send, Some(pack)).await?;
    let (remote, branch) = (plan.remote, plan.branch);
    let note = GitNotePush {
        path: push.path,
        remote: remote.clone(),
        branch: branch.clone(),
        commit: commit.clone(),
        set_upstream: push.set_upstream,
    };
    runner.run(caller, at, note).await?;
    Ok(Pushed { remote, branch, from: sent.from, to: commit, created: sent.created })
}

/// Fetches a branch for another place, which merges or rebases its current one.
async fn relayed_pull(
    runner: &OperationRunner,
    caller: &Identity,
    at: Target,
    pull: Call<GitPull>,
) -> Result<Pulled, Refusal> {
    let at = runner.resolve(caller, at).await?;
    let Call { context, operation: pull } = pull;
    let (path, remote, branch) = (pull.path.clone(), pull.remote.clone(), pull.branch.clone());
    let plan = GitExchange { path, remote, branch, pushes: false };
    let plan = runner.run(caller, at.clone(), plan).await?;
    if plan.is_local {
        return runner.run(caller, at, without_network(context, pull)).await;
    }
    let remote = Remote::resolve(runner, caller, &at, plan.url, context.reach).await?;
    if remote.place.is_some() {
        check_scope(caller, Scope::GitRead)?;
    }
    let fetch = GitFetch {
        url: remote.url.clone(),
        here: remote.place.is_some(),
        branch: plan.branch.clone(),
        has: plan.has,
        boundary: plan.boundary,
        reach: remote.reach.clone(),
    };
    let (fetched, pack) = remote.run(runner, caller, &fetch, None).await?;
    let join = GitJoin {
        path: pull.path,
        remote: plan.remote,
        branch: plan.branch,
        commit: fetched.commit,
        strategy: pull.strategy,
        committer: context.committer,
    };
    let (pulled, _) = runner.run_git_streamed(caller, at, &join, Some(pack)).await?;
    Ok(pulled)
}

/// Fetches all branches of a remote for another place.
async fn relayed_fetch(
    runner: &OperationRunner,
    caller: &Identity,
    at: Target,
    fetch: Call<GitFetchRemote>,
) -> Result<FetchedRefs, Refusal> {
    let at = runner.resolve(caller, at).await?;
    let Call { context, operation: fetch } = fetch;
    // The plan of a pull needs a branch, which is not used here.
    let (path, remote) = (fetch.path.clone(), fetch.remote.clone());
    let plan = GitExchange { path, remote, branch: Some("main".to_owned()), pushes: false };
    let plan = runner.run(caller, at.clone(), plan).await?;
    if plan.is_local {
        return runner.run(caller, at, without_network(context, fetch)).await;
    }
    let remote = Remote::resolve(runner, caller, &at, plan.url, context.reach).await?;
    if remote.place.is_some() {
        check_scope(caller, Scope::GitRead)?;
    }
    let source = remote.source()?;
    let export = GitExport { source, branch: None, depth: None, has: plan.has, has_boundary: plan.boundary };
    let (exported, pack) = remote.run(runner, caller, &export, None).await?;
    let take = GitImportFetched { path: fetch.path, remote: plan.remote, prune: fetch.prune, exported };
    let (taken, _) = runner.run_git_streamed(caller, at, &take, Some(pack)).await?;
    Ok(taken)
}

/// The source of a relayed clone.
pub(super) enum CloneFrom {
    /// A repository in a place of this server.
    Place(Target, AbsolutePath),
    /// A remote repository, which the server fetches from.
    Url(String),
}

/// Clones a repository into another place. The target is checked before anything is packed.
pub(super) async fn clone(
    runner: &OperationRunner,
    caller: &Identity,
    from: CloneFrom,
    target: Target,
    clone: Call<GitClone>,
) -> Result<Cloned, Refusal> {
    let target = runner.resolve(caller, target).await?;
    let Call { context, operation: clone } = clone;
    runner.run(caller, target.clone(), GitCheckTarget { path: clone.path.clone() }).await?;
    let (remote, url) = match from {
        CloneFrom::Place(place, path) => {
            check_scope(caller, Scope::GitRead)?;
            let place = runner.resolve(caller, place).await?;
            if place == target {
                let url = path.as_path().to_string_lossy().into_owned();
                let call = Call { context, operation: GitClone { url, ..clone } };
                return runner.run(caller, target.clone(), for_target(call, &target)).await;
            }
            let at = match &place {
                Target::Workspace => RelayPlace::Server,
                Target::Vm(vm) => RelayPlace::Vm(vm.clone()),
            };
            let remote = Remote::in_place(place, &path);
            (remote, RelayUrl { place: at, path }.to_string())
        }
        CloneFrom::Url(url) => {
            let reach = context.reach.clone();
            (Remote::outside(runner, caller, &target, url.clone(), reach).await?, url)
        }
    };
    let export = GitExport {
        source: remote.source()?,
        branch: clone.branch.clone(),
        depth: clone.depth,
        has: Vec::new(),
        has_boundary: Vec::new(),
    };
    let (exported, pack) = remote.run(runner, caller, &export, None).await?;
    let reach = if target == Target::Workspace { context.reach } else { GitReach::default() };
    let import = GitImport { path: clone.path, url, branch: clone.branch, exported, reach };
    let (cloned, _) = runner.run_git_streamed(caller, target, &import, Some(pack)).await?;
    Ok(cloned)
}

/// The call for a place. A VM gets no credential: its own network decides what it reaches.
pub(super) fn for_target<O>(call: Call<O>, target: &Target) -> Call<O> {
    match target {
        Target::Workspace => call,
        Target::Vm(_) => without_network(call.context, call.operation),
    }
}

/// Git with a path as the remote needs no network.
fn without_network<O>(context: CallContext, operation: O) -> Call<O> {
    Call { context: CallContext { reach: GitReach::default(), ..context }, operation }
}
