//! Identifiers. Each is a type of its own, parsed at the door.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// A text that is no id of the sort that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct NotAnId {
    /// What was given.
    pub text: String,
    /// What was wanted, with its shape.
    pub wanted: &'static str,
}

macro_rules! ulid_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $wanted:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Ulid);

        impl $name {
            /// A new id, later in order than all that this machine made before this millisecond.
            pub fn generate() -> Self {
                Self(Ulid::generate())
            }

            /// A new id that is later in order than this one, whatever the clock says.
            pub fn generate_after(last: Option<Self>) -> Self {
                let new = Self::generate();
                match last {
                    // At the very end of all ids there is no later one.
                    Some(last) if new <= last => Self(last.0.increment().unwrap_or(new.0)),
                    _ => new,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.to_string().to_ascii_lowercase())
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;
            fn from_str(text: &str) -> Result<Self, NotAnId> {
                let wrong = || NotAnId { text: text.to_owned(), wanted: $wanted };
                let rest = text.strip_prefix($prefix).ok_or_else(wrong)?;
                let id = Self(Ulid::from_string(&rest.to_ascii_uppercase()).map_err(|_| wrong())?);
                // One spelling only: an id is compared as text elsewhere (logs, cursors, tags).
                if id.to_string() == text { Ok(id) } else { Err(wrong()) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotAnId;
            fn try_from(text: String) -> Result<Self, NotAnId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some(concat!($wanted, ".")))
                    // 128 bits in 26 digits of five: the first one has three.
                    .pattern(Some(concat!("^", $prefix, "[0-7][0-9a-hjkmnp-tv-z]{25}$")))
                    .examples([concat!($prefix, "01jv0000000000000000000000")])
                    .into()
            }
        }
        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

ulid_id!(
    /// A VM: `vm_` and 26 characters, never given twice.
    VmId, "vm_", "a VM's id (`vm_` and 26 characters)"
);
ulid_id!(
    /// A key's record, not its secret: `key_` and 26 characters.
    KeyId, "key_", "a key's id (`key_` and 26 characters)"
);
ulid_id!(
    /// An account: `acc_` and 26 characters.
    AccountId, "acc_", "an account's id (`acc_` and 26 characters)"
);
ulid_id!(
    /// An entry of the waitlist: `wait_` and 26 characters.
    WaitlistId, "wait_", "the id of an entry of the waitlist (`wait_` and 26 characters)"
);
ulid_id!(
    /// A ticket: `tkt_` and 26 characters, ordered by time, never given twice.
    TicketId, "tkt_", "a ticket's id (`tkt_` and 26 characters)"
);
ulid_id!(
    /// An entry of the audit: `aud_` and 26 characters.
    AuditId, "aud_", "a place in the audit (`aud_` and 26 characters)"
);
ulid_id!(
    /// A webhook: `wh_` and 26 characters.
    WebhookId, "wh_", "a webhook's id (`wh_` and 26 characters)"
);
ulid_id!(
    /// One event for one webhook: `dlv_` and 26 characters, in the order of events.
    DeliveryId, "dlv_", "a delivery's id (`dlv_` and 26 characters)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = VmId::generate();
        let text = id.to_string();
        assert_eq!(text.len(), 29);
        assert_eq!(text.parse::<VmId>(), Ok(id));
        assert!(text.to_ascii_uppercase().parse::<VmId>().is_err());
        assert!(text.replace("vm_", "key_").parse::<VmId>().is_err());
        assert!("vm_".parse::<VmId>().is_err());
    }

    #[test]
    fn ids_of_tickets_are_in_the_order_of_their_making() {
        let mut last = None;
        for _ in 0..1_000 {
            let next = TicketId::generate_after(last);
            assert!(Some(next) > last && Some(next.to_string()) > last.map(|id| id.to_string()));
            last = Some(next);
        }
        let far: TicketId = "tkt_7zzzzzzzzz0000000000000000".parse().unwrap();
        assert!(TicketId::generate_after(Some(far)) > far, "also with a clock that was set back");
    }
}
