//! The rules of accounts, keys, roles and sessions. No I/O and no clock: the time and random bytes are arguments.

pub mod account;
pub mod creation;
pub mod error;
pub mod permits;
pub mod roles;
pub mod secret;
pub mod session;
pub mod validity;

pub use account::{AccountGrant, check_account, check_account_change, check_can_set_roots};
pub use creation::{GrantContext, KeyGrant, check_administration, check_expiry, check_rotation, grant};
pub use error::Error;
pub use permits::{AccountPermit, AccountPermits};
pub use roles::{DEFAULT_ACCOUNT, scopes_of};
pub use secret::{KeyHash, KeySecret, redact_keys};
pub use session::{
    SessionHash, SessionToken, check_session, idle_session_end, session_end, session_host, session_link_end,
};
pub use validity::check_validity;
