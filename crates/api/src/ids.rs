//! Identifiers. Each kind of id is a distinct type, parsed when a request arrives.

use std::{
    fmt,
    str::FromStr,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct NotAnId {
    /// The text that was given.
    pub text: String,
    /// The expected kind of id, with its form.
    pub wanted: &'static str,
}

/// Of ids of the same millisecond, one after the last; otherwise the new one.
fn successor(last: Ulid, new: Ulid) -> Ulid {
    if last.timestamp_ms() != new.timestamp_ms() || new > last {
        return new;
    }
    // A random step, so that callers can name the ids of one millisecond by a short beginning.
    let random = last.random() + 1 + (new.random() & STEP_MASK);
    if random < 1 << Ulid::RAND_BITS {
        return Ulid::from_parts(last.timestamp_ms(), random);
    }
    // The last possible id of a millisecond has no successor in it.
    last.increment().unwrap_or(new)
}

/// Steps are so small that hundreds fit into a millisecond.
const STEP_MASK: u128 = (1 << 72) - 1;

macro_rules! ulid_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $wanted:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Ulid);

        impl $name {
            /// Creates an id that sorts after all ids of this kind that this process created before, and after all that this machine
            /// created before the current millisecond, unless the clock was set back.
            pub fn generate() -> Self {
                static LAST: Mutex<Ulid> = Mutex::new(Ulid::nil());
                let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
                *last = successor(*last, Ulid::generate());
                Self(*last)
            }

            /// Creates an id that sorts after `last`, even if the clock was set back.
            pub fn generate_after(last: Option<Self>) -> Self {
                let new = Self::generate();
                match last {
                    // The last possible id has no successor.
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
                // Each id has one spelling, because logs, cursors and tags compare ids as text.
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
                    // 128 bits in 26 base-32 digits: the first digit has three bits only.
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
    /// The id of a VM: `vm_` and 26 characters. Never reused.
    VmId, "vm_", "a VM's id (`vm_` and 26 characters)"
);
ulid_id!(
    /// The id of a template: `tpl_` and 26 characters. Never reused.
    TemplateId, "tpl_", "a template's id (`tpl_` and 26 characters)"
);

impl TemplateId {
    /// The template `base`, with the same id in every installation.
    pub const BASE: Self = Self(Ulid::nil());
}

ulid_id!(
    /// The id of a key's record, which is not secret: `key_` and 26 characters.
    KeyId, "key_", "a key's id (`key_` and 26 characters)"
);
ulid_id!(
    /// The id of an account: `acc_` and 26 characters.
    AccountId, "acc_", "an account's id (`acc_` and 26 characters)"
);
ulid_id!(
    /// The id of a waitlist entry: `wait_` and 26 characters.
    WaitlistId, "wait_", "the id of a waitlist entry (`wait_` and 26 characters)"
);
ulid_id!(
    /// The id of a ticket: `tkt_` and 26 characters, sorted by time of creation. Never reused.
    TicketId, "tkt_", "a ticket's id (`tkt_` and 26 characters)"
);
ulid_id!(
    /// The id of an audit entry: `aud_` and 26 characters. It serves as a cursor.
    AuditId, "aud_", "an audit entry's id (`aud_` and 26 characters)"
);
ulid_id!(
    /// The id of a webhook: `wh_` and 26 characters.
    WebhookId, "wh_", "a webhook's id (`wh_` and 26 characters)"
);
ulid_id!(
    /// The id of a delivery, which is one event for one webhook: `dlv_` and 26 characters, sorted in the order of
    /// events.
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
    fn ids_of_one_millisecond_sort_in_order_of_creation() {
        let ids: Vec<_> = (0..10_000).map(|_| KeyId::generate()).collect();
        assert!(ids.is_sorted_by(|one, next| one < next));
        // An earlier clock is not hidden.
        let (earlier, later) = (Ulid::from_parts(1, 5), Ulid::from_parts(2, 5));
        assert_eq!(successor(later, earlier), earlier);
        assert_eq!(successor(earlier, later), later);
        assert_eq!(successor(later, Ulid::from_parts(2, 3)), Ulid::from_parts(2, 9));
        assert_eq!(successor(later, Ulid::from_parts(2, 7)), Ulid::from_parts(2, 7));
        let nearly_last = Ulid::from_parts(2, u128::MAX - 1);
        assert_eq!(successor(nearly_last, Ulid::from_parts(2, 3)), Ulid::from_parts(2, u128::MAX));
    }

    #[test]
    fn ticket_ids_sort_in_order_of_creation() {
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
