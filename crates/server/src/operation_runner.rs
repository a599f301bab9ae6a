//! Runs operations where the caller wants them: in the workspace of its account, or in one of its VMs.

use std::{collections::BTreeMap, future::Future, path::PathBuf, sync::Arc};

use skep_api::{
    AddsFiles, ErrorCode, Failure, HelperKind, Operation, VmId, VmRef,
    exec::{RunCommand, VmField},
};
use skep_channel::ExecStream;
use skep_swarm::{EndReasonReceiver, Swarm};
use skep_workspace::{Content, EntryLocks, Place, Run, RunStreamed, no_content};

use crate::{
    audit_context::AuditContext,
    auth::Identity,
    confine::fence,
    error::Refusal,
    extract::{parse_vm, vm_key_limited},
    helper::{Helper, StartHelper},
    swarm_handle::SwarmHandle,
    workspace_disk::{AccountSpace, WorkspaceDisk},
    workspaces::Workspaces,
};

/// Runs operations in workspaces and VMs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OperationRunner {
    vms: SwarmHandle,
    commands: Helper,
    git: Helper,
    workspaces: Workspaces,
    disk: WorkspaceDisk,
    /// A place without roots. Each call adds the roots of its account.
    place_without_roots: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The workspace of the account.
    Workspace,
    Vm(VmRef),
}

impl Target {
    /// The target in a query parameter.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn from_query(vm: Option<&str>) -> Result<Self, Failure> {
        Ok(vm.map(parse_vm).transpose()?.map_or(Self::Workspace, Self::Vm))
    }

    /// The target in a field of a body.
    ///
    /// # Errors
    /// Those of [`Self::from_query`].
    pub(crate) fn from_field(vm: Option<&VmField>) -> Result<Self, Failure> {
        Self::from_query(vm.map(VmField::as_text).as_deref())
    }
}

impl OperationRunner {
    /// `locks` are shared with the predecessor of this server during a restart.
    pub(crate) fn new(
        vms: SwarmHandle,
        start: &StartHelper,
        workspaces: &Workspaces,
        disk: WorkspaceDisk,
        locks: EntryLocks,
    ) -> Self {
        // No command is started in this place, so it needs no directory for commands.
        let bare = Place::new("/", "/", BTreeMap::new(), PathBuf::new()).without_groups();
        let bare = bare.creating_roots_in(workspaces.dir()).with_walk_fence(fence).with_entry_locks(locks);
        let helper = |kind| Helper::new(kind, Arc::clone(start));
        let (commands, git) = (helper(HelperKind::Commands), helper(HelperKind::Git));
        Self { vms, commands, git, workspaces: workspaces.clone(), disk, place_without_roots: bare }
    }

    fn helper(&self, kind: HelperKind) -> &Helper {
        match kind {
            HelperKind::Commands => &self.commands,
            HelperKind::Git => &self.git,
        }
    }

    /// Runs an operation in a target.
    ///
    /// # Errors
    /// The refusals of the operation; `scope_missing` for a VM without `swarm:exec`; `unknown_vm`; `vm_key_limited` for
    /// the workspace and a key that is bound to a VM.
    pub(crate) async fn run<O: Operation + Run>(
        &self,
        caller: &Identity,
        chosen: Target,
        operation: O,
    ) -> Result<O::Answer, Refusal> {
        match chosen {
            Target::Vm(vm) => {
                let vm = self.vms.awake_vm_for_exec(caller, vm).await?;
                Ok(vm.with_answer_memory(caller.memory.for_answers()).call(&operation).await?)
            }
            Target::Workspace => {
                let roots = self.roots(caller)?;
                let place = self.workspace(caller, roots.clone());
                // Commands reserve memory only for their answer: they may run for an hour, and most print little.
                if O::HELPER != Some(HelperKind::Commands) {
                    caller.memory.reserve(operation.memory_bytes(&place).await).await?;
                }
                if let Some(kind) = O::HELPER {
                    let roots = self.create_missing_roots(roots).await?;
                    let work = self.helper(kind).run(roots, &operation, &caller.memory);
                    return Ok(self.within_disk_space(caller, operation.adds_files(), work).await?);
                }
                Ok(operation.run(&place).await.map_err(Failure::from)?)
            }
        }
    }

