//! The identity of a VM, which distinguishes it from other VMs of the same template.

use rand::RngCore;
use skep_channel::{Identity, TimeAndSeed};
use skep_keeper_protocol::Launched;

use crate::restore::Environment;

/// A new identity for a restored VM.
pub(crate) fn new(launched: &Launched, environment: Environment<'_>) -> Identity {
    let mut random = rand::rng();
    Identity {
        vm: launched.vm.to_string(),
        // A name of at most 63 letters, digits and hyphens (RFC 1123, 2.1).
        hostname: launched.vm.to_string().replace('_', "-"),
        mac: launched.mac,
        ip: launched.ip,
        prefix_len: launched.prefix_len,
        gateway: Some(launched.gateway),
        machine_id: hex(&random_bytes(&mut random)),
        boot_id: uuid(random_bytes(&mut random)),
        env: environment.given().cloned(),
        keeps_env: matches!(environment, Environment::KeptWith(_)),
        moment: TimeAndSeed::now(),
    }
}

fn random_bytes(random: &mut impl RngCore) -> [u8; 16] {
    let mut bytes = [0; 16];
    random.fill_bytes(&mut bytes);
    bytes
}

/// A random uuid (RFC 9562, 5.4).
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex(&bytes);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
