//! The engine that VMs would run on, and the template that they would be restored from.

use std::sync::Arc;

use skep_api::swarm::Isolation;

use super::{super::bake::bakery, Finding};
use crate::settings::Settings;

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    vec![engine(), template(settings)]
}

fn engine() -> Finding {
    const CHECK: &str = "engine";
    match skep_engine::select() {
        Err(error) => Finding::missing(CHECK, error.to_string(), "apt-get install qemu-system-x86"),
        Ok(engine) => {
            let report = engine.report();
            let detail = |isolation| {
                format!("{}, {}, isolation {isolation}: {}", report.name, report.accel, report.reason)
            };
            match report.isolation {
                Isolation::Hardware => Finding::ok(CHECK, detail("hardware")),
                Isolation::Emulated => Finding::warning(
                    CHECK,
                    detail("emulated"),
                    "for hardware isolation and speed use a machine whose /dev/kvm runs guests natively",
                ),
            }
        }
    }
}

fn template(settings: &Settings) -> Finding {
    const CHECK: &str = "template";
    let image_dir = settings.image_dir();
    let found = bakery(settings, Arc::new(|_| {})).and_then(|bakery| Ok(bakery.find()?));
    match found {
        Ok(Some(dir)) => Finding::ok(CHECK, format!("baked: {}", dir.display())),
        Ok(None) => Finding::warning(
            CHECK,
            format!("not baked for this kernel and QEMU in {}", image_dir.display()),
            "run `skep bake` (about a minute), or leave it to the next start",
        ),
        Err(error) => {
            Finding::missing(CHECK, crate::output::one_line(&error), "see the lines above and below")
        }
    }
}
