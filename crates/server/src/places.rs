//! Runs operations where the caller wants them: in the workspace of its account, or in one of its VMs.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use skep_api::{
    ErrorCode, Failure, HelperKind, Operation, VmId, VmRef,
    exec::{RunCommand, VmField},
};
use skep_channel::ExecStream;
use skep_swarm::Ending;
use skep_workspace::{Content, EntryLocks, Place, Run, RunStreamed, no_content};

use crate::{
    auth::Identity,
    confine::fence,
    error::Refusal,
    extract::{vm_key_limited, vm_of},
    helper::{Helper, StartHelper},
    trail::Trail,
    vms::Vms,
    workspaces::Workspaces,
};

/// Runs operations in workspaces and VMs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places {
    vms: Vms,
    commands: Helper,
    git: Helper,
    workspaces: Workspaces,
    /// A place without roots. Each call adds the roots of its account.
    bare: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The workspace of the account.
    Workspace,
    Vm(VmRef),
}

impl Chosen {
    /// The target in a query parameter.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn by_query(vm: Option<&str>) -> Result<Self, Failure> {
        Ok(vm.map(vm_of).transpose()?.map_or(Self::Workspace, Self::Vm))
    }

    /// The target in a field of a body.
    ///
    /// # Errors
    /// Those of [`Self::by_query`].
    pub(crate) fn by_field(vm: Option<&VmField>) -> Result<Self, Failure> {
        Self::by_query(vm.map(VmField::as_text).as_deref())
    }
}

