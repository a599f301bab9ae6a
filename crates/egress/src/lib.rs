//! Which addresses connections may reach whose host a caller chose: those of git, of webhooks and of VMs.
//!
//! ```text
//! host ── one look-up ──► addresses ── each checked by the operator's Rules ──► PinnedAddresses: connect only to these
//! ```
//! A name may lead to another address at each look-up, so the address that is checked is the one that is connected to.
//! The guest agent contains this crate as well: no TLS and few dependencies.

mod allowlist;
mod lookup;
mod networks;
mod proxy;
mod public;
mod resolver;
mod rules;

pub use allowlist::{Allowlist, InvalidEntry, check_entry, literal_address};
pub use lookup::{Lookup, LookupFuture, SystemLookup};
pub use networks::Networks;
pub use proxy::{HostRules, Proxy, RefusedHost};
pub use public::is_public;
pub use resolver::{Error, PinnedAddresses, Resolver};
pub use rules::{AddressRefusal, Reach, Rules};
