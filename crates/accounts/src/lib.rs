//! Rules of accounts, keys and roles. No I/O, no clock: the time and random bytes are arguments.

pub mod creation;
pub mod error;
pub mod roles;
pub mod secret;
pub mod session;
pub mod verdict;

pub use creation::{KeyGrant, Target, grant};
pub use error::Refusal;
pub use roles::{DEFAULT_ACCOUNT, allowed_scopes, scopes_of};
pub use secret::{KeyHash, KeySecret};
pub use session::{SessionHash, SessionToken, session_end};
pub use verdict::verdict;
