//! The seccomp filters of processes without privileges. They deny system calls that these processes do not need with
//! `EPERM`.
//!
//! Denylists, not allowlists: the calls that a process needs differ between versions of its libraries, and a VMM has a filter
//! of its own.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, sock_filter,
};

/// Denied with any arguments.
const DENIED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Kernel keyrings, which are not separated by namespaces.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Kernel features with many past vulnerabilities.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    // Host administration.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // Can disable address randomization and make data executable, which only helps an attacker.
    libc::SYS_personality,
];

/// `ioctl` requests that need no privilege on an inherited tap and affect the host: the tap could be made persistent,
/// or get another VM's MAC address and receive its frames.
const DENIED_TAP_REQUESTS: &[libc::c_ulong] = &[
    libc::SIOCSIFHWADDR,
    libc::TUNSETIFF as libc::c_ulong,
    libc::TUNSETPERSIST as libc::c_ulong,
    libc::TUNSETOWNER as libc::c_ulong,
    libc::TUNSETGROUP as libc::c_ulong,
    libc::TUNSETLINK as libc::c_ulong,
    libc::TUNSETDEBUG as libc::c_ulong,
    libc::TUNSETTXFILTER as libc::c_ulong,
    libc::TUNATTACHFILTER as libc::c_ulong,
    libc::TUNDETACHFILTER as libc::c_ulong,
    libc::TUNSETQUEUE as libc::c_ulong,
    libc::TUNSETIFINDEX as libc::c_ulong,
    libc::TUNSETCARRIER as libc::c_ulong,
];

/// Flags of `clone` that create namespaces.
const NAMESPACE_FLAGS: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Start a process or execute a program, as `clone` does unless it starts a thread.
const STARTS_PROCESSES: &[i64] = &[libc::SYS_execve, libc::SYS_execveat, libc::SYS_fork, libc::SYS_vfork];

/// The process that a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilteredProcess {
    /// Gets its filter before it is executed.
    Vmm,
    /// Confines itself while it runs.
    Egress,
    /// Confines itself while it runs.
    Server,
}

impl FilteredProcess {
    /// The families of the sockets that it may create.
    fn socket_families(self) -> &'static [i32] {
        match self {
            Self::Vmm => &[libc::AF_UNIX],
            Self::Egress | Self::Server => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6],
        }
    }

    /// Whether it may start processes and execute programs. A VMM is executed with its filter, and its own sandbox denies both.
    fn may_start_processes(self) -> bool {
        self == Self::Vmm
    }

    /// Whether it may reserve blocks beyond the end of a file. The limit on the size of a VMM's files does not cover them.
    fn may_reserve_blocks(self) -> bool {
        self == Self::Server
    }
}

/// This bit marks system calls of the x32 ABI, which do the same as those without it.
const X32_BIT: u32 = 0x4000_0000;

/// Denies this thread, and the threads and programs that it starts from now on, the system calls that such a process does not
/// need.
///
/// # Errors
/// The kernel does not support seccomp filters.
pub fn deny_system_calls(process: FilteredProcess) -> io::Result<()> {
    apply_filter(&main_filter(process).map_err(io::Error::other)?).map_err(io::Error::other)?;
    apply_filter(&clone3_filter().map_err(io::Error::other)?).map_err(io::Error::other)
}

fn main_filter(process: FilteredProcess) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, vec![])).collect();
    let namespaces = NAMESPACE_FLAGS.iter().map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        rule(0, SeccompCmpOp::MaskedEq(flag), flag)
    });
    let mut denied_clones = namespaces.collect::<Result<Vec<_>, _>>()?;
    if !process.may_start_processes() {
        rules.extend(STARTS_PROCESSES.iter().map(|call| (*call, vec![])));
        let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
        denied_clones.push(rule(0, SeccompCmpOp::MaskedEq(thread), 0)?);
    }
    rules.insert(libc::SYS_clone, denied_clones);
    let of_a_tap = DENIED_TAP_REQUESTS.iter().map(|request| rule(1, SeccompCmpOp::Eq, *request));
    rules.insert(libc::SYS_ioctl, of_a_tap.collect::<Result<_, _>>()?);
    if !process.may_reserve_blocks() {
        rules.insert(libc::SYS_fallocate, vec![reserves_blocks()?]);
    }
    // Vsock and the kernel's crypto API ignore namespaces. Some other families, such as TIPC, support `socketpair` as
    // well.
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let other_family = process
            .socket_families()
            .iter()
            .map(|family| condition(0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned())));
        rules.insert(call, vec![SeccompRule::new(other_family.collect::<Result<_, _>>()?)?]);
    }
    let mut program = x32_prologue();
    program.extend(compile(rules, libc::EPERM)?);
    Ok(program)
}

/// The flags of `clone3` are in memory, which a filter cannot read. After `ENOSYS` libraries fall back to `clone`.
fn clone3_filter() -> Result<BpfProgram, seccompiler::BackendError> {
    compile(BTreeMap::from([(libc::SYS_clone3, vec![])]), libc::ENOSYS)
}

/// Matches what allocates blocks and keeps the size of a file. Punching holes also keeps the size, but allocates none.
fn reserves_blocks() -> Result<SeccompRule, seccompiler::BackendError> {
    let keeps = (libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE).cast_unsigned();
    let reserves = u64::from(libc::FALLOC_FL_KEEP_SIZE.cast_unsigned());
    rule(1, SeccompCmpOp::MaskedEq(u64::from(keeps)), reserves)
}

/// A condition on the lower half of one argument.
fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![condition(argument, operator, value)?])
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: i32,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let denied = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, denied, TargetArch::x86_64)?.try_into()
}

/// `ld nr; jge X32_BIT, deny`, to be prepended to a program, whose jumps are all relative.
fn x32_prologue() -> BpfProgram {
    let load_number = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let jump = sock_filter { code: 0x35, jt: 0, jf: 1, k: X32_BIT };
    let deny = sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::EPERM.cast_unsigned() };
    vec![load_number, jump, deny]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_compile_within_the_kernels_limit() {
        for process in [FilteredProcess::Vmm, FilteredProcess::Egress, FilteredProcess::Server] {
            let program = main_filter(process).unwrap();
            assert!(program.len() > DENIED.len() && program.len() < 4096, "{}", program.len());
        }
        assert!(clone3_filter().is_ok());
    }
}
