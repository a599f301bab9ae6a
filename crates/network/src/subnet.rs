//! The subnet of the VMs.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use crate::{Error, addresses::Slot};

/// Limit of VM addresses: many more than a machine has VMs, so that an address is not reused soon.
const MAX_SLOTS: u32 = 4096;
/// A locally administered unicast address.
const MAC_PREFIX: [u8; 2] = [0x02, 0x53];

/// A private IPv4 network, such as `10.77.0.0/16`. The bridge has its first address, VMs have the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    network: u32,
    prefix_len: u8,
}

impl Subnet {
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network + 1)
    }

    /// Number of VM addresses.
    pub(crate) fn slots(&self) -> u32 {
        // VMs do not get the addresses of the network, the bridge and the broadcast.
        ((1_u32 << (32 - self.prefix_len)) - 3).min(MAX_SLOTS)
    }

    pub(crate) fn address(&self, slot: Slot) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network + 2 + slot.0)
    }

    /// The slot of an address. `None` if it is not a VM address of this subnet.
    pub(crate) fn slot(&self, address: Ipv4Addr) -> Option<Slot> {
        let number = address.to_bits().checked_sub(self.network + 2)?;
        (number < self.slots()).then_some(Slot(number))
    }

    /// The MAC address of an IP address.
    pub fn mac(&self, address: Ipv4Addr) -> [u8; 6] {
        let [first, second] = MAC_PREFIX;
        let [a, b, c, d] = address.octets();
        [first, second, a, b, c, d]
    }
}

impl Default for Subnet {
    fn default() -> Self {
        Self { network: Ipv4Addr::new(10, 77, 0, 0).to_bits(), prefix_len: 16 }
    }
}

impl FromStr for Subnet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let network = address.parse::<Ipv4Addr>().ok()?.to_bits();
            let prefix_len: u8 = length.parse().ok().filter(|length| (8..=29).contains(length))?;
            (network << prefix_len == 0).then_some(Self { network, prefix_len })
        };
        parse().ok_or_else(|| Error::InvalidSubnet(text.to_owned()))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.network), self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bridge_has_the_first_address_and_the_last_is_unused() {
        let subnet: Subnet = "10.9.8.0/29".parse().unwrap();
        assert_eq!(subnet.slots(), 5);
        assert_eq!(subnet.gateway(), Ipv4Addr::new(10, 9, 8, 1));
        assert_eq!(subnet.address(Slot(0)), Ipv4Addr::new(10, 9, 8, 2));
        assert_eq!(subnet.address(Slot(4)), Ipv4Addr::new(10, 9, 8, 6));
        let slot_of = |last| subnet.slot(Ipv4Addr::new(10, 9, 8, last));
        assert_eq!([1, 2, 6, 7].map(slot_of), [None, Some(Slot(0)), Some(Slot(4)), None]);
        assert_eq!(Subnet::default().slots(), MAX_SLOTS);
        assert_eq!(subnet.mac(subnet.gateway()), [2, 0x53, 10, 9, 8, 1]);
    }

    #[test]
    fn an_invalid_subnet_is_refused() {
        for wrong in
            ["", "10.77.0.0", "10.77.0.1/16", "10.0.0.0/7", "10.0.0.0/30", "10.0.0.0/-1", "::/64", "a/b"]
        {
            assert!(wrong.parse::<Subnet>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn formatting_a_subnet_reverses_parsing(network: u32, prefix_len in 8_u8..=29) {
            let text = format!("{}/{prefix_len}", Ipv4Addr::from_bits(network >> (32 - prefix_len) << (32 - prefix_len)));
            prop_assert_eq!(text.parse::<Subnet>().unwrap().to_string(), text);
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = text.parse::<Subnet>();
        }
    }
}
