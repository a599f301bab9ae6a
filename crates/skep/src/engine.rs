//! The engine as the keeper measured it.

use skep_api::swarm::EngineReport;
use skep_engine::{Error, qemu::Qemu, select::Acceleration};

/// The engine that a report tells of, without measuring again.
pub(crate) fn of(report: &EngineReport) -> Result<Qemu, Error> {
    Qemu::find(&Acceleration { kvm: report.accel == "kvm", reason: report.reason.clone() })
}
