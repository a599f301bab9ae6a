//! Why capacity is refused, with the numbers.

use skep_api::{ErrorCode, Failure, keys::Limits};

use super::{Budget, MemorySample, RequestedCapacity, Usage};

impl Budget {
    pub(super) fn no_memory(
        &self,
        total: Usage,
        sample: &MemorySample,
        requested: &RequestedCapacity,
    ) -> Failure {
        let (vms, requested_mb) = (requested.vms, self.promise_mb(requested));
        Failure::new(
            ErrorCode::NoCapacity,
            format!(
                "{} MiB of memory are available on this machine, and {} MiB stay reserved{}; of the {} MiB for VMs, {} MiB \
                 are held and {} MiB promised, and {vms} VMs with {requested_mb} MiB were asked for; end some \
                 VMs or other programs, or ask for fewer",
                sample.available_mb(),
                sample.machine.reserved_bytes() >> 20,
                if sample.machine.under_pressure { " (all tasks stall for memory)" } else { "" },
                self.memory_mb,
                sample.held_mb(),
                total.memory_mb
            ),
        )
    }

    pub(super) fn no_capacity(&self, total: Usage, requested: &RequestedCapacity) -> Failure {
        let (vms, requested_mb) = (requested.vms, self.promise_mb(requested));
        Failure::new(
            ErrorCode::NoCapacity,
            format!(
                "this machine holds {} VMs, and its {} MiB for VMs may be promised up to {} MiB; {} VMs run, {} MiB are \
                 promised to them, and {vms} VMs with {requested_mb} MiB were asked for; end some VMs or \
                 ask for fewer",
                self.max_vms, self.memory_mb, self.promises_mb, total.vms, total.memory_mb
            ),
        )
    }
}

/// Quotas count the memory of guests, which callers choose, without the overhead of their VMMs.
pub(super) fn check_quota(limits: &Limits, own: Usage, requested: &RequestedCapacity) -> Result<(), Failure> {
    let vms = requested.vms;
    if let Some(max) = limits.max_vms
        && own.vms.saturating_add(vms) > max
    {
        let left = max.saturating_sub(own.vms);
        return Err(Failure::new(
            ErrorCode::QuotaExceeded,
            format!(
                "{vms} VMs were asked for, and {left} of this account's {max} are left; end some VMs first"
            ),
        ));
    }
    let requested_mb = requested.guests_mb();
    match limits.max_memory_mb {
        Some(max) if own.guests_mb + requested_mb > max => {
            let left = max.saturating_sub(own.guests_mb);
            Err(Failure::new(
                ErrorCode::QuotaExceeded,
                format!("{requested_mb} MiB were asked for, and {left} of this account's {max} MiB are left"),
            ))
        }
        _ => Ok(()),
    }
}
