//! The inputs of a template. A change of any of them changes the key of the template and so requires a bake.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use sha2::{Digest, Sha256};
use skep_api::{swarm::EngineReport, templates::GuestSize};
use skep_engine::{Engine, upstream_version};
use skep_template::{FORMAT, hex, read_manifest, shelf::CACHE};

use crate::{
    Error, kernel,
    root::{PACKAGES, PACKAGES_RECIPE},
    tsc::{self, TSC_KHZ},
};

/// Version of the bake itself: devices, command line and warm-up. Must change whenever these do.
const BAKE_RECIPE: &str = "8";
/// Name of the input that is the key of the parent.
const PARENT: &str = "parent";
/// Name of the input that is a hash of the devices.
pub(crate) const DEVICES: &str = "devices";
/// Hex digits of the key: 64 bits of the hash distinguish bakes and are short enough to read.
const KEY_DIGITS: usize = 16;

/// The inputs of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub(crate) named: BTreeMap<String, String>,
    /// The rate of the host's time stamp counter, where guests are emulated. Not in the key.
    pub(crate) tsc_khz: Option<u64>,
    pub(crate) kernel: String,
    pub(crate) size: GuestSize,
}

impl Inputs {
    /// Determines the current engine, kernel and agent.
    ///
    /// # Errors
    /// No kernel is known, or the processor cannot be read.
    pub fn gather(
        image_dir: &Path,
        engine: &dyn Engine,
        agent: &[u8],
        size: GuestSize,
    ) -> Result<Self, Error> {
        let kernel = kernel::version(&image_dir.join(CACHE))?;
        let mut inputs = Self::new(kernel, engine.report(), agent, size)?;
        inputs.named.insert(DEVICES.to_owned(), hash_of_devices(engine));
        Ok(Self { tsc_khz: engine.tsc_khz(), ..inputs })
    }

    fn new(kernel: String, engine: &EngineReport, agent: &[u8], size: GuestSize) -> Result<Self, Error> {
        let named = [
            ("kernel", kernel.clone()),
            ("agent", hex(&Sha256::digest(agent))),
            ("packages", format!("{PACKAGES_RECIPE} {}", PACKAGES.join(" "))),
            ("bake", BAKE_RECIPE.to_owned()),
            ("memory_mb", size.memory_mb.to_string()),
            ("vcpus", size.vcpus.to_string()),
            ("layer_mb", size.disk_mb.to_string()),
            // So that releases with another format can share an image directory.
            ("format", FORMAT.to_string()),
        ];
        let mut named: BTreeMap<String, String> = named.map(|(name, value)| (name.to_owned(), value)).into();
        named.extend(of_machine(engine)?);
        Ok(Self { named, tsc_khz: None, kernel, size })
    }

    /// Adds the template whose disk this one begins with.
    pub(crate) fn with_parent(mut self, parent_key: &str) -> Self {
        self.named.insert(PARENT.to_owned(), parent_key.to_owned());
        self
    }

    /// All inputs, as a manifest names them.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        let rate = self.tsc_khz.map(|khz| (TSC_KHZ.to_owned(), khz.to_string()));
        self.named.clone().into_iter().chain(rate).collect()
    }

    /// Checks that a template with the key of these inputs is not for a machine with another clock.
    ///
    /// # Errors
    /// [`skep_template::Error::Outdated`], or the manifest cannot be read.
    pub(crate) fn check_clock(&self, dir: &Path) -> Result<(), skep_template::Error> {
        match tsc::difference(&read_manifest(dir)?.inputs, self.tsc_khz) {
            None => Ok(()),
            Some(difference) => Err(skep_template::Error::Outdated {
                dir: dir.to_owned(),
                reason: format!("it was baked {difference}"),
            }),
        }
    }

    /// Describes the differences from the inputs of a template, as the end of a sentence about it; `None` if there are
    /// none.
    pub fn difference_from(&self, baked: &BTreeMap<String, String>) -> Option<String> {
        difference(&self.named, self.tsc_khz, baked)
    }

    /// Hash of all inputs.
    pub fn key(&self) -> String {
        let mut hasher = Sha256::new();
        for (name, value) in &self.named {
            hasher.update(format!("{name}={}:{value}\n", value.len()));
        }
        hex(&hasher.finalize())[..KEY_DIGITS].to_owned()
    }
}

