//! The VM engine, as probed by the keeper.

use skep_api::swarm::EngineReport;
use skep_engine::{Error, acceleration::Acceleration, qemu::Qemu};

/// The engine that a report describes, without probing again.
pub(crate) fn from_report(report: &EngineReport) -> Result<Qemu, Error> {
    Qemu::find(&Acceleration { kvm: report.accel == "kvm", reason: report.reason.clone() })
}
