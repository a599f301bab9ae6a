//! The QEMU engine, with the distribution's QEMU and its `microvm` machine. Tested with versions 7.2 and 10.0.

mod clock;
mod driver;
mod launch;
mod monitor;
mod preload;
mod program;

use std::{path::Path, sync::Arc};

use skep_api::swarm::EngineReport;

pub use driver::QemuDriver;

use crate::{Driver, Engine, Error, acceleration::Acceleration};
use preload::Preload;
use program::Program;

const PROGRAM: &str = "qemu-system-x86_64";
/// The name of the block node that the device of the private disk layer uses.
const LAYER_NODE: &str = "layer";

#[derive(Debug, Clone)]
pub struct Qemu {
    program: Arc<Program>,
    kvm: bool,
    /// `None` with KVM, or if it could not be measured.
    tsc_khz: Option<u64>,
    report: EngineReport,
    /// Only where VMMs are started.
    preload: Option<Arc<Preload>>,
}

impl Qemu {
    /// Finds the program and its version. To launch VMMs, [`Qemu::with_preload`] is needed too.
    ///
    /// # Errors
    /// It is missing, or does not run.
    pub fn find(acceleration: &Acceleration) -> Result<Self, Error> {
        let program = Program::find(Path::new("/usr/bin").join(PROGRAM))?;
        let name = format!("qemu {}", program.version());
        Ok(Self {
            program: Arc::new(program),
            kvm: acceleration.kvm,
            tsc_khz: if acceleration.kvm { None } else { clock::tsc_khz() },
            report: EngineReport {
                name,
                accel: acceleration.name().to_owned(),
                isolation: acceleration.isolation(),
                reason: acceleration.reason.clone(),
            },
            preload: None,
        })
    }

    /// Loads what restored VMMs need beside the program.
    ///
    /// # Errors
    /// The program does not accept a preloaded library.
    pub fn with_preload(self) -> Result<Self, Error> {
        let preload = Preload::load(self.program.path())?;
        Ok(Self { preload: Some(Arc::new(preload)), ..self })
    }
}

impl Engine for Qemu {
    fn driver(&self) -> &dyn Driver {
        &QemuDriver
    }

    fn report(&self) -> &EngineReport {
        &self.report
    }

    fn tsc_khz(&self) -> Option<u64> {
        self.tsc_khz
    }

    fn devices(&self) -> String {
        self.device_words()
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream_version;

    #[test]
    fn saved_states_depend_on_the_upstream_version_alone() {
        for (name, upstream) in [
            ("qemu 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b2)", "qemu 7.2.22"),
            ("qemu 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", "qemu 7.2.22"),
            ("qemu 10.0.2", "qemu 10.0.2"),
        ] {
            assert_eq!(upstream_version(name), upstream);
        }
    }
}
