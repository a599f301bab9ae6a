//! The packet filter of the namespace, loaded with `nft`.
//!
//! The name, MAC address and IP address of each tap are fixed in advance, so the filter of a tap exists before the tap,
//! and a launch does not change the ruleset. Isolated ports (see `links`) separate VMs from each other, the bridge
//! table drops spoofed senders, and the inet table separates VMs from the host.
//!
//! The inet table has one exception: VMs in the set `api_callers` reach the API at the bridge's address. Their packets
//! are accepted without connection tracking, so a VM that is removed from the set is cut off at once, and a VM that
//! opens many connections cannot fill the table of tracked connections.
//!
//! For VMs in the set `egress`, connections to addresses outside the subnet are redirected to the listener of the egress
//! process, and the bridge's address answers DNS. A VM that is removed from the set is cut off at once as well, because
//! packets of VMs are accepted by their set, also those of tracked connections.
//!
//! All VMs share the kernel's table of tracked connections. Of the connections of VMs, only redirected ones are in it:
//! DNS is not tracked. The egress process never sees half-open connections, so the packet filter limits them: each VM
//! has at most [`MAX_TRACKED_CONNECTIONS`] entries.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use crate::{API_PORT, BRIDGE, DNS_PORT, EGRESS_PORT, Error, Subnet, addresses::Slot};

/// Limit of tracked connections of one VM. The kernel does not count closed ones, see `namespace::shorten_tracking`.
const MAX_TRACKED_CONNECTIONS: u32 = 4096;

/// A set of the inet table with VMs, which are added while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VmSet {
    /// They may reach the API.
    ApiCallers,
    /// Their connections to the outside go to the egress process.
    Egress,
}

impl VmSet {
    fn name(self) -> &'static str {
        match self {
            Self::ApiCallers => "api_callers",
            Self::Egress => "egress",
        }
    }
}

pub(crate) fn tap_name(slot: Slot) -> String {
    format!("vm{}", slot.0)
}

/// The ruleset of a subnet in the format of `nft -f`. It replaces an earlier one in a single transaction. `callers` are
/// the VMs that may reach the API, `egress` those whose connections to the outside go to the egress process.
#[expect(clippy::too_many_lines, reason = "one text")]
pub fn text(subnet: Subnet, callers: &[Ipv4Addr], egress: &[Ipv4Addr]) -> String {
    let mut senders = String::new();
    for slot in (0..subnet.slots()).map(Slot) {
        let ip = subnet.address(slot);
        let mac = subnet.mac(ip).map(|byte| format!("{byte:02x}")).join(":");
        // Writing to a string does not fail.
        let _ = writeln!(senders, "      \"{}\" . {mac} . {ip},", tap_name(slot));
    }
    let elements = |set: VmSet, vms: &[Ipv4Addr]| -> String {
        vms.iter().map(|ip| format!("add element inet skep {} {{ {ip} }}\n", set.name())).collect()
    };
    let elements = elements(VmSet::ApiCallers, callers) + &elements(VmSet::Egress, egress);
    let gateway = subnet.gateway();
    let slots = subnet.slots();
    format!(
        // `delete` fails for a missing table, so the table is added first.
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
  set api_callers {{
    type ipv4_addr
  }}
  set egress {{
    type ipv4_addr
  }}
  set tracked {{
    type ipv4_addr
    size {slots}
    flags dynamic
  }}
  chain connection_limit {{
    type filter hook prerouting priority -150; policy accept;
    iifname "{BRIDGE}" ct state new add @tracked {{ ip saddr ct count over {MAX_TRACKED_CONNECTIONS} }} drop
  }}
  chain steer {{
    type nat hook prerouting priority -100; policy accept;
    iifname "{BRIDGE}" ip saddr @egress ip daddr != {subnet} meta l4proto tcp redirect to :{EGRESS_PORT}
  }}
  chain requests {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{BRIDGE}" ip saddr @api_callers ip daddr {gateway} tcp dport {API_PORT} notrack
    iifname "{BRIDGE}" ip saddr @egress ip daddr {gateway} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack
  }}
  chain answers {{
    type filter hook output priority raw; policy accept;
    ip saddr {gateway} tcp sport {API_PORT} notrack
    ip saddr {gateway} meta l4proto {{ tcp, udp }} th sport {DNS_PORT} notrack
  }}
  chain input {{
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
    iifname "{BRIDGE}" ip saddr @api_callers ip daddr {gateway} tcp dport {API_PORT} accept
    iifname "{BRIDGE}" ip saddr @egress ct status dnat tcp dport {EGRESS_PORT} accept
    iifname "{BRIDGE}" ip saddr @egress ip daddr {gateway} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} accept
    iifname "{BRIDGE}" ct direction original ct state established,related drop
    ct state established,related accept
  }}
  chain forward {{
    type filter hook forward priority 0; policy drop;
  }}
}}
{elements}"#
    )
}

/// Loads the ruleset into the namespace of this thread.
pub(crate) fn load(subnet: Subnet, callers: &[Ipv4Addr], egress: &[Ipv4Addr]) -> Result<(), Error> {
    run(&text(subnet, callers, egress))
}

/// Adds a VM to a set. Idempotent.
pub(crate) fn add(set: VmSet, ip: Ipv4Addr) -> Result<(), Error> {
    let name = set.name();
    run(&format!("{}add element inet skep {name} {{ {ip} }}\n", ensure(set)))
}

/// Removes a VM from a set. Idempotent, because the element is added before it is deleted.
pub(crate) fn remove(set: VmSet, ip: Ipv4Addr) -> Result<(), Error> {
    let element = format!("element inet skep {} {{ {ip} }}\n", set.name());
    run(&format!("{}add {element}delete {element}", ensure(set)))
}

/// Creates a set if it is missing: the end of a VM must not fail because another program removed the table.
fn ensure(set: VmSet) -> String {
    format!("add table inet skep\nadd set inet skep {} {{ type ipv4_addr; }}\n", set.name())
}

/// Runs `nft` in the namespace of this thread, which the program inherits.
fn run(script: &str) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Filter(error.to_string());
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let written = nft.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
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
    fn every_tap_has_a_rule() {
        let rules = text("10.9.8.0/29".parse().unwrap(), &[], &[]);
        assert!(rules.contains("\"vm0\" . 02:53:0a:09:08:02 . 10.9.8.2,"), "{rules}");
        assert!(rules.contains("\"vm4\" . 02:53:0a:09:08:06 . 10.9.8.6,"), "{rules}");
        assert!(!rules.contains("vm5"), "{rules}");
        assert_eq!(rules.matches("policy drop").count(), 3);
        assert!(!rules.contains("add element"), "{rules}");
        let rules = text(
            "10.9.8.0/29".parse().unwrap(),
            &["10.9.8.3".parse().unwrap()],
            &["10.9.8.4".parse().unwrap()],
        );
        let elements =
            "add element inet skep api_callers { 10.9.8.3 }\nadd element inet skep egress { 10.9.8.4 }\n";
        assert!(rules.ends_with(elements), "{rules}");
    }
}
