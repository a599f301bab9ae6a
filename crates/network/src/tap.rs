//! Creates tap devices.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use crate::Error;

const DEVICE: &str = "/dev/net/tun";

/// Creates a tap in the namespace of this thread. The kernel removes it when the last copy of the descriptor closes.
///
/// With `IFF_VNET_HDR` each frame has a virtio header, so that checksums need not be computed twice. The VMM sets the
/// length of the header.
pub(crate) fn open(name: &str) -> Result<OwnedFd, Error> {
    let failed = || Error::io(format!("tap {name} by {DEVICE}"));
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(failed())?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short,
        },
    };
    // The last byte stays zero, as the terminator.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: this request reads and writes one `ifreq`, which outlives the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        -1 => Err(failed()(io::Error::last_os_error())),
        _ => Ok(device.into()),
    }
}
