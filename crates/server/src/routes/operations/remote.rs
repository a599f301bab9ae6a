//! The remote of a relayed operation: another place of this server, or a host that git on the server connects to.
//!
//! For a repository in a VM, the VM's egress policy decides which hosts are permitted, and its egress report lists the
//! connections.

use jiff::Timestamp;
use skep_api::{
    AbsolutePath, AccountId, ErrorCode, Failure, Operation, VmId,
    accounts::GitRelay,
    egress::{EgressTry, EgressVerdict},
    git::{ExportSource, GitReach, RelayPlace, RelayUrl},
    path::{PathEncoding, percent_encoded},
};
use skep_swarm::Swarm;
use skep_workspace::{Content, git::remote_host};

use crate::{
    auth::Identity,
    error::Refusal,
    operation_runner::{OperationRunner, Target},
};

/// The longest reason of a try in the egress report, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The remote of a relayed operation.
pub(super) struct Remote {
    /// A path if there is a place, else a URL.
    pub(super) url: String,
    /// Another place of this server. `None` if the remote is reached over the network.
    pub(super) place: Option<Target>,
    pub(super) reach: GitReach,
    /// The VM that has the repository, if git on the server connects for a VM.
    vm: Option<RelayedVm>,
}

/// A VM that git on the server connects for.
struct RelayedVm {
    swarm: Swarm,
    account: AccountId,
    id: VmId,
}

/// A try to connect for a VM. It is added to the VM's egress report on drop, so that it is there also if the caller does not
/// wait for the answer.
struct RelayTry<'a> {
    vm: &'a RelayedVm,
    tried: EgressTry,
}

impl Remote {
    /// Resolves the URL given by the place of the repository, which is untrusted if it is a VM: a place in it is checked as if
    /// the caller had named it.
    pub(super) async fn resolve(
        runner: &OperationRunner,
        caller: &Identity,
        repository: &Target,
        url: String,
        reach: GitReach,
    ) -> Result<Self, Refusal> {
        let Some(relayed) = RelayUrl::parse(&url) else {
            return Self::outside(runner, caller, repository, url, reach).await;
        };
        let place = match relayed.place {
            RelayPlace::Server => Target::Workspace,
            RelayPlace::Vm(vm) => Target::Vm(vm),
        };
        Ok(Self::in_place(runner.resolve(caller, place).await?, &relayed.path))
    }

    /// A repository in a place of this server, which is resolved.
    pub(super) fn in_place(place: Target, path: &AbsolutePath) -> Self {
        let url = percent_encoded(path.as_path().as_os_str());
        Self { url, place: Some(place), reach: GitReach::default(), vm: None }
    }

    /// A remote that git on the server connects to for a repository in a resolved target.
    pub(super) async fn outside(
        runner: &OperationRunner,
        caller: &Identity,
        repository: &Target,
        url: String,
        reach: GitReach,
    ) -> Result<Self, Refusal> {
        let Target::Vm(vm) = repository else { return Ok(Self { url, place: None, reach, vm: None }) };
        let (swarm, id) = runner.vm(caller, vm.clone()).await?;
        let account = caller.account.id;
        let policy = match caller.account.git_relay {
            GitRelay::Known => Some(swarm.egress_policy(&account, id).await?),
            GitRelay::Any => None,
        };
        let reach = GitReach { policy, ..reach };
        Ok(Self { url, place: None, reach, vm: Some(RelayedVm { swarm, account, id }) })
    }

    /// The source of an export.
    pub(super) fn source(&self) -> Result<ExportSource, Failure> {
        match self.place {
            Some(_) => Ok(ExportSource::Path(AbsolutePath::parse("url", &self.url, PathEncoding::Percent)?)),
            None => Ok(ExportSource::Url { url: self.url.clone(), reach: self.reach.clone() }),
        }
    }

    /// Runs the remote's part of an exchange in its place.
    pub(super) async fn run<O: Operation>(
        &self,
        runner: &OperationRunner,
        caller: &Identity,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        if let Some(place) = self.place.clone() {
            return runner.run_git_streamed(caller, place, operation, content).await;
        }
        let tried = self.vm.as_ref().and_then(|vm| RelayTry::begin(vm, &self.url));
        let outcome = runner.run_git_on_server(caller, operation, content).await;
        if let Some(tried) = tried {
            tried.end(outcome.as_ref().err().map(Refusal::failure));
        }
        outcome
    }
}

impl<'a> RelayTry<'a> {
    /// `None` if the URL names no host.
    fn begin(vm: &'a RelayedVm, url: &str) -> Option<Self> {
        let (host, port) = remote_host(url)?;
        let address = host.parse().ok();
        let tried = EgressTry {
            at: Timestamp::now(),
            name: address.is_none().then_some(host),
            address,
            port: Some(port),
            verdict: EgressVerdict::Failed,
            reason: Some("the caller did not wait for the answer".to_owned()),
            git_relay: true,
        };
        Some(Self { vm, tried })
    }

    fn end(mut self, failure: Option<&Failure>) {
        let verdict = match failure.map(|failure| failure.code) {
            Some(ErrorCode::RemoteForbidden) => EgressVerdict::Refused,
            // The remote has answered.
            None | Some(ErrorCode::PushRejected | ErrorCode::UnknownRevision) => EgressVerdict::Allowed,
            Some(_) => EgressVerdict::Failed,
        };
        let reason = failure.filter(|_| verdict != EgressVerdict::Allowed);
        // Without the ways out, which come last.
        let reason = reason.and_then(|failure| failure.message.split(';').next());
        let reason = reason.map(|text| text.chars().take(MAX_REASON_CHARS).collect());
        (self.tried.verdict, self.tried.reason) = (verdict, reason);
    }
}

impl Drop for RelayTry<'_> {
    fn drop(&mut self) {
        let RelayedVm { swarm, account, id } = self.vm;
        // A VM that has ended has no report.
        let _ = swarm.record_git_relay(account, *id, self.tried.clone());
    }
}
