//! What a key may do: scopes, the roles that are presets of them, and the environment in a key's name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal: $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// All of them, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        // The derive does not see through a macro what the words on the wire are.
        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some(concat!("One ", $what, ".")))
                    .enum_values(Some(Self::ALL.iter().map(|word| word.as_str())))
                    .into()
            }
        }
        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|word| word.as_str() == text).ok_or_else(|| UnknownWord {
                    text: text.to_owned(),
                    what: $what,
                    known: [$($text),+].join(", "),
                })
            }
        }
    };
}

pub(crate) use words;

/// A word that is none of those known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; known: {known}")]
pub struct UnknownWord {
    pub(crate) text: String,
    pub(crate) what: &'static str,
    pub(crate) known: String,
}

words! {
    /// One permission of a key.
    Scope, "scope":
    /// Read files.
    FilesRead = "files:read",
    /// Write, move and delete files.
    FilesWrite = "files:write",
    /// Read repositories.
    GitRead = "git:read",
    /// Change repositories.
    GitWrite = "git:write",
    /// See VMs.
    SwarmRead = "swarm:read",
    /// Boot, change and end VMs.
    SwarmWrite = "swarm:write",
    /// Run commands inside VMs.
    SwarmExec = "swarm:exec",
    /// Read tickets.
    TicketsRead = "tickets:read",
    /// Create, claim and finish tickets.
    TicketsWrite = "tickets:write",
    /// Read metrics.
    MetricsRead = "metrics:read",
    /// Administer the key's own account.
    Admin = "admin",
    /// Administer the server: exec on it, restart, accounts.
    ServerAdmin = "server:admin",
}

words! {
    /// A preset of scopes.
    Role, "role":
    /// What an agent needs.
    Agent = "agent",
    /// An agent's, and VMs and metrics.
    Operator = "operator",
    /// All that its account may have.
    Admin = "admin",
    /// Bound to one VM: files, git and exec of that VM.
    Vm = "vm",
}

words! {
    /// The environment in a key's name.
    Environment, "environment":
    /// Production.
    Prod = "prod",
    /// Staging.
    Staging = "staging",
    /// Development.
    Dev = "dev",
    /// Tests.
    Test = "test",
}
