//! Why a rule says no.

use jiff::Timestamp;
use skep_api::{ErrorCode, ErrorKind, Failure, Scope};

use crate::{
    account::{LARGEST_MEMORY_MB, LONGEST_ACCOUNT_NAME, MOST_ENTRIES},
    creation::MAX_NAME_CHARACTERS,
    roles::DEFAULT_ACCOUNT,
};

/// A refusal by the rules of keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A token of another shape, or one that nobody knows. The text is the spec's, exactly.
    #[error("Invalid token")]
    InvalidToken,
    /// A key that expired or was revoked. The text is the spec's, exactly.
    #[error("Token expired")]
    TokenExpired,
    /// A text that is no SHA-256 in hex. It is not repeated: it may be the secret itself.
    #[error("a text of {bytes} bytes is no hash of a key; it has 64 lowercase hex digits")]
    NotAHash {
        /// How long it is.
        bytes: usize,
    },
    /// A name that is empty or too long.
    #[error("`name` has {characters} characters; give 1 to {MAX_NAME_CHARACTERS}")]
    NameLength {
        /// How many it has.
        characters: usize,
    },
    /// A name that would break lines wherever it is shown.
    #[error("`name` {name:?} holds a control character; leave it out")]
    NameControl {
        /// The name.
        name: String,
    },
    /// A name that holds a secret. It is not repeated.
    #[error("`name` holds a key itself, and names are kept in clear; take another name")]
    NameHoldsKey,
    /// Neither a role nor scopes.
    #[error("`role` or `scopes` is missing; give exactly one of them")]
    NoPermissions,
    /// A role and scopes.
    #[error("`role` and `scopes` are both given; give exactly one of them")]
    RoleAndScopes,
    /// A list of scopes that is empty.
    #[error("`scopes` is empty; name at least one scope")]
    NoScopes,
    /// The end lies before the beginning.
    #[error("`expires_at` {expires_at} is not in the future: it is {now}")]
    ExpiryPassed {
        /// What was given.
        expires_at: Timestamp,
        /// The server's clock.
        now: Timestamp,
    },
    /// Role `vm` without a VM.
    #[error("`vm` is missing: a key with role `vm` is bound to one VM; name it by pid, id or name")]
    VmMissing,
    /// A VM without role `vm`.
    #[error("`vm` is only for keys with role `vm`; leave it out, or give that role")]
    VmWithoutRole,
    /// `server:admin` for a key of another account.
    #[error(
        "`server:admin` is only for keys of the account `{DEFAULT_ACCOUNT}`, not of `{account}`; leave it out"
    )]
    ServerAdminElsewhere {
        /// The account's name.
        account: String,
    },
    /// The creator would give what it does not have.
    #[error("this key lacks {} and cannot give what it lacks; ask with a key that has it", words(.missing))]
    Escalation {
        /// What it lacks.
        missing: Vec<Scope>,
    },
    /// The new key of a rotation would be expired from the beginning.
    #[error(
        "`expires_at` is missing: the key ended at {expires_at}, and one like it would have ended too; give when the new \
         one ends, or null"
    )]
    SuccessorExpired {
        /// When the old key ended.
        expires_at: Timestamp,
    },
    /// A name that no account can have.
    #[error(
        "`name` {name:?} cannot be an account's: it has 1 to {LONGEST_ACCOUNT_NAME} lowercase letters, digits and `-`, \
         which is not the first"
    )]
    AccountName {
        /// The name, or its beginning.
        name: String,
    },
    /// A list of roots that is empty.
    #[error("`roots` is empty; name at least one absolute path, or leave it out")]
    NoRoots,
    /// A path that cannot be a root.
    #[error("`roots` holds {root:?}: {why}; give absolute paths such as /srv/acme")]
    Root {
        /// The path, or its beginning.
        root: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A text that is no network.
    #[error("`allowed_ips` holds {text:?}, which is no CIDR; give such as 192.0.2.0/24 or 2001:db8::/32")]
    NotANetwork {
        /// The text, or its beginning.
        text: String,
    },
    /// An IPv4 network in the clothes of IPv6.
    #[error("`allowed_ips` holds {text:?}: write the IPv4 network itself, such as 192.0.2.0/24")]
    MappedNetwork {
        /// The text.
        text: String,
    },
    /// A list that is too long.
    #[error("`{field}` has {count} entries; {MOST_ENTRIES} is the most")]
    TooMany {
        /// Which list.
        field: &'static str,
        /// How many it has.
        count: usize,
    },
    /// A quota of more memory than there is anywhere.
    #[error(
        "`max_memory_mb` is {mebibytes}; it must be a whole number from 0 to {LARGEST_MEMORY_MB}, or null for no limit"
    )]
    MemoryLimit {
        /// What was given.
        mebibytes: u64,
    },
    /// The roots of `default`.
    #[error(
        "the roots of the account `{DEFAULT_ACCOUNT}` are those of `skep serve --root`; start the server with others"
    )]
    DefaultRoots,
}

impl Refusal {
    /// The stable name of the refusal.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidToken => ErrorCode::InvalidToken,
            Self::TokenExpired => ErrorCode::TokenExpired,
            Self::NoPermissions | Self::VmMissing | Self::SuccessorExpired { .. } => {
                ErrorCode::MissingParameter
            }
            Self::DefaultRoots => ErrorCode::AccountProtected,
            Self::Escalation { .. } => ErrorCode::ScopeMissing,
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
            | Self::MemoryLimit { .. } => ErrorCode::InvalidValue,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}

fn words(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| format!("`{scope}`")).collect::<Vec<_>>().join(", ")
}
