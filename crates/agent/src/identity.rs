//! Gives a restored VM an identity that differs from all others of the same snapshot.

use std::net::Ipv4Addr;

use rustix::system::{sethostname, uname};
use skep_channel::{HandOutReport, Identity, IdentityReport, TimeAndSeed};

use crate::{
    clock, console, entropy,
    error::{Error, StepContext},
    files::{self, PriorUse},
    network, sockets,
};

/// Applies the identity and reads it back. Does nothing else, since a restored VM is not ready before this returns.
pub(crate) fn apply(identity: &Identity, prior_use: PriorUse) -> Result<IdentityReport, Error> {
    let HandOutReport { reseeded, clock_step_ms } = set_time_and_seed(&identity.moment)?;
    sethostname(identity.hostname.as_bytes()).context("set the host name")?;
    let old_address = match prior_use {
        PriorUse::None => None,
        PriorUse::Some => network::interface().ok().map(|interface| interface.ip),
    };
    network::configure(identity)?;
    if let Some(old) = old_address {
        destroy_connections(old, identity.ip);
    }
    files::write_hostname(&identity.hostname, prior_use)?;
    if let Some(gateway) = identity.gateway {
        files::write_name_server(gateway, prior_use)?;
    }
    files::write_machine_id(&identity.machine_id, prior_use)?;
    files::write_boot_id(&identity.boot_id, prior_use)?;
    if prior_use == PriorUse::Some {
        files::remove_ticket_files();
    }
    // Last: programs that watch this file find everything else in place.
    files::write_generation(&identity.vm)?;
    report(reseeded, clock_step_ms)
}

/// Ends the connections of the VM that this one is a copy of. The copy may have the address of an original that has ended:
/// programs that listen on it serve it on then. A kernel that refuses does not fail the copy: its programs then wait until
/// their own time limits.
fn destroy_connections(old: Ipv4Addr, new: Ipv4Addr) {
    let states = if old == new { sockets::ALL_BUT_LISTENERS } else { sockets::ALL_STATES };
    match sockets::destroy_tcp(old, states) {
        Ok(count) => console::log(&format!("ended {count} connections of {old}")),
        Err(error) => console::log(&format!("cannot end the connections of {old}: {error}")),
    }
}

/// Sets the clock and reseeds the random generator.
pub(crate) fn set_time_and_seed(moment: &TimeAndSeed) -> Result<HandOutReport, Error> {
    // First, since the transmitted time gets older.
    let clock_step_ms = clock::set(moment.unix_time_ns)?;
    entropy::reseed(&moment.seed)?;
    // Both ioctls have succeeded.
    Ok(HandOutReport { reseeded: true, clock_step_ms })
}

fn report(reseeded: bool, clock_step_ms: f64) -> Result<IdentityReport, Error> {
    let interface = network::interface()?;
    Ok(IdentityReport {
        vm: files::generation()?,
        hostname: uname().nodename().to_string_lossy().into_owned(),
        mac: interface.mac,
        ip: interface.ip,
        prefix_len: interface.prefix_len,
        machine_id: files::machine_id()?,
        boot_id: files::boot_id()?,
        reseeded,
        clock_step_ms,
    })
}
