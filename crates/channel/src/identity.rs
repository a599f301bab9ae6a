//! What makes a restored VM one of its own, and the guest's word that it is.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::Moment;

/// What a VM is given after each restore, before anything of a user runs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The VM's id.
    pub vm: String,
    /// Its host name.
    pub hostname: String,
    /// The address of its network card.
    pub mac: [u8; 6],
    /// Its address.
    pub ip: Ipv4Addr,
    /// The length of its network's prefix, in bits.
    pub prefix_len: u8,
    /// Where everything else is reached; `None` where nothing else is.
    pub gateway: Option<Ipv4Addr>,
    /// The time of day, and fresh randomness.
    pub moment: Moment,
    /// The machine's id: 32 hexadecimal digits.
    pub machine_id: String,
    /// The boot's id, a UUID as text.
    pub boot_id: String,
    /// Variables that every command of this VM sees. `None`: it is nobody's yet and takes no command before a
    /// [`HandOut`](crate::HandOut).
    pub env: Option<BTreeMap<String, String>>,
}

/// Neither the seed nor the values of variables may come into a log.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Option<Vec<&String>> = self.env.as_ref().map(|env| env.keys().collect());
        f.debug_struct("Identity")
            .field("vm", &self.vm)
            .field("hostname", &self.hostname)
            .field("mac", &self.mac)
            .field("ip", &self.ip)
            .field("gateway", &self.gateway)
            .field("env", &env)
            .finish_non_exhaustive()
    }
}

/// What the guest is now. Each field was read back from its kernel or its files, not copied from the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdentityReport {
    /// The content of `/run/skep/generation`.
    pub vm: String,
    /// The kernel's host name.
    pub hostname: String,
    /// The address that the network card has.
    pub mac: [u8; 6],
    /// The address of that card.
    pub ip: Ipv4Addr,
    /// The length of its network's prefix, in bits.
    pub prefix_len: u8,
    /// The content of `/etc/machine-id`.
    pub machine_id: String,
    /// The content of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Whether the kernel took the seed and began a new key of its random generator with it.
    pub reseeded: bool,
    /// By how much the clock was set, in milliseconds; negative where it was fast.
    pub clock_step_ms: f64,
}

/// A part of an identity that the guest does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the guest's {part} is `{found}`, not `{wanted}`")]
pub struct Mismatch {
    /// Which part.
    pub part: &'static str,
    /// What it should be.
    pub wanted: String,
    /// What the guest reported.
    pub found: String,
}

impl Mismatch {
    /// Nothing, or what differs.
    pub(crate) fn between(part: &'static str, wanted: String, found: String) -> Result<(), Self> {
        if wanted == found { Ok(()) } else { Err(Self { part, wanted, found }) }
    }

    /// Nothing, or that the guest's randomness or its clock is not what it should be.
    pub(crate) fn of_moment(reseeded: bool, clock_step_ms: f64) -> Result<(), Self> {
        let found = if reseeded { "fresh" } else { "old" };
        Self::between("randomness", "fresh".to_owned(), found.to_owned())?;
        let step = if clock_step_ms.is_finite() { "a number".to_owned() } else { clock_step_ms.to_string() };
        Self::between("clock step", "a number".to_owned(), step)
    }
}

impl IdentityReport {
    /// Whether the guest is what it was told to be, in every part.
    ///
    /// # Errors
    /// The first part that differs. Such a VM must not be handed out.
    pub fn proves(&self, identity: &Identity) -> Result<(), Mismatch> {
        let same = Mismatch::between;
        same("generation", identity.vm.clone(), self.vm.clone())?;
        same("host name", identity.hostname.clone(), self.hostname.clone())?;
        same("MAC", mac_text(identity.mac), mac_text(self.mac))?;
        same("address", identity.ip.to_string(), self.ip.to_string())?;
        same("prefix length", identity.prefix_len.to_string(), self.prefix_len.to_string())?;
        same("machine id", identity.machine_id.clone(), self.machine_id.clone())?;
        same("boot id", identity.boot_id.clone(), self.boot_id.clone())?;
        Mismatch::of_moment(self.reseeded, self.clock_step_ms)
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            vm: "vm_1".to_owned(),
            hostname: "one".to_owned(),
            mac: [2, 0, 0, 0, 0, 1],
            ip: Ipv4Addr::new(10, 0, 0, 2),
            prefix_len: 16,
            gateway: None,
            moment: Moment { unix_time_ns: 0, seed: "5eed".repeat(32) },
            machine_id: "a".repeat(32),
            boot_id: "b".to_owned(),
            env: Some(BTreeMap::from([("TOKEN".to_owned(), "secret".to_owned())])),
        }
    }

    fn report(of: &Identity) -> IdentityReport {
        IdentityReport {
            vm: of.vm.clone(),
            hostname: of.hostname.clone(),
            mac: of.mac,
            ip: of.ip,
            prefix_len: of.prefix_len,
            machine_id: of.machine_id.clone(),
            boot_id: of.boot_id.clone(),
            reseeded: true,
            clock_step_ms: -1.5,
        }
    }

    #[test]
    fn every_part_counts() {
        let wanted = identity();
        assert_eq!(report(&wanted).proves(&wanted), Ok(()));
        type Change = (&'static str, fn(&mut IdentityReport));
        let changes: [Change; 9] = [
            ("generation", |it| it.vm.push('x')),
            ("host name", |it| it.hostname.clear()),
            ("MAC", |it| it.mac[5] = 9),
            ("address", |it| it.ip = Ipv4Addr::LOCALHOST),
            ("prefix length", |it| it.prefix_len = 8),
            ("machine id", |it| it.machine_id.clear()),
            ("boot id", |it| it.boot_id.clear()),
            ("randomness", |it| it.reseeded = false),
            ("clock step", |it| it.clock_step_ms = f64::NAN),
        ];
        for (part, change) in changes {
            let mut report = report(&wanted);
            change(&mut report);
            assert_eq!(report.proves(&wanted).map_err(|mismatch| mismatch.part), Err(part));
        }
    }

    #[test]
    fn secrets_do_not_reach_a_log() {
        let text = format!("{:?}", identity());
        assert!(!text.contains("secret") && !text.contains("5eed") && text.contains("TOKEN"));
    }
}
