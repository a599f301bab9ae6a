//! Checks the VM engine and the templates.

use std::{path::PathBuf, sync::Arc};

use skep_api::swarm::Isolation;
use skep_image::Bakery;
use skep_template::shelf::OtherTemplate;

use super::{super::bake::bakery, Finding, built_templates};
use crate::settings::Settings;

/// The oldest QEMU that the tests run with.
const OLDEST_TESTED: (u32, u32) = (7, 2);
const TEMPLATE: &str = "template";
const BAKE: &str = "run `skep bake` (about a minute), or leave it to the next start";

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings = engine();
    match bakery(settings, Arc::new(|_| {})) {
        Ok(bakery) => {
            let base = bakery.find();
            let dir = base.as_ref().ok().cloned().flatten();
            findings.push(template(&bakery, base));
            findings.extend(other_templates(&bakery));
            findings.extend(built_templates::findings(settings, &bakery, dir));
        }
        Err(error) => findings.push(template_error(&error)),
    }
    findings
}

fn engine() -> Vec<Finding> {
    const CHECK: &str = "engine";
    match skep_engine::select() {
        Err(error) => vec![Finding::missing(CHECK, error.to_string(), "apt-get install qemu-system-x86")],
        Ok(engine) => {
            let report = engine.report();
            let program = version(&report.name);
            let detail = |isolation| {
                format!("{}, {}, isolation {isolation}: {}", report.name, report.accel, report.reason)
            };
            let accelerated = match report.isolation {
                Isolation::Hardware => Finding::ok(CHECK, detail("hardware")),
                Isolation::Emulated => Finding::warning(
                    CHECK,
                    detail("emulated"),
                    "for hardware isolation and speed use a machine whose /dev/kvm runs guests natively",
                ),
            };
            vec![program, accelerated]
        }
    }
}

/// Checks the version in an engine name such as `qemu 7.2.22`.
fn version(name: &str) -> Finding {
    const CHECK: &str = "qemu";
    let found = name.split_once(' ').and_then(|(_, version)| {
        let mut numbers = version.split('.');
        Some((numbers.next()?.parse::<u32>().ok()?, numbers.next()?.parse::<u32>().ok()?))
    });
    let (major, minor) = OLDEST_TESTED;
    let way_out = format!("use {major}.{minor} or newer, which Debian 12 has");
    match found {
        None => Finding::warning(CHECK, format!("`{name}` has a version that skep cannot parse"), way_out),
        Some(version) if version < OLDEST_TESTED => {
            Finding::warning(CHECK, format!("{name} is older than all tested versions"), way_out)
        }
        Some(_) => Finding::ok(CHECK, name),
    }
}

fn template(bakery: &Bakery, found: Result<Option<PathBuf>, skep_image::Error>) -> Finding {
    match found {
        Ok(Some(dir)) => Finding::ok(TEMPLATE, format!("baked: {}", dir.display())),
        Ok(None) => Finding::warning(
            TEMPLATE,
            format!("not baked for this kernel and QEMU in {}", bakery.image_dir.display()),
            BAKE,
        ),
        Err(skep_image::Error::Template(
            error @ (skep_template::Error::Damaged { .. } | skep_template::Error::Outdated { .. }),
        )) => Finding::warning(TEMPLATE, error.to_string(), BAKE),
        Err(error) => template_error(&error.into()),
    }
}

fn template_error(error: &anyhow::Error) -> Finding {
    Finding::missing(TEMPLATE, crate::output::one_line(error), "see the lines above and below")
}

/// Templates baked for other inputs. They are only reported, because another server may share the directory.
fn other_templates(bakery: &Bakery) -> Vec<Finding> {
    // If the directory cannot be read, the finding about the template reports it.
    let others = bakery.other_templates().unwrap_or_default();
    let finding = |other: OtherTemplate| {
        let dir = other.dir.display();
        let engine = other.manifest.and_then(|manifest| manifest.inputs.get("engine").cloned());
        let baked_for = engine.map_or("this version of skep cannot read its manifest".to_owned(), |engine| {
            format!("baked for other inputs ({engine})")
        });
        let detail = format!("{dir}: {baked_for}, {} MiB", other.disk_bytes >> 20);
        Finding::warning("old template", detail, format!("rm -r {dir}, unless another server needs it"))
    };
    others.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn an_old_qemu_is_a_warning() {
        for (name, state) in [
            ("qemu 7.2.22", State::Ok),
            ("qemu 10.0.2", State::Ok),
            ("qemu 6.2.0", State::Warning),
            ("qemu", State::Warning),
        ] {
            assert_eq!(version(name).state, state, "{name}");
        }
    }
}
