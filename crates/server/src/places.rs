//! Where an operation is done: in the workspace of the caller's account, or in one of its VMs. The routes do not care.

use std::{collections::BTreeMap, path::PathBuf};

use skep_api::{ErrorCode, Failure, Operation, Scope, VmRef, exec::VmField};
use skep_workspace::{Content, Place, Run, RunStreamed, no_content};

use crate::{
    auth::Identity,
    confine::fence,
    error::Refusal,
    extract::{check_scope, vm_of},
    trail::Trail,
    vms::Vms,
    workspaces::Workspaces,
};

/// The places that callers have.
#[derive(Clone)]
pub(crate) struct Places {
    vms: Vms,
    workspaces: Workspaces,
}

/// One of them.
pub(crate) enum Chosen {
    /// The workspace of the account.
    Workspace,
    /// A VM.
    Vm(VmRef),
}

impl Chosen {
    /// Out of a query.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn by_query(vm: Option<&str>) -> Result<Self, Failure> {
        Ok(vm.map(vm_of).transpose()?.map_or(Self::Workspace, Self::Vm))
    }

    /// Out of a body.
    ///
    /// # Errors
    /// Those of [`Self::by_query`].
    pub(crate) fn by_field(vm: Option<&VmField>) -> Result<Self, Failure> {
        Self::by_query(vm.map(VmField::as_text).as_deref())
    }
}

impl Places {
    pub(crate) fn new(vms: Vms, workspaces: Workspaces) -> Self {
        Self { vms, workspaces }
    }

    /// Does an operation where the caller wants it done.
    ///
    /// # Errors
    /// What the operation refuses; `scope_missing` for a VM without `swarm:exec`; `unknown_vm`; `path_outside_roots` for
    /// the workspace and a key that is bound to a VM.
    pub(crate) async fn run<O: Operation + Run>(
        &self,
        caller: &Identity,
        chosen: Chosen,
        operation: O,
    ) -> Result<O::Answer, Refusal> {
        match chosen {
            Chosen::Vm(vm) => {
                check_scope(caller, Scope::SwarmExec)?;
                let swarm = self.vms.reached_by(caller, vm).await?;
                Ok(swarm.call(&caller.account.id, vm, &operation).await?)
            }
            Chosen::Workspace => {
                let place = self.workspace(caller)?;
                Ok(operation.run(&place).await.map_err(Failure::from)?)
            }
        }
    }

    /// Does an operation with bytes behind its request, where there are any, or behind its answer.
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
                check_scope(caller, Scope::SwarmExec)?;
                let swarm = self.vms.reached_by(caller, vm).await?;
                Ok(swarm.call_streamed(&caller.account.id, vm, &operation, content).await?)
            }
            Chosen::Workspace => {
                let place = self.workspace(caller)?;
                let content = content.unwrap_or_else(no_content);
                Ok(operation.run_streamed(content, &place).await.map_err(Failure::from)?)
            }
        }
    }

    /// Notes what a write acts on: the VM, where it is one.
    pub(crate) fn note(chosen: &Chosen, trail: &Trail) {
        if let Chosen::Vm(vm) = chosen {
            trail.acts_on(vm);
        }
    }

    /// The workspace of an account. No command runs in it.
    fn workspace(&self, caller: &Identity) -> Result<Place, Failure> {
        if let Some(vm) = caller.key.vm {
            let message =
                format!("this key is bound to {vm} and reaches no other place; name that VM by `vm`");
            return Err(Failure::new(ErrorCode::PathOutsideRoots, message));
        }
        let roots: Vec<PathBuf> = caller.account.roots.iter().map(PathBuf::from).collect();
        let Some(first) = roots.first().cloned() else {
            let message = "this account has no roots; whoever has `server:admin` gives it some";
            return Err(Failure::new(ErrorCode::PathOutsideRoots, message));
        };
        let place = Place::new(first.clone(), first, BTreeMap::new(), PathBuf::new());
        Ok(place.with_roots(roots).making_roots_in(self.workspaces.dir()).with_fence(fence))
    }
}
