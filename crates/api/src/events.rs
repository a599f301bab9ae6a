//! Events: changes in an account, in the order of their commits, as they are sent in a stream.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    KeyId, Role, Scope, TemplateId, VmId, VmName,
    ids::NotAnId,
    scope::{UnknownWord, words},
    swarm::{BootReceipt, EndReason, PausedBy, PausedTo, ResumedBy},
    templates::TemplateName,
    tickets::Ticket,
};

/// The response header of an event stream with the position at which it begins. A client can resume there even before
/// the first event.
pub const EVENT_ID_HEADER: &str = "skep-event-id";
/// The type of the event that marks missing events before it.
pub const STREAM_GAP: &str = "stream.gap";
/// The type of the first event in the stream of one ticket.
pub const TICKET_CURRENT: &str = "ticket.current";

/// The number of hexadecimal digits of an epoch.
const EPOCH_DIGITS: usize = 16;
/// The maximum number of decimal digits of a sequence number.
const MAX_SEQUENCE_DIGITS: usize = 18;

/// The id of an event: `evt_EPOCH_SEQUENCE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    /// The epoch of the store, 16 hexadecimal digits. It changes when a backup is restored; sequence numbers of
    /// different epochs are not comparable.
    pub epoch: String,
    /// The position in the order of commits. 0 is the position before the first event.
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
            let is_valid = epoch.len() == EPOCH_DIGITS
                && epoch.bytes().all(hex)
                && sequence.len() <= MAX_SEQUENCE_DIGITS;
            let id = Self { epoch: epoch.to_owned(), sequence: sequence.parse().ok()? };
            // Each id has one spelling.
            (is_valid && id.to_string() == text).then_some(id)
        };
        let wanted = "an event's id (`evt_`, 16 digits, `_` and a number)";
        read().ok_or_else(|| NotAnId { text: text.to_owned(), wanted })
    }
}

/// An event of any type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The id, in the form of an [`EventId`].
    pub id: String,
    /// The type of the event, such as `vm.booted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// When the change was committed.
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused the change; null if the server itself made it.
    #[serde(default)]
    pub request_id: Option<String>,
    /// The other fields, which depend on the type.
    #[serde(flatten)]
    pub body: Map<String, Value>,
}

/// A change of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmEvent {
    /// The event's id: the epoch of the store, and the position in the order of commits.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// The type: `vm.booted`, `vm.renamed`, `vm.paused`, `vm.resumed`, `vm.snapshotted`, `vm.outdated` or `vm.ended`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "vm.booted"))]
    pub kind: String,
    /// When the change was committed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused the change; null if the server itself made it.
    pub request_id: Option<String>,
    /// The id of the VM.
    pub vm: VmId,
    /// The process id of the VM on the server; of its last process, if the VM was paused to disk.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: u32,
    /// With `vm.snapshotted`: the id of the template that the snapshot became. `name` is its name then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateId>,
    /// The name of the VM after the change; null if it has none.
    #[cfg_attr(feature = "openapi", schema(inline))]
    #[serde(default)]
    pub name: Option<VmName>,
    /// With `vm.booted`: how the VM was booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootReceipt>,
    /// With `vm.renamed`: the previous name; null or absent if the VM had none.
    #[cfg_attr(feature = "openapi", schema(inline))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<VmName>,
    /// With `vm.paused`: where the VM's memory is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_to: Option<PausedTo>,
    /// With `vm.paused`: what paused the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<PausedBy>,
    /// With `vm.resumed`: why the VM was resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ResumedBy>,
    /// With `vm.resumed`: false if the VM started again from its disk alone, without its memory and processes; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// With `vm.ended`: why the VM ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// With `vm.ended` and the reason `lost`: why the server could not take the VM over, in one sentence. With `vm.outdated`: why
    /// the memory of the VM on disk cannot be used.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "its guest agent speaks protocol 1, this skep speaks 2")
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A change of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateEvent {
    /// The event's id: the epoch of the store, and the position in the order of commits.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// The type: `template.building`, `template.ready`, `template.failed`, `template.outdated` or `template.deleted`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "template.ready"))]
    pub kind: String,
    /// When the change was committed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused the change; null if the server itself made it.
    pub request_id: Option<String>,
    /// The id of the template.
    pub template: TemplateId,
    /// The name of the template.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = String, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$", example = "big")
    )]
    pub name: TemplateName,
    /// With `template.failed` and `template.outdated`: why no VM can be restored from the template.
    #[cfg_attr(feature = "openapi", schema(example = "it was built for another processor"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyEvent {
    /// The event's id: the epoch of the store, and the position in the order of commits.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// The type: `key.created`, `key.rotated` or `key.revoked`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "key.created"))]
    pub kind: String,
    /// When the change was committed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The request that caused the change; null if the server itself made it.
    pub request_id: Option<String>,
    /// The id of the key.
    pub key: KeyId,
    /// The name of the key.
    #[cfg_attr(feature = "openapi", schema(example = "ci"))]
    pub name: String,
    /// With `key.created`: the first characters of the key, up to its 8th hexadecimal digit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// With `key.created`: the role of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// With `key.created`: the scopes of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    /// The VM that the key is bound to; absent for other keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// With `key.created`: when the key expires.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// With `key.rotated`: the id of the new key with the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<KeyId>,
}

/// The first event in the stream of one ticket: the state of the ticket at the beginning of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CurrentTicket {
    /// The id of the last event that is included in the record.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// Always `ticket.current`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "ticket.current"))]
    pub kind: String,
    /// When the record was read.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The record of the ticket.
    pub ticket: Ticket,
}

words! {
    /// Why events are missing.
    GapReason, "reason":
    /// The events are older than the retention period.
    Expired = "expired",
    /// A backup was restored; events after the backup are unknown to this server.
    Restored = "restored",
}

/// Marks missing events: the client must read the state again, then can continue with the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamGap {
    /// The position after which the stream continues.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// Always `stream.gap`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "stream.gap"))]
    pub kind: String,
    /// When the gap was detected.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The reason for the gap.
    pub reason: GapReason,
    /// The position from which the client resumed.
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
