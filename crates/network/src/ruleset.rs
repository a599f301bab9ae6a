//! The packet filter of the namespace, by `nft`.
//!
//! Each tap's name, hardware address and address belong together from the start, so a tap has its filter before it
//! exists, and launching a VM changes nothing here. Three guards: isolated ports (see `links`) between VMs, the bridge
//! table against false senders, the inet table between VMs and this machine.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::{Command, Stdio},
};

use crate::{Error, Subnet, addresses::Slot};

/// The name of a slot's tap.
pub(crate) fn tap_name(slot: Slot) -> String {
    format!("vm{}", slot.0)
}

/// The whole ruleset for a subnet, as `nft -f` reads it: in one transaction, and in the place of an earlier one.
pub fn text(subnet: Subnet) -> String {
    let mut senders = String::new();
    for slot in (0..subnet.slots()).map(Slot) {
        let ip = subnet.address(slot);
        let mac = subnet.mac(ip).map(|byte| format!("{byte:02x}")).join(":");
        // Writing to a string does not fail.
        let _ = writeln!(senders, "      \"{}\" . {mac} . {ip},", tap_name(slot));
    }
    format!(
        // One that is added is there to be deleted, whether it was there before or not.
        r#"add table bridge skep
delete table bridge skep
add table inet skep
delete table inet skep
table bridge skep {{
  set senders {{
    type ifname . ether_addr . ipv4_addr
    elements = {{
{senders}    }}
  }}
  chain from_ports {{
    type filter hook prerouting priority -300; policy drop;
    ether type ip iifname . ether saddr . ip saddr @senders accept
    ether type arp iifname . ether saddr . arp saddr ip @senders iifname . arp saddr ether . arp saddr ip @senders accept
  }}
}}
table inet skep {{
  chain input {{
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
    ct state established,related accept
  }}
  chain forward {{
    type filter hook forward priority 0; policy drop;
  }}
}}
"#
    )
}

/// Loads it into the namespace of this thread, which the program inherits.
pub(crate) fn load(subnet: Subnet) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Filter(error.to_string());
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let written = nft.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text(subnet).as_bytes()));
    let output = nft.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(Error::Filter(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tap_has_its_line() {
        let rules = text("10.9.8.0/29".parse().unwrap());
        assert!(rules.contains("\"vm0\" . 02:53:0a:09:08:02 . 10.9.8.2,"), "{rules}");
        assert!(rules.contains("\"vm4\" . 02:53:0a:09:08:06 . 10.9.8.6,"), "{rules}");
        assert!(!rules.contains("vm5"), "{rules}");
        assert_eq!(rules.matches("policy drop").count(), 3);
    }
}
