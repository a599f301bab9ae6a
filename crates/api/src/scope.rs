//! Permissions of a key: scopes, roles as presets of scopes, and the environment in the text of a key.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

// Defines an enum whose variants are fixed strings in JSON, with `ALL`, `as_str`, `Display`, `FromStr` and a schema.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal: $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// All variants, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The string in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        // utoipa's derive does not evaluate the `rename` attributes that this macro generates.
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

/// A string that is not one of the variants of an enum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; known: {known}")]
pub struct UnknownWord {
    pub(crate) text: String,
    pub(crate) what: &'static str,
    pub(crate) known: String,
}

words! {
    /// A permission of a key.
    Scope, "scope":
    /// Permits reading files.
    FilesRead = "files:read",
    /// Permits writing, moving and deleting files.
    FilesWrite = "files:write",
    /// Permits reading repositories.
    GitRead = "git:read",
    /// Permits changing repositories.
    GitWrite = "git:write",
    /// Permits reading the state of VMs.
    SwarmRead = "swarm:read",
    /// Permits booting, changing and ending VMs.
    SwarmWrite = "swarm:write",
    /// Permits running commands inside VMs.
    SwarmExec = "swarm:exec",
    /// Permits reading tickets.
    TicketsRead = "tickets:read",
    /// Permits creating, claiming and finishing tickets.
    TicketsWrite = "tickets:write",
    /// Permits reading metrics.
    MetricsRead = "metrics:read",
    /// Permits administration of the key's own account.
    Admin = "admin",
    /// Permits administration of the server: commands on it, restart, accounts.
    ServerAdmin = "server:admin",
}

words! {
    /// A preset of scopes.
    Role, "role":
    /// For agents: files, git, tickets, commands in VMs, and the state of VMs.
    Agent = "agent",
    /// The scopes of an agent, and management of VMs, and metrics.
    Operator = "operator",
    /// All scopes that the account may have.
    Admin = "admin",
    /// For a key bound to one VM: its files, repositories, commands and ticket.
    Vm = "vm",
}

words! {
    /// The environment in the text of a key.
    Environment, "environment":
    /// For production.
    Prod = "prod",
    /// For staging.
    Staging = "staging",
    /// For development.
    Dev = "dev",
    /// For tests.
    Test = "test",
}
