//! The protocol between server and keeper over a socket pair: its messages and both ends.

mod error;
mod keeper_end;
pub mod message;
mod peek;
mod server_end;
mod socket;

pub use error::Error;
pub use keeper_end::{Answerer, KeeperEnd};
pub use message::{
    AdminKey, Answer, Envelope, HeldVm, LIST_PAGE_SIZE, Launched, Load, MAX_PEM_BYTES, Request,
    SwarmAvailability, TlsPair, Usage, Welcome,
};
pub use peek::peek_welcome;
pub use server_end::{AttachedVm, LaunchedVm, ServerEnd};

use std::os::fd::OwnedFd;

/// Creates the socket pair: one descriptor for [`KeeperEnd::new`], one to be inherited by the server.
///
/// # Errors
/// The limit of open descriptors is reached.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    skep_packet::pair().map_err(Error::Io)
}

/// In bytes.
const MAX_TEMPLATE_NAME: usize = 63;

/// Whether a text is a valid template name: `[a-z0-9][a-z0-9-]{0,62}`. It becomes the name of a folder, so both ends
/// check it.
pub fn is_template_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_TEMPLATE_NAME
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|byte| plain(byte) || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::is_template_name;

    #[test]
    fn a_template_name_can_name_no_other_folder() {
        for right in ["a", "base", "0", "my-own-1", &"a".repeat(63)] {
            assert!(is_template_name(right), "{right}");
        }
        for wrong in ["", "-a", ".", "..", "a/b", "a\0", "A", "ä", "a b", &"a".repeat(64)] {
            assert!(!is_template_name(wrong), "{wrong}");
        }
    }
}