    /// Runs an operation whose request or answer is followed by a byte stream.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn run_streamed<O: RunStreamed>(
        &self,
        caller: &Identity,
        chosen: Target,
        operation: O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        match chosen {
            Target::Vm(vm) => {
                let vm = self.vms.awake_vm_for_exec(caller, vm).await?;
                Ok(vm.call_streamed(&operation, content).await?)
            }
            Target::Workspace => {
                let place = self.workspace(caller, self.roots(caller)?);
                let content = content.unwrap_or_else(no_content);
                Ok(operation.run_streamed(content, &place).await.map_err(Failure::from)?)
            }
        }
    }

    /// Runs a git operation on the server, with the roots of the account, on behalf of a VM of the caller.
    ///
    /// # Errors
    /// Those of the operation; `path_outside_roots` for an account without roots.
    pub(crate) async fn run_git_on_server<O: Operation>(
        &self,
        caller: &Identity,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        let roots = self.create_missing_roots(self.account_roots(caller)?).await?;
        let work = self.git.run_streamed(roots, operation, content);
        Ok(self.within_disk_space(caller, operation.adds_files(), work).await?)
    }

    /// Runs a git operation whose request or answer is followed by a byte stream.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn run_git_streamed<O: Operation>(
        &self,
        caller: &Identity,
        chosen: Target,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        match chosen {
            Target::Vm(vm) => {
                let vm = self.vms.awake_vm_for_exec(caller, vm).await?;
                Ok(vm.call_streamed(operation, content).await?)
            }
            Target::Workspace => {
                let roots = self.create_missing_roots(self.roots(caller)?).await?;
                let work = self.git.run_streamed(roots, operation, content);
                Ok(self.within_disk_space(caller, operation.adds_files(), work).await?)
            }
        }
    }

    /// Resolves a VM to its id, for a series of operations: another VM may get the same name in between.
    ///
    /// # Errors
    /// Those of [`SwarmHandle::vm_for_exec`]; `vm_key_limited`.
    pub(crate) async fn resolve(&self, caller: &Identity, target: Target) -> Result<Target, Refusal> {
        match target {
            Target::Vm(vm) => Ok(Target::Vm(VmRef::Id(self.vm_id(caller, vm).await?))),
            Target::Workspace => {
                self.roots(caller)?;
                Ok(Target::Workspace)
            }
        }
    }

    /// Starts a command in a target. For a VM, [`EndReasonReceiver`] has the reason where the events end early.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn stream(
        &self,
        caller: &Identity,
        chosen: Target,
        command: RunCommand,
    ) -> Result<(ExecStream, Option<EndReasonReceiver>), Refusal> {
        match chosen {
            Target::Vm(vm) => {
                let vm = self.vms.awake_vm_for_exec(caller, vm).await?;
                let (events, ending) = vm.exec_stream(command).await?;
                Ok((events, Some(ending)))
            }
            Target::Workspace => {
                let roots = self.create_missing_roots(self.roots(caller)?).await?;
                Ok((self.commands.stream(roots, &command).await?, None))
            }
        }
    }

    /// The id of a VM, for a series of operations: another VM may get the same name or process id in between.
    ///
    /// # Errors
    /// Those of [`SwarmHandle::vm_for_exec`].
    pub(crate) async fn vm_id(&self, caller: &Identity, vm: VmRef) -> Result<VmId, Refusal> {
        Ok(self.vm(caller, vm).await?.1)
    }

    /// The swarm, and the id of a VM that the caller may run commands in.
    ///
    /// # Errors
    /// Those of [`SwarmHandle::vm_for_exec`].
    pub(crate) async fn vm(&self, caller: &Identity, vm: VmRef) -> Result<(Swarm, VmId), Refusal> {
        self.vms.vm_for_exec(caller, vm).await
    }

    /// Records the VM that a write acts on in the audit context.
    pub(crate) fn record_resource(target: &Target, audit: &AuditContext) {
        if let Target::Vm(vm) = target {
            audit.set_resource(vm);
        }
    }

    /// Creates missing roots below `workspaces/`, because the fence of a helper needs existing folders. Returns the
    /// roots.
    async fn create_missing_roots(&self, roots: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
        let place = self.place_without_roots.clone().with_roots(roots.clone());
        let made = tokio::task::spawn_blocking(move || place.make_roots()).await;
        made.map_err(|_| Failure::new(ErrorCode::Internal, "internal error"))??;
        Ok(roots)
    }

    /// The workspace for operations in this process, which start no programs.
    fn workspace(&self, caller: &Identity, roots: Vec<PathBuf>) -> Place {
        let place = self.place_without_roots.clone().with_roots(roots);
        match self.disk_space(caller) {
            Some(space) => place.with_disk_space(Arc::new(space)),
            None => place,
        }
    }

    fn disk_space(&self, caller: &Identity) -> Option<AccountSpace> {
        self.disk.of(caller.account.id, &caller.account.limits, &self.vms)
    }

    /// Runs a program, which ends if it adds more files than the caller's account may have.
    async fn within_disk_space<T>(
        &self,
        caller: &Identity,
        adds: AddsFiles,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        match self.disk_space(caller) {
            Some(space) => space.guard(adds, work).await,
            None => work.await,
        }
    }

    /// The roots that the caller's key may reach, at least one.
    fn roots(&self, caller: &Identity) -> Result<Vec<PathBuf>, Failure> {
        if let Some(vm) = caller.key.vm {
            return Err(vm_key_limited(vm));
        }
        self.account_roots(caller)
    }

    /// The roots of the caller's account, whatever its key may reach.
    fn account_roots(&self, caller: &Identity) -> Result<Vec<PathBuf>, Failure> {
        if caller.account.roots.is_empty() {
            let message = "this account has no roots; a key with `server:admin` can set them";
            return Err(Failure::new(ErrorCode::PathOutsideRoots, message));
        }
        let roots: Vec<PathBuf> = caller.account.roots.iter().map(PathBuf::from).collect();
        self.workspaces.check_stored(&roots)?;
        Ok(roots)
    }
}
