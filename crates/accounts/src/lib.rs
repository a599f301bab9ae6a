//! The rules of accounts, keys, roles and sessions. No I/O and no clock: the time and random bytes are arguments.

pub mod account;
pub mod creation;
pub mod error;
pub mod roles;
pub mod secret;
pub mod session;
pub mod verdict;

pub use account::{AccountGrant, account, account_change, may_set_roots};
pub use creation::{KeyGrant, Target, check_expiry, grant, rotation};
pub use error::Refusal;
pub use roles::{DEFAULT_ACCOUNT, allowed_scopes, scopes_of};
pub use secret::{KeyHash, KeySecret, redacted};
pub use session::{SessionHash, SessionToken, session_end};
pub use verdict::verdict;
