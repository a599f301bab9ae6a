//! Configures the network interface with ioctls. Netlink would take more steps, and this code delays the start of a VM.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use skep_channel::Identity;

use crate::error::{Error, StepContext};

const INTERFACE: &str = "eth0";

/// The configuration of the network interface, as the kernel reports it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) mac: [u8; 6],
    pub(crate) ip: Ipv4Addr,
    pub(crate) prefix_len: u8,
}

/// Brings up the loopback device and the interface. The interface sends nothing until it has an address.
pub(crate) fn bring_all_up() -> Result<(), Error> {
    let control = control()?;
    bring_up(&control, "lo").context("bring up lo")?;
    bring_up(&control, INTERFACE).context(format!("bring up {INTERFACE}"))
}

/// Sets the MAC address, the IP address and the default route of the interface.
pub(crate) fn configure(identity: &Identity) -> Result<(), Error> {
    let control = control()?;
    let of_interface = |what: &str| format!("{what} of {INTERFACE}");
    let mut request = request(INTERFACE);
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr {
        sa_family: libc::ARPHRD_ETHER,
        sa_data: std::array::from_fn(|at| identity.mac.get(at).map_or(0, |byte| *byte as libc::c_char)),
    };
    interface_ioctl(&control, libc::SIOCSIFHWADDR, &mut request).context(of_interface("set the MAC"))?;
    request.ifr_ifru.ifru_addr = address(identity.ip);
    interface_ioctl(&control, libc::SIOCSIFADDR, &mut request).context(of_interface("set the address"))?;
    request.ifr_ifru.ifru_netmask = address(mask(identity.prefix_len));
    interface_ioctl(&control, libc::SIOCSIFNETMASK, &mut request).context(of_interface("set the mask"))?;
    bring_up(&control, INTERFACE).context(format!("bring up {INTERFACE}"))?;
    if let Some(gateway) = identity.gateway {
        match add_default_route(&control, gateway) {
            // The snapshot may already contain the route.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.context("add the default route")?,
        }
    }
    Ok(())
}

/// Reads the configuration of the network interface.
pub(crate) fn interface() -> Result<Interface, Error> {
    let control = control()?;
    let ask = |kind, what: &str| {
        let mut request = request(INTERFACE);
        interface_ioctl(&control, kind, &mut request).context(format!("read the {what} of {INTERFACE}"))?;
        // SAFETY: these requests answer with a `sockaddr`, for which every bit pattern is valid.
        Ok::<_, Error>(unsafe { request.ifr_ifru.ifru_addr }.sa_data.map(|byte| byte as u8))
    };
    let mac = ask(libc::SIOCGIFHWADDR, "MAC")?;
    let ip = ask(libc::SIOCGIFADDR, "address")?;
    let mask = ask(libc::SIOCGIFNETMASK, "mask")?;
    Ok(Interface {
        mac: std::array::from_fn(|at| mac[at]),
        ip: Ipv4Addr::new(ip[2], ip[3], ip[4], ip[5]),
        prefix_len: u32::from_be_bytes([mask[2], mask[3], mask[4], mask[5]]).leading_ones() as u8,
    })
}

fn control() -> Result<OwnedFd, Error> {
    socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).context("open a socket")
}

fn bring_up(control: &OwnedFd, interface: &str) -> io::Result<()> {
    let mut request = request(interface);
    interface_ioctl(control, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: this request answers with the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let wanted = flags | libc::IFF_UP as libc::c_short;
    if flags == wanted {
        return Ok(());
    }
    request.ifr_ifru.ifru_flags = wanted;
    interface_ioctl(control, libc::SIOCSIFFLAGS, &mut request)
}

/// A request for the interface of this name, which is truncated if it is too long for the kernel.
fn request(interface: &str) -> libc::ifreq {
    let name = interface.as_bytes();
    libc::ifreq {
        ifr_name: std::array::from_fn(|at| name.get(at).map_or(0, |byte| *byte as libc::c_char)),
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_addr: address(Ipv4Addr::UNSPECIFIED) },
    }
}

/// Builds a `sockaddr_in` as the `sockaddr` that these requests take: port, address, padding.
fn address(ip: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (place, octet) in data[2..6].iter_mut().zip(ip.octets()) {
        *place = octet as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

fn mask(prefix_len: u8) -> Ipv4Addr {
    let bits = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
    Ipv4Addr::from(bits)
}

fn interface_ioctl(control: &OwnedFd, kind: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: all requests of this module take one `ifreq`, and the descriptor is open.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), kind, std::ptr::from_mut(request)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn add_default_route(control: &OwnedFd, gateway: Ipv4Addr) -> io::Result<()> {
    // SAFETY: all zeros is a valid `rtentry`.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = address(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    // SAFETY: the request takes one `rtentry`, and the descriptor is open.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCADDRT, &raw const route) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_mask() {
        for (length, text) in
            [(0, "0.0.0.0"), (16, "255.255.0.0"), (30, "255.255.255.252"), (32, "255.255.255.255")]
        {
            assert_eq!(mask(length).to_string(), text);
        }
    }
}