/// The inputs of this machine: its engine, and what that shows guests of the processor.
pub(crate) fn of_machine(engine: &EngineReport) -> Result<BTreeMap<String, String>, Error> {
    let mut named = BTreeMap::from([
        ("engine".to_owned(), upstream_version(&engine.name).to_owned()),
        ("acceleration".to_owned(), engine.accel.clone()),
    ]);
    // With KVM the guest sees the host's processor, and a saved state can only be restored on the same model.
    if engine.accel == "kvm" {
        let path = "/proc/cpuinfo";
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        named.insert("processor".to_owned(), parse_processor(&text));
    }
    Ok(named)
}

/// The input [`DEVICES`].
pub(crate) fn hash_of_devices(engine: &dyn Engine) -> String {
    hex(&Sha256::digest(engine.devices()))[..KEY_DIGITS].to_owned()
}

/// See [`Inputs::difference_from`].
pub(crate) fn difference(
    current: &BTreeMap<String, String>,
    tsc_khz: Option<u64>,
    baked: &BTreeMap<String, String>,
) -> Option<String> {
    let names: BTreeSet<&String> = current.keys().chain(baked.keys()).collect();
    let changes: Vec<String> = names
        .into_iter()
        .filter(|name| *name != TSC_KHZ && current.get(*name) != baked.get(*name))
        .map(|name| {
            let value = |of: &BTreeMap<String, String>| of.get(name).cloned().unwrap_or("none".to_owned());
            describe_change(name, &value(baked), &value(current))
        })
        .chain(tsc::difference(baked, tsc_khz))
        .collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

fn describe_change(name: &str, was: &str, is: &str) -> String {
    match name {
        // The value contains the name of the engine.
        "engine" => format!("for {was}, this machine has {is}"),
        "kernel" | "processor" | "acceleration" => format!("for {name} {was}, this machine has {is}"),
        // These values are hashes and not useful to readers.
        "agent" => "with another guest agent".to_owned(),
        DEVICES => "with other devices than those of this skep".to_owned(),
        PARENT => "from an earlier state of its parent".to_owned(),
        _ => format!("with {name} {was}, this skep has {is}"),
    }
}

/// The model of the first processor, with a hash of its features that a guest can see.
fn parse_processor(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or_default();
    let fields: BTreeMap<&str, &str> = first
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let of = |name: &str| fields.get(name).copied().unwrap_or_default();
    let seen = ["vendor_id", "cpu family", "model", "model name", "stepping", "flags"].map(of).join("\n");
    format!("{} ({})", of("model name"), &hex(&Sha256::digest(seen))[..KEY_DIGITS])
}

#[cfg(test)]
mod tests {
    use skep_api::swarm::Isolation;
    use skep_template::{MANIFEST, Manifest};

    use super::*;

    const SMALL: GuestSize = GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 };

    fn inputs(pairs: &[(&str, &str)]) -> Inputs {
        let named = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Inputs { named, tsc_khz: None, kernel: String::new(), size: SMALL }
    }

    #[test]
    fn what_changed_is_named_with_both_values() {
        let baked = inputs(&[("engine", "qemu 7.2"), ("kernel", "6.1.1"), ("agent", "aa"), ("vcpus", "1")]);
        let now = inputs(&[("engine", "qemu 10.0"), ("kernel", "6.1.1"), ("agent", "bb"), ("vcpus", "1")]);
        assert_eq!(
            now.difference_from(&baked.named).unwrap(),
            "with another guest agent, for qemu 7.2, this machine has qemu 10.0"
        );
        assert_eq!(now.difference_from(&now.named), None);
    }

    #[test]
    fn an_input_that_is_new_or_gone_is_a_change() {
        let baked = inputs(&[("vcpus", "1")]);
        let now = inputs(&[("processor", "Model 5")]);
        assert_eq!(
            now.difference_from(&baked.named).unwrap(),
            "for processor none, this machine has Model 5, with vcpus 1, this skep has none"
        );
    }

    #[test]
    fn a_revision_of_the_distribution_changes_no_key_and_another_version_does() {
        let inputs = |name: &str| {
            let (name, accel) = (name.to_owned(), "tcg".to_owned());
            let engine = EngineReport { name, accel, isolation: Isolation::Emulated, reason: String::new() };
            Inputs::new("6.1".to_owned(), &engine, b"agent", SMALL).unwrap()
        };
        let baked = inputs("qemu 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b2)");
        assert_eq!(baked, inputs("qemu 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"));
        let newer = inputs("qemu 7.2.23 (Debian 1:7.2+dfsg-7+deb12u19)");
        assert_ne!(baked.key(), newer.key());
        assert_eq!(
            newer.difference_from(&baked.all()).unwrap(),
            "for qemu 7.2.22, this machine has qemu 7.2.23"
        );
    }

    #[test]
    fn another_clock_is_a_difference_with_the_same_key() {
        let at = |tsc_khz| Inputs { tsc_khz, ..inputs(&[("vcpus", "1")]) };
        let baked = at(Some(2_600_000));
        assert_eq!(baked.all()[TSC_KHZ], "2600000");
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest {
            format: FORMAT,
            origin: None,
            key: baked.key(),
            vcpus: 1,
            memory_mb: 1,
            protocol: None,
            inputs: baked.all(),
            sha256: BTreeMap::new(),
        };
        std::fs::write(dir.path().join(MANIFEST), manifest.to_file().unwrap()).unwrap();
        for near in [None, Some(2_600_100)] {
            assert_eq!(at(near).difference_from(&baked.all()), None);
            at(near).check_clock(dir.path()).unwrap();
        }
        let other = at(Some(2_100_000));
        assert_eq!(other.key(), baked.key());
        let words = "for a time stamp counter of 2600000 kHz, this machine has 2100000 kHz";
        assert_eq!(other.difference_from(&baked.all()).unwrap(), words);
        let outdated = other.check_clock(dir.path()).unwrap_err();
        assert!(matches!(outdated, skep_template::Error::Outdated { .. }), "{outdated}");
        assert!(outdated.to_string().contains(words), "{outdated}");
    }

    #[test]
    fn each_part_of_the_size_is_in_the_key_and_named() {
        let engine = EngineReport {
            name: "qemu".to_owned(),
            accel: "tcg".to_owned(),
            isolation: Isolation::Emulated,
            reason: String::new(),
        };
        let inputs = |size| Inputs::new("6.1".to_owned(), &engine, b"agent", size).unwrap();
        let small = inputs(SMALL);
        for (size, named) in [
            (GuestSize { memory_mb: 1024, ..SMALL }, "with memory_mb 128, this skep has 1024"),
            (GuestSize { vcpus: 2, ..SMALL }, "with vcpus 1, this skep has 2"),
            (GuestSize { disk_mb: 10_240, ..SMALL }, "with layer_mb 2048, this skep has 10240"),
        ] {
            let other = inputs(size);
            assert_ne!(other.key(), small.key(), "{size:?}");
            assert_eq!(other.difference_from(&small.named).unwrap(), named);
        }
    }

    #[test]
    fn each_input_is_in_the_key() {
        let one = inputs(&[("engine", "a"), ("kernel", "b")]);
        for other in
            [&[("engine", "a"), ("kernel", "c")][..], &[("engine", "a")], &[("engine", "akernel=1:b")]]
        {
            assert_ne!(one.key(), inputs(other).key());
        }
        assert_eq!(one.key(), inputs(&[("kernel", "b"), ("engine", "a")]).key());
    }

    #[test]
    fn a_processor_is_identified_by_what_a_guest_sees_of_it() {
        let text = |mhz: &str, flags: &str| {
            format!(
                "processor\t: 0\nmodel name\t: Model 5\ncpu MHz\t\t: {mhz}\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
            )
        };
        let one = parse_processor(&text("2000", "sse avx"));
        assert!(one.starts_with("Model 5 ("), "{one}");
        assert_eq!(one, parse_processor(&text("3000", "sse avx")));
        assert_ne!(one, parse_processor(&text("2000", "sse")));
    }
}
