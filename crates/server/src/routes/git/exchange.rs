//! A push or a pull of a VM's repository: the VM packs or joins, the server speaks to the remote.

use skep_api::{
    ErrorCode, Failure, VmRef,
    git::{
        GitExchange, GitFetch, GitJoin, GitNotePush, GitPack, GitPull, GitPush, GitReach, GitSend, Pulled,
        Pushed,
    },
};

use crate::{
    auth::Identity,
    error::Refusal,
    places::{Chosen, Places},
};

/// Takes a branch out of a VM, and sends it to its remote.
pub(super) async fn push(
    places: &Places,
    caller: &Identity,
    vm: VmRef,
    push: GitPush,
) -> Result<Pushed, Refusal> {
    let vm = VmRef::Id(places.vm_id(caller, vm).await?);
    let (path, remote, branch) = (push.path.clone(), push.remote.clone(), push.branch.clone());
    let plan = GitExchange { path, remote, branch, pushes: true };
    let plan = places.run(caller, Chosen::Vm(vm.clone()), plan).await?;
    if plan.is_local {
        return places.run(caller, Chosen::Vm(vm.clone()), GitPush { reach: its_own(), ..push }).await;
    }
    let commit = plan.commit.ok_or_else(|| Failure::new(ErrorCode::Internal, "internal error"))?;
    let pack = GitPack { path: push.path.clone(), commit: commit.clone() };
    let (_, pack) = places.run_streamed(caller, Chosen::Vm(vm.clone()), pack, None).await?;
    let send = GitSend {
        url: plan.url,
        branch: plan.branch.clone(),
        commit: commit.clone(),
        last_seen: plan.last_seen,
        force_with_lease: push.force_with_lease,
        boundary: plan.boundary,
        reach: push.reach,
    };
    let (sent, _) = places.run_beside(caller, &send, Some(pack)).await?;
    let (remote, branch) = (plan.remote, plan.branch);
    let note = GitNotePush {
        path: push.path,
        remote: remote.clone(),
        branch: branch.clone(),
        commit: commit.clone(),
        set_upstream: push.set_upstream,
    };
    places.run(caller, Chosen::Vm(vm), note).await?;
    Ok(Pushed { remote, branch, from: sent.from, to: commit, created: sent.created })
}

/// Fetches a branch for a VM, which joins it with its current one.
pub(super) async fn pull(
    places: &Places,
    caller: &Identity,
    vm: VmRef,
    pull: GitPull,
) -> Result<Pulled, Refusal> {
    let vm = VmRef::Id(places.vm_id(caller, vm).await?);
    let (path, remote, branch) = (pull.path.clone(), pull.remote.clone(), pull.branch.clone());
    let plan = GitExchange { path, remote, branch, pushes: false };
    let plan = places.run(caller, Chosen::Vm(vm.clone()), plan).await?;
    if plan.is_local {
        return places.run(caller, Chosen::Vm(vm.clone()), GitPull { reach: its_own(), ..pull }).await;
    }
    let branch = plan.branch.clone();
    let fetch = GitFetch { url: plan.url, branch, has: plan.has, boundary: plan.boundary, reach: pull.reach };
    let (fetched, pack) = places.run_beside(caller, &fetch, None).await?;
    let join = GitJoin {
        path: pull.path,
        remote: plan.remote,
        branch: plan.branch,
        commit: fetched.commit,
        strategy: pull.strategy,
        committer: pull.committer,
    };
    let (pulled, _) = places.run_streamed(caller, Chosen::Vm(vm), join, Some(pack)).await?;
    Ok(pulled)
}

/// What a VM reaches by itself, without any token.
fn its_own() -> GitReach {
    GitReach { anywhere: true, ..GitReach::default() }
}
