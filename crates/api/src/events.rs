//! Events: what happened, in the order of commits, as a stream tells it.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    KeyId, Role, Scope, VmId, VmName,
    ids::NotAnId,
    scope::{UnknownWord, words},
    swarm::EndReason,
    tickets::Ticket,
};

/// The header of a stream of events that names the place where it begins, to come back to before anything happened.
pub const EVENT_ID_HEADER: &str = "skep-event-id";
/// The event that says that others are missing before it.
pub const GAP: &str = "stream.gap";
/// The event that a stream of one ticket begins with.
pub const CURRENT: &str = "ticket.current";

/// The digits of an epoch.
const EPOCH: usize = 16;
/// The most digits of a sequence.
const LONGEST_SEQUENCE: usize = 18;

/// The id of an event: `evt_`, the epoch of the store, `_`, the place in the order of commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    /// The life of the store that it belongs to: sequences of two epochs cannot be compared.
    pub epoch: String,
    /// Its place in the order of commits. 0 is before the first event.
    pub sequence: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evt_{}_{}", self.epoch, self.sequence)
    }
}

impl FromStr for EventId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let read = || {
            let (epoch, sequence) = text.strip_prefix("evt_")?.split_once('_')?;
            let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            let good = epoch.len() == EPOCH && epoch.bytes().all(hex) && sequence.len() <= LONGEST_SEQUENCE;
            let id = Self { epoch: epoch.to_owned(), sequence: sequence.parse().ok()? };
            // One spelling only, as of every id.
            (good && id.to_string() == text).then_some(id)
        };
        let wanted = "an event's id (`evt_`, 16 digits, `_` and a number)";
        read().ok_or_else(|| NotAnId { text: text.to_owned(), wanted })
    }
}

/// An event of any sort.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its id.
    pub id: String,
    /// What sort of event it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// When.
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused it; null where the server itself did it.
    #[serde(default)]
    pub request_id: Option<String>,
    /// What it is about; the sort says which fields.
    #[serde(flatten)]
    pub body: Map<String, Value>,
}

/// What happened to a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmEvent {
    /// Its place in the order of commits, and the epoch of the store that it belongs to.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// `vm.booted`, `vm.renamed` or `vm.ended`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "vm.booted"))]
    pub kind: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused it; null where the server itself did it.
    pub request_id: Option<String>,
    /// The VM.
    pub vm: VmId,
    /// Its process on the server.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: u32,
    /// Its name then; null where it had none.
    #[cfg_attr(feature = "openapi", schema(inline))]
    #[serde(default)]
    pub name: Option<VmName>,
    /// Its name before, with `vm.renamed`; null where it had none.
    #[cfg_attr(feature = "openapi", schema(inline))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<VmName>,
    /// Why it ended, with `vm.ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyEvent {
    /// Its place in the order of commits, and the epoch of the store that it belongs to.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// `key.created`, `key.rotated` or `key.revoked`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "key.created"))]
    pub kind: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused it; null where the server itself did it.
    pub request_id: Option<String>,
    /// The key.
    pub key: KeyId,
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "ci"))]
    pub name: String,
    /// How its text begins, with `key.created`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Its role, with `key.created`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// What it may do, with `key.created`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    /// The VM that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// When it expires, with `key.created`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The key that took its name, with `key.rotated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<KeyId>,
}

/// The first event of a stream of one ticket: its record at that place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CurrentTicket {
    /// The place of the last event that the record contains.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// Always `ticket.current`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "ticket.current"))]
    pub kind: String,
    /// When it was read.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// Its record.
    pub ticket: Ticket,
}

words! {
    /// Why events are missing.
    GapReason, "reason":
    /// They are older than what is kept.
    Expired = "expired",
    /// A backup was restored: what happened since it was made is not known here.
    Restored = "restored",
}

/// Events are missing here: read again what you keep, and go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamGap {
    /// The place behind which the stream goes on.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// Always `stream.gap`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "stream.gap"))]
    pub kind: String,
    /// When it was found.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// Why.
    pub reason: GapReason,
    /// The place that the reader came from.
    #[cfg_attr(feature = "openapi", schema(example = "evt_8c1b4e5f673f2a9c_17"))]
    pub from: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = EventId { epoch: "3f2a9c0d1b4e5f67".to_owned(), sequence: 42 };
        assert_eq!("evt_3f2a9c0d1b4e5f67_42".parse(), Ok(id.clone()));
        assert_eq!(id.to_string(), "evt_3f2a9c0d1b4e5f67_42");
        assert!("evt_3f2a9c0d1b4e5f67_0".parse::<EventId>().is_ok());
        for wrong in [
            "",
            "42",
            "evt_42",
            "evt_3f2a9c0d1b4e5f67_",
            "evt_3f2a9c0d1b4e5f67_042",
            "evt_3f2a9c0d1b4e5f67_+42",
            "evt_3f2a9c0d1b4e5f67_-1",
            "evt_3F2A9C0D1B4E5F67_42",
            "evt_3f2a9c0d1b4e5f6_42",
            "evt_3f2a9c0d1b4e5f67_1234567890123456789",
            "evt_3f2a9c0d1b4e5f67_42 ",
        ] {
            assert!(wrong.parse::<EventId>().is_err(), "{wrong}");
        }
    }
}
