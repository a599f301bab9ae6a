//! A tap device.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use crate::Error;

const DEVICE: &str = "/dev/net/tun";

/// Makes a tap in the namespace of this thread. It goes when the last copy of the descriptor closes.
///
/// With a header of the kind that virtio has in front of each frame, so that checksums need not be computed twice; the
/// VMM sets its length.
pub(crate) fn open(name: &str) -> Result<OwnedFd, Error> {
    let failed = || Error::io(format!("tap {name} by {DEVICE}"));
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(failed())?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short,
        },
    };
    // The last byte stays zero, the text's end.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: this request reads and writes one `ifreq`, which lives until it returns.
    match unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        -1 => Err(failed()(io::Error::last_os_error())),
        _ => Ok(device.into()),
    }
}
