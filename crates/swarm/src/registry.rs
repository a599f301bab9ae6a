//! The running VMs by id.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, ErrorCode, Failure, IdPrefix, TemplateId, VmId, VmName, VmRef, swarm::VmState};

use crate::{history::Owned, vm::VmHandle};

/// How many VMs the error for an ambiguous id prefix names.
const MAX_NAMED_CANDIDATES: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<VmId, VmHandle>>);

impl Registry {
    pub(crate) fn insert(&self, handle: VmHandle) {
        self.lock().insert(handle.facts.id, handle);
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
    pub(crate) fn owned(&self) -> Vec<Owned> {
        let owned = |handle: &VmHandle| {
            let facts = &handle.facts;
            Owned { vm: facts.id, account: facts.account, pid: handle.pid() }
        };
        self.lock().values().map(owned).collect()
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

/// The VM with this process id. A VM on disk is found by its last one, unless another VM has that by now.
fn find_pid<'vms>(own: impl Iterator<Item = &'vms VmHandle>, pid: u32) -> Option<&'vms VmHandle> {
    own.filter(|handle| handle.pid() == pid).min_by_key(|handle| handle.is_on_disk())
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
