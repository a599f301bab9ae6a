//! The VMs that live, by id.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, Failure, VmId, VmRef, swarm::VmState};

use crate::vm::VmHandle;

/// The VMs that live.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<VmId, VmHandle>>);

impl Registry {
    pub(crate) fn insert(&self, handle: VmHandle) {
        self.lock().insert(handle.facts.id, handle);
    }

    pub(crate) fn remove(&self, id: VmId) {
        self.lock().remove(&id);
    }

    /// A VM of this account. Another account's is answered as one that does not exist.
    pub(crate) fn find(&self, account: AccountId, vm: VmRef) -> Result<VmHandle, Failure> {
        let vms = self.lock();
        let found = match vm {
            VmRef::Id(id) => vms.get(&id),
            VmRef::Pid(pid) => vms.values().find(|handle| handle.facts.pid == pid),
        };
        found.filter(|handle| handle.facts.account == account).cloned().ok_or_else(|| Failure::unknown_vm(vm))
    }

    /// The account's VMs, oldest first: ids are ordered by time.
    pub(crate) fn of(&self, account: AccountId) -> Vec<VmHandle> {
        self.lock().values().filter(|handle| handle.facts.account == account).cloned().collect()
    }

    /// The state of each VM, whosever it is.
    pub(crate) fn states(&self) -> Vec<VmState> {
        self.lock().values().map(VmHandle::state).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VmId, VmHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
