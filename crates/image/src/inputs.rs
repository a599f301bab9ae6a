//! The inputs of a template. A change of any of them changes the key of the template and so requires a bake.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use sha2::{Digest, Sha256};
use skep_api::swarm::{EngineReport, Isolation};
use skep_template::{FORMAT, hex, shelf::CACHE};

use crate::{
    Error, kernel,
    layer::LAYER_MB,
    root::{PACKAGES, PACKAGES_RECIPE},
};

/// Version of the bake itself: devices, command line and warm-up. Must change whenever these do.
const BAKE_RECIPE: &str = "5";
/// Memory of a guest of the base template, in MiB.
pub(crate) const MEMORY_MB: u64 = 128;
/// Virtual processors of a guest of the base template.
pub(crate) const VCPUS: u32 = 1;
/// Hex digits of the key: 64 bits of the hash distinguish bakes and are short enough to read.
const KEY_DIGITS: usize = 16;

/// The inputs of the base template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub(crate) named: BTreeMap<String, String>,
    pub(crate) kernel: String,
    /// Whether guests keep a shell ready for the next command.
    pub(crate) prepares_shells: bool,
}

impl Inputs {
    /// Determines the current engine, kernel and agent. `shell_ahead`: whether emulated guests prepare shells.
    ///
    /// # Errors
    /// No kernel is known, or the processor cannot be read.
    pub fn gather(
        image_dir: &Path,
        engine: &EngineReport,
        agent: &[u8],
        shell_ahead: bool,
    ) -> Result<Self, Error> {
        Self::new(kernel::version(&image_dir.join(CACHE))?, engine, agent, shell_ahead)
    }

    fn new(kernel: String, engine: &EngineReport, agent: &[u8], shell_ahead: bool) -> Result<Self, Error> {
        // Linking a shell takes long only where code is translated.
        let prepares_shells = shell_ahead && engine.isolation == Isolation::Emulated;
        let named = [
            ("engine", engine.name.clone()),
            ("acceleration", engine.accel.clone()),
            ("kernel", kernel.clone()),
            ("agent", hex(&Sha256::digest(agent))),
            ("packages", format!("{PACKAGES_RECIPE} {}", PACKAGES.join(" "))),
            ("shell_ahead", if prepares_shells { "on" } else { "off" }.to_owned()),
            ("bake", BAKE_RECIPE.to_owned()),
            ("memory_mb", MEMORY_MB.to_string()),
            ("vcpus", VCPUS.to_string()),
            ("layer_mb", LAYER_MB.to_string()),
            // So that releases with another format can share an image directory.
            ("format", FORMAT.to_string()),
        ];
        let mut named: BTreeMap<String, String> = named.map(|(name, value)| (name.to_owned(), value)).into();
        // With KVM the guest sees the host's processor, and a saved state can only be restored on the same model.
        if engine.accel == "kvm" {
            let path = "/proc/cpuinfo";
            let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
            named.insert("processor".to_owned(), parse_processor(&text));
        }
        Ok(Self { named, kernel, prepares_shells })
    }

    /// Describes the differences from the inputs of a template, as the end of a sentence about it; `None` if there are
    /// none.
    pub fn difference_from(&self, baked: &BTreeMap<String, String>) -> Option<String> {
        let names: BTreeSet<&String> = self.named.keys().chain(baked.keys()).collect();
        let changes: Vec<String> = names
            .into_iter()
            .filter(|name| self.named.get(*name) != baked.get(*name))
            .map(|name| {
                let value =
                    |of: &BTreeMap<String, String>| of.get(name).cloned().unwrap_or("none".to_owned());
                describe_change(name, &value(baked), &value(&self.named))
            })
            .collect();
        (!changes.is_empty()).then(|| changes.join(", "))
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

fn describe_change(name: &str, was: &str, is: &str) -> String {
    match name {
        // The value contains the name of the engine.
        "engine" => format!("for {was}, this machine has {is}"),
        "kernel" | "processor" | "acceleration" => format!("for {name} {was}, this machine has {is}"),
        // The value is a hash and not useful to readers.
        "agent" => "with another guest agent".to_owned(),
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
    use super::*;

    fn inputs(pairs: &[(&str, &str)]) -> Inputs {
        let named = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Inputs { named, kernel: String::new(), prepares_shells: false }
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
    fn the_setting_shell_ahead_is_an_input_of_emulated_guests_only() {
        let inputs = |isolation, shell_ahead| {
            let accel = if isolation == Isolation::Emulated { "tcg" } else { "kvm" }.to_owned();
            let engine = EngineReport { name: "qemu".to_owned(), accel, isolation, reason: String::new() };
            Inputs::new("6.1".to_owned(), &engine, b"agent", shell_ahead).unwrap()
        };
        let [auto, off] = [true, false].map(|shell_ahead| inputs(Isolation::Emulated, shell_ahead));
        assert!(auto.prepares_shells && !off.prepares_shells);
        assert_ne!(auto.key(), off.key());
        assert_eq!(off.difference_from(&auto.named).unwrap(), "with shell_ahead on, this skep has off");
        let [auto, off] = [true, false].map(|shell_ahead| inputs(Isolation::Hardware, shell_ahead));
        assert!(!auto.prepares_shells);
        assert_eq!(auto, off);
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