impl Places {
    /// `locks` are shared with the predecessor of this server during a restart.
    pub(crate) fn new(vms: Vms, start: &StartHelper, workspaces: &Workspaces, locks: EntryLocks) -> Self {
        // No command is started in this place, so it needs no directory for commands.
        let bare = Place::new("/", "/", BTreeMap::new(), PathBuf::new()).without_groups();
        let bare = bare.making_roots_in(workspaces.dir()).with_walk_fence(fence).with_entry_locks(locks);
        let helper = |kind| Helper::new(kind, Arc::clone(start));
        let (commands, git) = (helper(HelperKind::Commands), helper(HelperKind::Git));
        Self { vms, commands, git, workspaces: workspaces.clone(), bare }
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
        chosen: Chosen,
        operation: O,
    ) -> Result<O::Answer, Refusal> {
        match chosen {
            Chosen::Vm(vm) => {
                let (swarm, vm) = self.vms.entered_by(caller, vm).await?;
                Ok(swarm.call(&caller.account.id, vm, &operation).await?)
            }
            Chosen::Workspace => {
                let roots = self.roots(caller)?;
                let place = self.workspace(roots.clone());
                // Commands reserve no memory: they may run for an hour, and most print little.
                if O::HELPER != Some(HelperKind::Commands) {
                    caller.memory.reserve(operation.memory_bytes(&place).await).await?;
                }
                if let Some(kind) = O::HELPER {
                    if let Some(answer) = operation.run_without_programs(&place).await {
                        return Ok(answer);
                    }
                    return Ok(self.helper(kind).run(self.ready(roots).await?, &operation).await?);
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
        chosen: Chosen,
        operation: O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        match chosen {
            Chosen::Vm(vm) => {
                let (swarm, vm) = self.vms.entered_by(caller, vm).await?;
                Ok(swarm.call_streamed(&caller.account.id, vm, &operation, content).await?)
            }
            Chosen::Workspace => {
                let place = self.workspace(self.roots(caller)?);
                let content = content.unwrap_or_else(no_content);
                Ok(operation.run_streamed(content, &place).await.map_err(Failure::from)?)
            }
        }
    }

    /// Runs a git operation on the server, with the roots of the account, on behalf of a VM of the caller.
    ///
    /// # Errors
    /// Those of the operation; `path_outside_roots` for an account without roots.
    pub(crate) async fn run_beside<O: Operation>(
        &self,
        caller: &Identity,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        let roots = self.ready(self.of_account(caller)?).await?;
        Ok(self.git.run_streamed(roots, operation, content).await?)
    }

    /// Runs a git operation whose request or answer is followed by a byte stream.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn run_git_streamed<O: Operation>(
        &self,
        caller: &Identity,
        chosen: Chosen,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Refusal> {
        match chosen {
            Chosen::Vm(vm) => {
                let (swarm, vm) = self.vms.entered_by(caller, vm).await?;
                Ok(swarm.call_streamed(&caller.account.id, vm, operation, content).await?)
            }
            Chosen::Workspace => {
                let roots = self.ready(self.roots(caller)?).await?;
                Ok(self.git.run_streamed(roots, operation, content).await?)
            }
        }
    }

    /// Resolves a VM to its id, for a series of operations: another VM may get the same name in between.
    ///
    /// # Errors
    /// Those of [`Vms::entered_by`]; `vm_key_limited`.
    pub(crate) async fn settled(&self, caller: &Identity, chosen: Chosen) -> Result<Chosen, Refusal> {
        match chosen {
            Chosen::Vm(vm) => Ok(Chosen::Vm(VmRef::Id(self.vm_id(caller, vm).await?))),
            Chosen::Workspace => {
                self.roots(caller)?;
                Ok(Chosen::Workspace)
            }
        }
    }

    /// Starts a command in a target. For a VM, [`Ending`] has the reason where the events end early.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(crate) async fn stream(
        &self,
        caller: &Identity,
        chosen: Chosen,
        command: RunCommand,
    ) -> Result<(ExecStream, Option<Ending>), Refusal> {
        match chosen {
            Chosen::Vm(vm) => {
                let (swarm, vm) = self.vms.entered_by(caller, vm).await?;
                let (events, ending) = swarm.exec_stream(&caller.account.id, vm, command).await?;
                Ok((events, Some(ending)))
            }
            Chosen::Workspace => {
                let roots = self.ready(self.roots(caller)?).await?;
                Ok((self.commands.stream(roots, &command).await?, None))
            }
        }
    }

    /// The id of a VM, for a series of operations: another VM may get the same name or process id in between.
    ///
    /// # Errors
    /// Those of [`Vms::entered_by`].
    pub(crate) async fn vm_id(&self, caller: &Identity, vm: VmRef) -> Result<VmId, Refusal> {
        Ok(self.vms.entered_by(caller, vm).await?.1)
    }

    /// Records the VM that a write acts on in the audit context.
    pub(crate) fn note(chosen: &Chosen, trail: &Trail) {
        if let Chosen::Vm(vm) = chosen {
            trail.acts_on(vm);
        }
    }

    /// Creates missing roots below `workspaces/`, because the fence of a helper needs existing folders. Returns the
    /// roots.
    async fn ready(&self, roots: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
        let place = self.workspace(roots.clone());
        let made = tokio::task::spawn_blocking(move || place.make_roots()).await;
        made.map_err(|_| Failure::new(ErrorCode::Internal, "internal error"))??;
        Ok(roots)
    }

    /// The workspace for operations in this process, which start no programs.
    fn workspace(&self, roots: Vec<PathBuf>) -> Place {
        self.bare.clone().with_roots(roots)
    }

    /// The roots that the caller's key may reach, at least one.
    fn roots(&self, caller: &Identity) -> Result<Vec<PathBuf>, Failure> {
        if let Some(vm) = caller.key.vm {
            return Err(vm_key_limited(vm));
        }
        self.of_account(caller)
    }

    /// The roots of the caller's account, whatever its key may reach.
    fn of_account(&self, caller: &Identity) -> Result<Vec<PathBuf>, Failure> {
        if caller.account.roots.is_empty() {
            let message = "this account has no roots; a key with `server:admin` can set them";
            return Err(Failure::new(ErrorCode::PathOutsideRoots, message));
        }
        let roots: Vec<PathBuf> = caller.account.roots.iter().map(PathBuf::from).collect();
        self.workspaces.check_stored(&roots)?;
        Ok(roots)
    }
}
