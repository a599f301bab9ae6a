//! The QEMU engine, with the distribution's QEMU and its `microvm` machine. Tested with versions 7.2 and 10.0.

mod clock;
mod driver;
mod launch;
mod monitor;
mod preload;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use skep_api::swarm::EngineReport;

use crate::{Engine, Error, acceleration::Acceleration};
use preload::Preload;

const PROGRAM: &str = "qemu-system-x86_64";
/// The name of the block node that the device of the private disk layer uses.
const LAYER_NODE: &str = "layer";

#[derive(Debug, Clone)]
pub struct Qemu {
    program: PathBuf,
    kvm: bool,
    /// `None` with KVM, or if it could not be measured.
    tsc_khz: Option<u64>,
    report: EngineReport,
    /// Only where VMMs are started.
    preload: Option<Arc<Preload>>,
}

impl Qemu {
    /// Finds the program and its version, to drive its VMMs. To launch some, [`Qemu::with_preload`] is needed too.
    ///
    /// # Errors
    /// It is missing, or does not run.
    pub fn find(acceleration: &Acceleration) -> Result<Self, Error> {
        let program = Path::new("/usr/bin").join(PROGRAM);
        let missing =
            |reason: String| Error::Missing { program: PROGRAM, reason, package: "qemu-system-x86" };
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(|error| missing(format!("{}: {error}", program.display())))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version =
            version_in(&text).ok_or_else(|| missing(format!("`--version` says `{}`", text.trim())))?;
        Ok(Self {
            program,
            kvm: acceleration.kvm,
            tsc_khz: if acceleration.kvm { None } else { clock::tsc_khz() },
            report: EngineReport {
                name: format!("qemu {version}"),
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
        let preload = Preload::load(&self.program)?;
        Ok(Self { preload: Some(Arc::new(preload)), ..self })
    }
}

impl Engine for Qemu {
    fn report(&self) -> &EngineReport {
        &self.report
    }

    fn tsc_khz(&self) -> Option<u64> {
        self.tsc_khz
    }
}

/// The version with the distribution's revision, for diagnosis.
fn version_in(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("QEMU emulator version ").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::version_in;
    use crate::upstream_version;

    #[test]
    fn the_version_contains_the_distributions_revision() {
        let output = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c)";
        assert_eq!(version_in(output), Some("7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"));
        assert_eq!(version_in("something else"), None);
    }

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
