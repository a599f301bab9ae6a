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
///
/// # Errors
/// `quota_exceeded`.
pub fn check_disk(limits: &Limits, used: u64, asked: u64) -> Result<(), Failure> {
    let max = limits.max_disk_mb.map_or(u64::MAX, |mb| mb.saturating_mul(1 << 20));
    if used.saturating_add(asked) <= max { Ok(()) } else { Err(disk_refusal(limits, used, asked)) }
}

/// Why so many bytes more do not fit beside those that are used.
pub fn disk_refusal(limits: &Limits, used: u64, asked: u64) -> Failure {
    let max_mb = limits.max_disk_mb.unwrap_or(u64::MAX);
    let request = match asked.div_ceil(1 << 20) {
        0 => String::new(),
        asked_mb => format!("about {asked_mb} MiB of disk space were asked for, and "),
    };
    let message = format!(
        "{request}{} MiB of this account's {max_mb} MiB (`max_disk_mb`) are used by the files of its workspace, its \
         templates, its VMs on disk and the disks of its other VMs; remove files, delete a template or end a VM first",
        used.div_ceil(1 << 20)
    );
    Failure::new(ErrorCode::QuotaExceeded, message)
}
