//! The running VMs by id.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, ErrorCode, Failure, IdPrefix, TemplateId, VmId, VmName, VmRef, swarm::VmState};

use crate::{history::SampledVm, vm::VmHandle};

/// How many VMs the error for an ambiguous id prefix names.
const MAX_NAMED_CANDIDATES: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<VmId, VmHandle>>);

impl Registry {
    pub(crate) fn insert(&self, handle: VmHandle) {
        self.take_pid(&handle);
        self.lock().insert(handle.facts.id, handle);
    }

    /// Removes the process id of this VM from the former ids of the account's other VMs, so that it leads to none of them,
    /// not even after this VM has ended.
    pub(crate) fn take_pid(&self, vm: &VmHandle) {
        let facts = &vm.facts;
        let is_other = |other: &&VmHandle| other.facts.account == facts.account && other.facts.id != facts.id;
        if !vm.is_on_disk() {
            self.lock().values().filter(is_other).for_each(|other| other.forget_pid(vm.pid()));
        }
    }

    pub(crate) fn remove(&self, id: VmId) {
        self.lock().remove(&id);
    }

    /// Finds a VM of this account. VMs of other accounts are unknown.
    ///
    /// # Errors
    /// `unknown_vm`; `invalid_value` for an ambiguous id prefix.
    pub(crate) fn find(&self, account: AccountId, vm: VmRef) -> Result<VmHandle, Failure> {
        let vms = self.lock();
        let mut own = vms.values().filter(|handle| handle.facts.account == account);
        let found = match &vm {
            VmRef::Id(id) => own.find(|handle| handle.facts.id == *id),
            VmRef::Pid(pid) => find_pid(own, *pid),
            VmRef::Name(name) => own.find(|handle| handle.is_named(name)),
            VmRef::Address(address) => {
                let address = address.to_string();
                own.find(|handle| handle.facts.ip == address)
            }
            VmRef::IdPrefix(beginning) => unique_match(own, beginning, &vm)?,
        };
        found.cloned().ok_or_else(|| Failure::unknown_vm(vm))
    }

    /// Finds a VM of this account by id.
    ///
    /// # Errors
    /// `unknown_vm`.
    pub(crate) fn by_id(&self, account: AccountId, vm: VmId) -> Result<VmHandle, Failure> {
        let found = self.lock().get(&vm).filter(|handle| handle.facts.account == account).cloned();
        found.ok_or_else(|| Failure::unknown_vm(vm))
    }

    /// Refuses a name that another VM of this account has. The store refuses it as well, but only after the boot.
    ///
    /// # Errors
    /// `name_taken`.
    pub(crate) fn require_free(&self, account: AccountId, name: &VmName) -> Result<(), Failure> {
        let holder = self.find(account, VmRef::Name(name.clone()));
        let taken =
            |holder: VmHandle| skep_store::Error::VmNameTaken { name: name.clone(), vm: holder.facts.id };
        holder.map_or(Ok(()), |holder| Err(taken(holder).into()))
    }

    /// The account's VMs, oldest first, because ids are ordered by time.
    pub(crate) fn of(&self, account: AccountId) -> Vec<VmHandle> {
        self.lock().values().filter(|handle| handle.facts.account == account).cloned().collect()
    }

    /// The VMs of all accounts.
    pub(crate) fn all(&self) -> Vec<VmHandle> {
        self.lock().values().cloned().collect()
    }

    /// The VMs of all accounts with their owners.
    pub(crate) fn sampled_vms(&self) -> Vec<SampledVm> {
        let sampled = |handle: &VmHandle| {
            let facts = &handle.facts;
            SampledVm { vm: facts.id, account: facts.account, pid: handle.pid() }
        };
        self.lock().values().map(sampled).collect()
    }

    /// The snapshots of VMs that are on disk or about to be.
    pub(crate) fn snapshots(&self) -> Vec<TemplateId> {
        self.lock().values().filter_map(VmHandle::snapshot).collect()
    }

    /// The states of the VMs of all accounts.
    pub(crate) fn states(&self) -> Vec<VmState> {
        self.lock().values().map(VmHandle::state).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VmId, VmHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The VM with this process id, or else the one that had it before.
fn find_pid<'vms>(mut own: impl Iterator<Item = &'vms VmHandle> + Clone, pid: u32) -> Option<&'vms VmHandle> {
    own.clone().find(|handle| handle.has_pid(pid)).or_else(|| own.find(|handle| handle.had_pid(pid)))
}

/// The VM whose id has this prefix, if there is one.
///
/// # Errors
/// `invalid_value` if there are several.
fn unique_match<'vms>(
    own: impl Iterator<Item = &'vms VmHandle>,
    beginning: &IdPrefix,
    given: &VmRef,
) -> Result<Option<&'vms VmHandle>, Failure> {
    let fitting: Vec<&VmHandle> = own.filter(|handle| beginning.matches(handle.facts.id)).collect();
    if let [] | [_] = fitting.as_slice() {
        return Ok(fitting.first().copied());
    }
    let named: Vec<String> =
        fitting.iter().take(MAX_NAMED_CANDIDATES).map(|handle| handle.facts.id.to_string()).collect();
    let more = match fitting.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "the ids of {} VMs begin with `{given}`: {}{more}; give more characters of the id",
        fitting.len(),
        named.join(", ")
    );
    Err(Failure::new(ErrorCode::InvalidValue, message))
}
