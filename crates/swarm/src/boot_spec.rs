//! Requests to the swarm, already validated.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::VmId;
use skep_store::{BootAttempt, IdempotentRequest, VmAttributes};

/// What VMs begin with.
#[derive(Debug, Clone)]
pub enum BootFrom {
    Template {
        /// Its name or id.
        reference: String,
        /// Whether VMs of a snapshot begin with its memory, and not with its disk alone.
        memory: bool,
    },
    /// A copy of this VM, as it is now.
    Vm {
        vm: VmId,
        /// Whether the copies have the metadata of the VM, instead of those of the request.
        keeps_metadata: bool,
    },
}

#[derive(Debug, Clone)]
pub struct BootSpec {
    pub count: u32,
    /// With a name only if `count` is 1; without an expiry, which follows from `ttl`.
    pub attributes: VmAttributes,
    pub source: BootFrom,
    /// Whether VMs that begin with the state of another VM have its egress policy, for a snapshot that of its time, instead of
    /// that of `attributes`.
    pub keeps_egress: bool,
    /// Time until the VMs end by themselves.
    pub ttl: Option<Duration>,
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
