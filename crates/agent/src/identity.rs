//! Another machine than all that come from the same snapshot.

use rustix::system::{sethostname, uname};
use skep_channel::{HandOutReport, Identity, IdentityReport, Moment};

use crate::{
    clock, entropy,
    error::{Doing, Error},
    files::{self, Past},
    network,
};

/// Becomes this machine, and reads back what it is now. Touches nothing else: all of it stands between the restore
/// and a VM that is ready.
pub(crate) fn take(identity: &Identity, past: Past) -> Result<IdentityReport, Error> {
    let HandOutReport { reseeded, clock_step_ms } = live_at(&identity.moment)?;
    sethostname(identity.hostname.as_bytes()).doing("set the host name")?;
    network::configure(identity)?;
    files::write_hostname(&identity.hostname, past)?;
    files::write_machine_id(&identity.machine_id, past)?;
    files::write_boot_id(&identity.boot_id, past)?;
    // Last: who sees it change finds all else in place.
    files::write_generation(&identity.vm)?;
    report(reseeded, clock_step_ms)
}

/// Takes the time and the randomness of this moment.
pub(crate) fn live_at(moment: &Moment) -> Result<HandOutReport, Error> {
    // First, for the time that was sent grows old.
    let clock_step_ms = clock::set(moment.unix_time_ns)?;
    entropy::reseed(&moment.seed)?;
    // The kernel refused neither the seed nor the new key, or this would not be reached.
    Ok(HandOutReport { reseeded: true, clock_step_ms })
}

fn report(reseeded: bool, clock_step_ms: f64) -> Result<IdentityReport, Error> {
    let card = network::card()?;
    Ok(IdentityReport {
        vm: files::generation()?,
        hostname: uname().nodename().to_string_lossy().into_owned(),
        mac: card.mac,
        ip: card.ip,
        prefix_len: card.prefix_len,
        machine_id: files::machine_id()?,
        boot_id: files::boot_id()?,
        reseeded,
        clock_step_ms,
    })
}
