//! The protocol between server and keeper over a socket pair: its messages and both ends.

mod captures;
mod egress;
mod egress_names;
mod error;
mod keeper_end;
mod memory;
pub mod message;
mod peek;
mod server_end;
mod socket;
mod templates;

pub use captures::MAX_CAPTURES;
pub use egress::{
    EGRESS_PROTOCOL, EgressAnswer, EgressControl, EgressKeeperEnd, EgressProcessEnd, EgressRefusal,
    EgressRequest, EgressTotals, VmEgress,
};
pub use egress_names::{
    MAX_EGRESS_NAMES, MAX_NAME_USERS, MAX_NAMES_OF_ACCOUNT, MAX_UNLISTED_NAMES,
    MAX_UNLISTED_NAMES_OF_ACCOUNT, NameRecord, NameUser, NamesFile,
};
pub use error::Error;
pub use keeper_end::{Answerer, KeeperEnd};
pub use memory::{MachineMemory, OutOfMemory};
pub use message::{
    AdminKey, AfterCapture, Answer, Envelope, HeldVm, LIST_PAGE_SIZE, Launched, Load, MAX_PEM_BYTES,
    MAX_TEMPLATE_TEXT_BYTES, Request, ServerSetup, StorePurpose, SwarmAvailability, TEMPLATE_PAGE_SIZE,
    TemplateState, TemplateStatus, TlsPair, Usage,
};
pub use peek::peek_setup;
pub use server_end::{AttachedVm, LaunchedVm, ServerEnd};

use std::os::fd::OwnedFd;

/// Creates the socket pair: one descriptor for [`KeeperEnd::new`], one to be inherited by the server.
///
/// # Errors
/// The limit of open descriptors is reached.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    skep_packet::pair().map_err(Error::Io)
}
