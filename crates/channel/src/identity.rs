//! The identity that a VM receives after a restore, and the report by which the guest confirms it.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::TimeAndSeed;

/// The identity of a VM. Set after each restore, before any command of a user runs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub vm: String,
    pub hostname: String,
    /// The MAC address of the network card.
    pub mac: [u8; 6],
    pub ip: Ipv4Addr,
    /// The length of the network prefix, in bits.
    pub prefix_len: u8,
    /// The default gateway; `None` if only the local network is reachable.
    pub gateway: Option<Ipv4Addr>,
    /// The current time and a new random seed.
    pub moment: TimeAndSeed,
    /// The machine id: 32 hexadecimal digits.
    pub machine_id: String,
    /// The boot id: a UUID as text.
    pub boot_id: String,
    /// Environment variables of all commands in this VM. `None` if the VM has no owner yet and accepts no command
    /// before a [`HandOut`](crate::HandOut).
    pub env: Option<BTreeMap<String, String>>,
    /// Whether the copy of a running VM keeps the environment variables of that VM, except those of its ticket; those of `env`
    /// are added and win. Without it they are dropped before any program of the copy runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_env: bool,
}

/// The seed and the values of variables must not appear in logs.
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

/// The identity that the guest has. Each field was read back from its kernel or its files, not copied from the
/// request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdentityReport {
    /// The content of `/run/skep/generation`.
    pub vm: String,
    pub hostname: String,
    /// The MAC address of the network card.
    pub mac: [u8; 6],
    /// The IP address of the network card.
    pub ip: Ipv4Addr,
    /// The length of the network prefix, in bits.
    pub prefix_len: u8,
    /// The content of `/etc/machine-id`.
    pub machine_id: String,
    /// The content of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Whether the kernel accepted the seed and rekeyed its random generator.
    pub reseeded: bool,
    /// By how much the clock was advanced, in milliseconds; negative if it was fast.
    pub clock_step_ms: f64,
}

/// A part of the identity that the guest does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the guest's {part} is `{found}`, not `{wanted}`")]
pub struct Mismatch {
    pub part: &'static str,
    pub wanted: String,
    pub found: String,
}

impl Mismatch {
    /// Fails if the values differ.
    pub(crate) fn check_equal(part: &'static str, wanted: String, found: String) -> Result<(), Self> {
        if wanted == found { Ok(()) } else { Err(Self { part, wanted, found }) }
    }

    /// Fails if the guest was not reseeded or reports an invalid clock step.
    pub(crate) fn check_time_and_seed(reseeded: bool, clock_step_ms: f64) -> Result<(), Self> {
        let found = if reseeded { "fresh" } else { "old" };
        Self::check_equal("randomness", "fresh".to_owned(), found.to_owned())?;
        let step = if clock_step_ms.is_finite() { "a number".to_owned() } else { clock_step_ms.to_string() };
        Self::check_equal("clock step", "a number".to_owned(), step)
    }
}

impl IdentityReport {
    /// Checks that the guest has this identity in every part.
    ///
    /// # Errors
    /// The first part that differs. Such a VM must not be used.
    pub fn verify(&self, identity: &Identity) -> Result<(), Mismatch> {
        let same = Mismatch::check_equal;
        same("generation", identity.vm.clone(), self.vm.clone())?;
        same("host name", identity.hostname.clone(), self.hostname.clone())?;
        same("MAC", mac_text(identity.mac), mac_text(self.mac))?;
        same("address", identity.ip.to_string(), self.ip.to_string())?;
        same("prefix length", identity.prefix_len.to_string(), self.prefix_len.to_string())?;
        same("machine id", identity.machine_id.clone(), self.machine_id.clone())?;
        same("boot id", identity.boot_id.clone(), self.boot_id.clone())?;
        Mismatch::check_time_and_seed(self.reseeded, self.clock_step_ms)
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
            moment: TimeAndSeed { unix_time_ns: 0, seed: "5eed".repeat(32) },
            machine_id: "a".repeat(32),
            boot_id: "b".to_owned(),
            env: Some(BTreeMap::from([("TOKEN".to_owned(), "secret".to_owned())])),
            keeps_env: false,
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
        assert_eq!(report(&wanted).verify(&wanted), Ok(()));
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
            assert_eq!(report.verify(&wanted).map_err(|mismatch| mismatch.part), Err(part));
        }
    }

    #[test]
    fn secrets_do_not_reach_a_log() {
        let text = format!("{:?}", identity());
        assert!(!text.contains("secret") && !text.contains("5eed") && text.contains("TOKEN"));
    }
}
