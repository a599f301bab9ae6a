//! The seccomp filter of jailed processes. Denies system calls that they do not need with `EPERM`.
//!
//! A denylist, not an allowlist: the calls that a VMM needs differ between versions and libraries, and the VMM has a
//! filter of its own.

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

/// The sockets that a process may create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sockets {
    Unix,
    UnixAndInternet,
}

impl Sockets {
    fn families(self) -> &'static [i32] {
        match self {
            Self::Unix => &[libc::AF_UNIX],
            Self::UnixAndInternet => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6],
        }
    }
}

/// This bit marks system calls of the x32 ABI, which do the same as those without it.
const X32_BIT: u32 = 0x4000_0000;

/// Denies this process, and the program that it executes, the system calls that jailed processes do not need.
///
/// # Errors
/// The kernel does not support seccomp filters.
pub fn deny_system_calls(sockets: Sockets) -> io::Result<()> {
    apply_filter(&main_filter(sockets).map_err(io::Error::other)?).map_err(io::Error::other)?;
    apply_filter(&clone3_filter().map_err(io::Error::other)?).map_err(io::Error::other)
}

fn main_filter(sockets: Sockets) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, vec![])).collect();
    let namespaces = NAMESPACE_FLAGS.iter().map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        rule(0, SeccompCmpOp::MaskedEq(flag), flag)
    });
    rules.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
    let of_a_tap = DENIED_TAP_REQUESTS.iter().map(|request| rule(1, SeccompCmpOp::Eq, *request));
    rules.insert(libc::SYS_ioctl, of_a_tap.collect::<Result<_, _>>()?);
    // Blocks beyond the file's size are not covered by the file size limit. Punching holes also keeps the size, but
    // allocates no blocks.
    let keeps = (libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE).cast_unsigned();
    let reserves = u64::from(libc::FALLOC_FL_KEEP_SIZE.cast_unsigned());
    rules.insert(libc::SYS_fallocate, vec![rule(1, SeccompCmpOp::MaskedEq(u64::from(keeps)), reserves)?]);
    // Vsock and the kernel's crypto API ignore namespaces. Some other families, such as TIPC, support `socketpair` as
    // well.
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let other_family = sockets
            .families()
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
        for sockets in [Sockets::Unix, Sockets::UnixAndInternet] {
            let program = main_filter(sockets).unwrap();
            assert!(program.len() > DENIED.len() && program.len() < 4096, "{}", program.len());
        }
        assert!(clone3_filter().is_ok());
    }
}
