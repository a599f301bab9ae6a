//! The inputs that must not have changed for a saved state to be loaded.

use std::collections::BTreeMap;

use skep_engine::Engine;

use crate::{
    Error,
    inputs::{DEVICES, difference, hash_of_devices, of_machine},
    tsc::TSC_KHZ,
};

const NAMES: [&str; 5] = ["engine", "acceleration", "processor", DEVICES, TSC_KHZ];

/// The inputs of this machine and this release that a saved state depends on.
pub(crate) struct StateInputs {
    named: BTreeMap<String, String>,
    tsc_khz: Option<u64>,
}

impl StateInputs {
    /// Determines the inputs of this machine. Unlike `Inputs::gather`, this neither runs apt nor hashes the guest agent.
    ///
    /// # Errors
    /// The processor cannot be read.
    pub(crate) fn gather(engine: &dyn Engine) -> Result<Self, Error> {
        let mut named = of_machine(engine.report())?;
        named.insert(DEVICES.to_owned(), hash_of_devices(engine));
        Ok(Self { named, tsc_khz: engine.tsc_khz() })
    }

    /// Like [`crate::Inputs::difference_from`], but only what a saved state depends on.
    pub(crate) fn difference_from(&self, baked: &BTreeMap<String, String>) -> Option<String> {
        // Manifests of earlier releases lack this input; their states can still be loaded.
        let is_compared =
            |name: &str| NAMES.contains(&name) && (name != DEVICES || baked.contains_key(DEVICES));
        let compared = |inputs: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let of_state = inputs.iter().filter(|(name, _)| is_compared(name));
            of_state.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        difference(&compared(&self.named), self.tsc_khz, &compared(baked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_saved_state_depends_on_engine_processor_clock_and_devices_alone() {
        let named_now = named(&[("acceleration", "tcg"), ("devices", "aa"), ("engine", "qemu 10.0")]);
        let now = StateInputs { named: named_now, tsc_khz: Some(2_600_000) };
        let baked = |other: &[(&str, &str)]| {
            let mut inputs = named(&[("kernel", "6.1"), ("agent", "aa"), ("tsc_khz", "2600000")]);
            inputs.extend(now.named.clone());
            inputs.extend(named(other));
            inputs
        };
        for same in [baked(&[]), baked(&[("kernel", "6.2"), ("agent", "bb"), ("vcpus", "2")])] {
            assert_eq!(now.difference_from(&same), None, "{same:?}");
        }
        for (input, words) in [
            (("engine", "qemu 7.2"), "for qemu 7.2, this machine has qemu 10.0"),
            (("acceleration", "kvm"), "for acceleration kvm, this machine has tcg"),
            (("processor", "Model 5"), "for processor Model 5, this machine has none"),
            (("devices", "bb"), "with other devices than those of this skep"),
            (("tsc_khz", "2100000"), "for a time stamp counter of 2100000 kHz, this machine has 2600000 kHz"),
        ] {
            assert_eq!(now.difference_from(&baked(&[input])).unwrap(), words);
        }
        let mut of_before = baked(&[]);
        of_before.remove("devices");
        assert_eq!(now.difference_from(&of_before), None, "the state of a release that did not name them");
    }
}
