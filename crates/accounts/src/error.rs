//! Errors of the rules for accounts and keys.

use jiff::Timestamp;
use skep_api::{ErrorCode, ErrorKind, Failure, KeyId, Scope};

use crate::{
    account::{MAX_ACCOUNT_NAME_BYTES, MAX_LIST_ENTRIES, MAX_QUOTA_MB},
    creation::MAX_NAME_CHARACTERS,
    roles::DEFAULT_ACCOUNT,
};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A token of an invalid form, or an unknown one. The text is exactly that of the specification.
    #[error("Invalid token")]
    InvalidToken,
    /// A key that has expired or was revoked. The text is exactly that of the specification.
    #[error("Token expired")]
    TokenExpired,
    /// A text that is not a SHA-256 hash in hexadecimal. It is not repeated, because it may be the key itself.
    #[error("a text of {bytes} bytes is not the hash of a key, which has 64 lower-case hexadecimal digits")]
    NotAHash { bytes: usize },
    /// A name that is empty or too long.
    #[error("`name` has {characters} characters; give 1 to {MAX_NAME_CHARACTERS}")]
    NameLength { characters: usize },
    /// A name with a control character, which would break lines in output.
    #[error("`name` {name:?} contains a control character; leave it out")]
    NameControl { name: String },
    /// A name that contains a key. It is not repeated.
    #[error("`name` contains a key, and names are not secret; choose another name")]
    NameHoldsKey,
    #[error("`role` or `scopes` is missing; give exactly one of them")]
    NoPermissions,
    #[error("`role` and `scopes` are both given; give exactly one of them")]
    RoleAndScopes,
    #[error("`scopes` is empty; name at least one scope")]
    NoScopes,
    #[error("`expires_at` {expires_at} is not in the future: it is {now}")]
    ExpiryPassed {
        expires_at: Timestamp,
        /// The time of the request.
        now: Timestamp,
    },
    #[error("`vm` is missing: a key with role `vm` is bound to one VM; name it by pid, id or name")]
    VmMissing,
    #[error("`vm` is only for keys with role `vm`; leave it out, or give that role")]
    VmWithoutRole,
    /// `server:admin` for a key of an account other than `default`.
    #[error(
        "`server:admin` is only for keys of the account `{DEFAULT_ACCOUNT}`, not of `{account}`; leave it out"
    )]
    ServerAdminElsewhere { account: String },
    /// The creator lacks some of the requested scopes.
    #[error("your key lacks {}, which the new key would have; use a key that has it", joined(.missing))]
    Escalation { missing: Vec<Scope> },
    /// The caller lacks some of the scopes of a key that it wants to read or revoke.
    #[error("your key lacks {}, which the key `{id}` has; use a key that has it", joined(.missing))]
    StrongerKey { id: KeyId, missing: Vec<Scope> },
    /// The key that replaces an expired one would have expired as well.
    #[error(
        "`expires_at` is missing: the key ended at {expires_at}, and one like it would have ended too; give when the new \
         one ends, or null"
    )]
    SuccessorExpired { expires_at: Timestamp },
    /// A text that is not a valid account name.
    #[error(
        "`name` {name:?} cannot be an account's: it has 1 to {MAX_ACCOUNT_NAME_BYTES} lowercase letters, digits and `-`, \
         which is not the first"
    )]
    AccountName {
        /// The name, truncated.
        name: String,
    },
    #[error("`roots` is empty; name at least one absolute path, or leave it out")]
    NoRoots,
    /// A path that cannot be a root.
    #[error("`roots` holds {root:?}: {why}; give absolute paths such as /srv/acme")]
    Root {
        /// The path, truncated.
        root: String,
        why: &'static str,
    },
    /// A text that is not a network.
    #[error("`allowed_ips` holds {text:?}, which is not a CIDR, such as 192.0.2.0/24 or 2001:db8::/32")]
    NotANetwork {
        /// The text, truncated.
        text: String,
    },
    /// An IPv4-mapped IPv6 network.
    #[error("`allowed_ips` holds {text:?}: write it as an IPv4 network, such as 192.0.2.0/24")]
    MappedNetwork { text: String },
    #[error("`{field}` has {count} entries; the maximum is {MAX_LIST_ENTRIES}")]
    TooMany { field: &'static str, count: usize },
    /// A quota of memory or disk space above the maximum.
    #[error(
        "`{field}` is {mebibytes}; it must be a whole number from 0 to {MAX_QUOTA_MB}, or null for no limit"
    )]
    SizeLimit { field: &'static str, mebibytes: u64 },
    /// The roots of `default` cannot be set by a request.
    #[error(
        "the roots of the account `{DEFAULT_ACCOUNT}` are those of `skep serve --root`; start the server with others"
    )]
    DefaultRoots,
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidToken => ErrorCode::InvalidToken,
            Self::TokenExpired => ErrorCode::TokenExpired,
            Self::NoPermissions | Self::VmMissing | Self::SuccessorExpired { .. } => {
                ErrorCode::MissingParameter
            }
            Self::DefaultRoots => ErrorCode::AccountProtected,
            Self::Escalation { .. } | Self::StrongerKey { .. } => ErrorCode::ScopeMissing,
            Self::NotAHash { .. }
            | Self::NameLength { .. }
            | Self::NameControl { .. }
            | Self::NameHoldsKey
            | Self::RoleAndScopes
            | Self::NoScopes
            | Self::ExpiryPassed { .. }
            | Self::VmWithoutRole
            | Self::ServerAdminElsewhere { .. }
            | Self::AccountName { .. }
            | Self::NoRoots
            | Self::Root { .. }
            | Self::NotANetwork { .. }
            | Self::MappedNetwork { .. }
            | Self::TooMany { .. }
            | Self::SizeLimit { .. } => ErrorCode::InvalidValue,
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(refusal: Error) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}

fn joined(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| format!("`{scope}`")).collect::<Vec<_>>().join(", ")
}
