//! `skep egress-process`: connects VMs to hosts outside, started by the keeper.

use std::{
    fs::File,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::{FileType, fstat};
use skep_egress::{Allowlist, Networks};
use skep_vm_egress::{Listeners, Rules, Settings};

use crate::settings::EgressLimits;

/// The descriptors that the keeper passes, in their order.
const CONTROL_FD: i32 = 3;
const PROXY_FD: i32 = 4;
const DNS_UDP_FD: i32 = 5;
const DNS_TCP_FD: i32 = 6;
const NAMES_FD: i32 = 7;

#[derive(Debug, Args)]
pub(crate) struct EgressProcess {
    /// Private network, address or host that may be reached; may be given several times.
    #[arg(long, value_name = "HOST|CIDR")]
    allow: Vec<String>,
    /// Network, address or host that may not be reached; may be given several times.
    #[arg(long, value_name = "HOST|CIDR")]
    deny: Vec<String>,
    /// Network that counts as public; may be given several times.
    #[arg(long, value_name = "CIDR")]
    public: Vec<String>,
    #[command(flatten)]
    limits: EgressLimits,
}

pub(crate) fn run(verb: EgressProcess) -> anyhow::Result<ExitCode> {
    let control = inherited(CONTROL_FD, FileType::Socket)?;
    let listeners = Listeners {
        proxy: inherited(PROXY_FD, FileType::Socket)?.into(),
        dns_udp: inherited(DNS_UDP_FD, FileType::Socket)?.into(),
        dns_tcp: inherited(DNS_TCP_FD, FileType::Socket)?.into(),
    };
    let names = File::from(inherited(NAMES_FD, FileType::RegularFile)?);
    let rules = Rules {
        allow: Allowlist::parse(&verb.allow),
        deny: Allowlist::parse(&verb.deny),
        public: Networks::parse(&verb.public),
    };
    let settings =
        Settings::read(rules, verb.limits.limits(), names).context("the egress process cannot start")?;
    skep_vm_egress::confine().context("the egress process cannot be confined")?;
    // The runtime starts after the confinement, which does not apply to existing threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the asynchronous runtime could not start")?;
    runtime.block_on(skep_vm_egress::serve(control, listeners, settings))?;
    Ok(ExitCode::SUCCESS)
}

/// Takes over an inherited descriptor.
fn inherited(number: i32, kind: FileType) -> anyhow::Result<OwnedFd> {
    // SAFETY: this process has closed no descriptor yet, so one with this number was inherited, or is not open, which
    // the call below reports.
    let found = unsafe { BorrowedFd::borrow_raw(number) };
    if !fstat(found).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind) {
        bail!("this verb is for `skep serve`, which starts it with its sockets");
    }
    // SAFETY: the check above has shown that it is open, and no other object in this process owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)?;
    Ok(owned)
}
