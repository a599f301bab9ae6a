//! What the swarm is asked to do.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::VmName;
use skep_store::{BootedFor, Once};

/// What is to change of a VM, checked. What is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct VmChange {
    /// Its name; the inner `None` takes it away.
    pub name: Option<Option<VmName>>,
    /// In place of all metadata.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// When it ends by itself; the inner `None` is never.
    pub expires_at: Option<Option<Timestamp>>,
}

/// A boot, checked.
#[derive(Debug, Clone)]
pub struct BootOrder {
    /// How many VMs.
    pub count: u32,
    /// The name of the one VM of this order.
    pub name: Option<VmName>,
    /// The template's name.
    pub template: String,
    /// Time until they end by themselves.
    pub ttl: Option<Duration>,
    /// Kept with the record.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Seen by every command; never in a record, event or log.
    pub env: BTreeMap<String, String>,
    /// When the request arrived.
    pub arrived: Instant,
    /// The same by the wall clock.
    pub started_at: Timestamp,
    /// The request, for events.
    pub request_id: String,
    /// What the one VM of this order works on, claimed already.
    pub work: Option<BootedFor>,
    /// Is started in each VM once it is on record, and runs on by itself.
    pub command: Option<String>,
    /// What the caller named this boot, whose answer is kept then.
    pub once: Option<Once>,
}
