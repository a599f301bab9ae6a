//! Drops privileges: sets user and groups, and removes all capabilities.

use std::io;

use rustix::{
    process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior},
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        set_capabilities, set_capabilities_secure_bits, set_no_new_privs, set_thread_groups,
        set_thread_res_gid, set_thread_res_uid,
    },
};

use super::{StageError, Step};
use crate::ProcessSpec;

/// Becomes the specified user and drops all capabilities permanently. The system calls affect the calling thread only;
/// a stage has no other.
pub(super) fn drop_all(order: &ProcessSpec) -> Result<(), StageError> {
    clear_bounding_set().step("bounding set")?;
    set_capabilities_secure_bits(secure_bits()).step("secure bits")?;
    clear_ambient_capability_set().step("ambient set")?;

    let groups: Vec<Gid> = order.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(order.uid), Gid::from_raw(order.gid));
    set_thread_groups(&groups).step("groups")?;
    set_thread_res_gid(gid, gid, gid).step("group id")?;
    set_thread_res_uid(uid, uid, uid).step("user id")?;

    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .step("capabilities")?;
    set_no_new_privs(true).step("no new privileges")
}

/// Drops all capabilities of a process that has no root, and keeps its user and groups.
pub(super) fn keep_user(order: &ProcessSpec) -> Result<(), StageError> {
    let uid = geteuid().as_raw();
    // Uid 0 would get all capabilities back at `execve`.
    if uid == 0 || uid != order.uid {
        return Err(StageError(format!("uid {uid} cannot start a process as uid {}", order.uid)));
    }
    // Other processes of the same user must not take the descriptors of this one.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("no access for other processes")?;
    clear_ambient_capability_set().step("ambient set")?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .step("capabilities")?;
    set_no_new_privs(true).step("no new privileges")
}

/// Uid 0 gets no capabilities at `execve`, and none of these bits can be reset.
fn secure_bits() -> CapabilitiesSecureBits {
    CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
}

/// By number up to the last one that the kernel knows, so that capabilities newer than this program are dropped too.
fn clear_bounding_set() -> io::Result<()> {
    for capability in 0..64_u64 {
        // SAFETY: this request takes a number and accesses no memory.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } == 0 {
            continue;
        }
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
    }
    Ok(())
}
