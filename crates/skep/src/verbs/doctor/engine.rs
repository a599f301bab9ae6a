//! Checks the VM engine and the templates.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use skep_api::swarm::Isolation;
use skep_image::TemplateBuilder;
use skep_template::shelf::OtherTemplate;

use super::{super::bake::template_builder, Finding, built_templates};
use crate::{settings::Settings, templates::keys_in_use};

/// The oldest QEMU that the tests run with.
const OLDEST_TESTED: (u32, u32) = (7, 2);
const TEMPLATE: &str = "template";
const BAKE: &str = "run `skep bake` (about a minute), or leave it to the next start";

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings = engine();
    match template_builder(settings, Arc::new(|_| {})) {
        Ok(template_builder) => {
            let base = template_builder.find();
            let dir = base.as_ref().ok().cloned().flatten();
            findings.push(template(&template_builder, base));
            findings
                .extend(other_templates(&template_builder, keys_in_use(&settings.data_dir).ok().as_ref()));
            findings.extend(built_templates::findings(settings, &template_builder, dir));
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

fn template(
    template_builder: &TemplateBuilder,
    found: Result<Option<PathBuf>, skep_image::Error>,
) -> Finding {
    match found {
        Ok(Some(dir)) => Finding::ok(TEMPLATE, format!("baked: {}", dir.display())),
        Ok(None) => Finding::warning(
            TEMPLATE,
            format!("not baked for this kernel and QEMU in {}", template_builder.image_dir.display()),
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
fn other_templates(template_builder: &TemplateBuilder, in_use: Option<&BTreeSet<String>>) -> Vec<Finding> {
    // If the directory cannot be read, the finding about the template reports it.
    let others = template_builder.other_templates().unwrap_or_default();
    others.into_iter().map(|other| other_template(other, in_use)).collect()
}

fn other_template(other: OtherTemplate, in_use: Option<&BTreeSet<String>>) -> Finding {
    const CHECK: &str = "old template";
    let dir = other.dir.display();
    let mb = other.disk_bytes >> 20;
    // The folder has the key as its name, also if its manifest cannot be read.
    let key = other.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if in_use.is_some_and(|keys| keys.contains(key)) {
        return Finding::ok(CHECK, format!("{dir}: VMs that were booted from it need it, {mb} MiB"));
    }
    let engine = other.manifest.and_then(|manifest| manifest.inputs.get("engine").cloned());
    let baked_for = engine.map_or("this version of skep cannot read its manifest".to_owned(), |engine| {
        format!("baked for other inputs ({engine})")
    });
    let way_out = match in_use {
        Some(_) => format!("rm -r {dir}, unless another server needs it"),
        None => "run `sudo skep doctor` to learn whether VMs need it".to_owned(),
    };
    Finding::warning(CHECK, format!("{dir}: {baked_for}, {mb} MiB"), way_out)
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

    #[test]
    fn an_old_template_that_vms_need_is_not_to_be_removed() {
        let other = || OtherTemplate { dir: "/images/base/0123".into(), disk_bytes: 5 << 20, manifest: None };
        let needed = BTreeSet::from(["0123".to_owned()]);
        let kept = other_template(other(), Some(&needed));
        assert!(kept.state == State::Ok && kept.way_out.is_none(), "{kept:?}");
        let unused = other_template(other(), Some(&BTreeSet::new()));
        assert!(unused.way_out.unwrap().starts_with("rm -r /images/base/0123"));
        // Not all VMs are known without root.
        assert!(!other_template(other(), None).way_out.unwrap().contains("rm"));
    }
}
