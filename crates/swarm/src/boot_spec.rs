//! Requests to the swarm, already validated.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::VmName;
use skep_store::{BootAttempt, IdempotentRequest};

/// Changes of a VM. A field that is `None` stays as it is.
#[derive(Debug, Clone, Default)]
pub struct VmChange {
    /// The inner `None` removes the name.
    pub name: Option<Option<VmName>>,
    /// Replaces all metadata.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// When the VM ends by itself; the inner `None` means never.
    pub expires_at: Option<Option<Timestamp>>,
}

#[derive(Debug, Clone)]
pub struct BootSpec {
    pub count: u32,
    /// Only with a `count` of 1.
    pub name: Option<VmName>,
    pub template: String,
    /// Time until the VMs end by themselves.
    pub ttl: Option<Duration>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Environment of every command in the VMs. Never in a record, event or log.
    pub env: BTreeMap<String, String>,
    pub arrived: Instant,
    /// `arrived` as wall-clock time.
    pub started_at: Timestamp,
    /// The API request, for events.
    pub request_id: String,
    /// The ticket that the VM works on, already claimed. Only with a `count` of 1.
    pub work: Option<BootAttempt>,
    /// Started in each VM after it is recorded; runs detached.
    pub command: Option<String>,
    /// The caller's idempotency key, with which the answer is stored.
    pub once: Option<IdempotentRequest>,
}
