//! Why a rule says no.

use jiff::Timestamp;
use skep_api::{ErrorCode, ErrorKind, Failure, Scope};

use crate::{creation::MAX_NAME_CHARACTERS, roles::DEFAULT_ACCOUNT};

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
    #[error("`vm` is missing: a key with role `vm` is bound to one VM; name it by pid or id")]
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
}

impl Refusal {
    /// The stable name of the refusal.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidToken => ErrorCode::InvalidToken,
            Self::TokenExpired => ErrorCode::TokenExpired,
            Self::NoPermissions | Self::VmMissing => ErrorCode::MissingParameter,
            Self::Escalation { .. } => ErrorCode::ScopeMissing,
            Self::NotAHash { .. }
            | Self::NameLength { .. }
            | Self::NameControl { .. }
            | Self::RoleAndScopes
            | Self::NoScopes
            | Self::ExpiryPassed { .. }
            | Self::VmWithoutRole
            | Self::ServerAdminElsewhere { .. } => ErrorCode::InvalidValue,
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
