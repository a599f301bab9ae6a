//! Why disk space is refused, with the numbers.

use skep_api::{
    ErrorCode, Failure,
    keys::{DEFAULT_MAX_PAUSED_VMS, Limits},
};

/// Checks that one more VM may be paused to disk beside those that are.
pub(super) fn check_pauses(limits: &Limits, on_disk: u32) -> Result<(), Failure> {
    let max = limits.max_paused_vms.unwrap_or(DEFAULT_MAX_PAUSED_VMS);
    if on_disk < max {
        return Ok(());
    }
    let message = format!(
        "this account may have {max} VMs on disk (`max_paused_vms`), and has {on_disk}; resume or end one of them first, or \
         pause this one to memory"
    );
    Err(Failure::new(ErrorCode::QuotaExceeded, message))
}

/// Checks that so many bytes more fit beside those that are used.
pub(super) fn check_disk(limits: &Limits, used: u64, asked: u64) -> Result<(), Failure> {
    let Some(max_mb) = limits.max_disk_mb else { return Ok(()) };
    if used.saturating_add(asked) <= max_mb.saturating_mul(1 << 20) {
        return Ok(());
    }
    let message = format!(
        "about {} MiB of disk space were asked for, and {} MiB of this account's {max_mb} MiB (`max_disk_mb`) are used by \
         its templates, its VMs on disk and the disks of its other VMs; delete a template or end a VM first",
        asked.div_ceil(1 << 20),
        used.div_ceil(1 << 20)
    );
    Err(Failure::new(ErrorCode::QuotaExceeded, message))
}
