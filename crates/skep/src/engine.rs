//! The VM engine, as probed by the keeper.

use skep_api::swarm::EngineReport;
use skep_engine::{Error, acceleration::Acceleration, qemu::Qemu};

/// The engine that a report describes. Acceleration is taken from the report and not measured again; the version of QEMU is read.
pub(crate) fn from_report(report: &EngineReport) -> Result<Qemu, Error> {
    Qemu::find(&Acceleration { kvm: report.accel == "kvm", reason: report.reason.clone() })
}
