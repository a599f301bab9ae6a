//! What the process knows of each VM: its policy, limits, counters and last tries.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use jiff::Timestamp;
use skep_api::egress::{EgressPolicy, EgressReport, EgressTry, EgressVerdict};
use tokio::sync::{Semaphore, watch};

use crate::limits::{Bucket, Limits};

/// How many seconds' new connections a VM may open at once.
const CONNECTION_BURST: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Queries of a VM in a second.
const QUERY_RATE: NonZeroU32 = NonZeroU32::new(200).unwrap();
/// Different names that a VM may look up.
const MAX_NAMES: usize = 4096;
/// Tries that are kept for a VM.
const MAX_TRIES: usize = 100;

/// All VMs, by address.
#[derive(Debug, Default)]
pub(crate) struct Vms {
    limits: Limits,
    vms: Mutex<HashMap<Ipv4Addr, Arc<Vm>>>,
}

#[derive(Debug)]
pub(crate) struct Vm {
    policy: watch::Sender<Arc<EgressPolicy>>,
    limits: Limits,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) connection_rate: DefaultDirectRateLimiter,
    pub(crate) query_rate: DefaultDirectRateLimiter,
    pub(crate) sent: Arc<Direction>,
    pub(crate) received: Arc<Direction>,
    refused: AtomicU64,
    tries: Mutex<VecDeque<EgressTry>>,
    /// The addresses of names that were looked up.
    names: Mutex<HashSet<Ipv4Addr>>,
}

/// The target of a connection or of a look-up.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) address: Option<IpAddr>,
    /// `None` for the look-up of a name.
    pub(crate) port: Option<u16>,
}

/// The bytes of a VM in one direction.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) total: AtomicU64,
    pub(crate) rate: Bucket,
}

impl Vms {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, vms: Mutex::default() }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// `None` if the VM has no policy yet.
    pub(crate) fn find(&self, vm: Ipv4Addr) -> Option<Arc<Vm>> {
        self.vms().get(&vm).cloned()
    }

    pub(crate) fn set(&self, vm: Ipv4Addr, policy: EgressPolicy) {
        let policy = Arc::new(policy);
        let vm = Arc::clone(self.vms().entry(vm).or_insert_with(|| Arc::new(Vm::new(self.limits))));
        vm.policy.send_replace(policy);
    }

    pub(crate) fn forget(&self, vm: Ipv4Addr) {
        if let Some(vm) = self.vms().remove(&vm) {
            vm.policy.send_replace(Arc::new(EgressPolicy::None));
        }
    }

    /// The addresses of all VMs.
    pub(crate) fn addresses(&self) -> HashSet<Ipv4Addr> {
        self.vms().keys().copied().collect()
    }

    fn vms(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Arc<Vm>>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vm {
    fn new(limits: Limits) -> Self {
        let burst = limits.new_connections.saturating_mul(CONNECTION_BURST);
        let connection_rate = Quota::per_second(limits.new_connections).allow_burst(burst);
        let direction = || Arc::new(Direction { total: AtomicU64::new(0), rate: Bucket::new(limits.mbit) });
        Self {
            limits,
            policy: watch::Sender::default(),
            connections: Arc::new(Semaphore::new(limits.connections.get() as usize)),
            connection_rate: RateLimiter::direct(connection_rate),
            query_rate: RateLimiter::direct(Quota::per_second(QUERY_RATE)),
            sent: direction(),
            received: direction(),
            refused: AtomicU64::new(0),
            tries: Mutex::default(),
            names: Mutex::default(),
        }
    }

    pub(crate) fn policy(&self) -> Arc<EgressPolicy> {
        Arc::clone(&self.policy.borrow())
    }

    /// Waits until the policy does not satisfy a condition.
    pub(crate) async fn policy_forbids(&self, permits: impl Fn(&EgressPolicy) -> bool) {
        // The sender lives as long as `self`, so this never fails.
        let _ = self.policy.subscribe().wait_for(|policy| !permits(policy)).await;
    }

    /// Notes that the VM uses the address of a name. `false` if it uses too many.
    pub(crate) fn note_name(&self, address: Ipv4Addr) -> bool {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(&address) || (names.len() < MAX_NAMES && names.insert(address))
    }

    /// Notes a try for the report.
    pub(crate) fn note(&self, target: &Target, verdict: EgressVerdict, reason: Option<String>) {
        if verdict == EgressVerdict::Refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        if tries.len() == MAX_TRIES {
            tries.pop_front();
        }
        tries.push_back(EgressTry {
            at: Timestamp::now(),
            name: target.name.as_deref().map(str::to_owned),
            address: target.address,
            port: target.port,
            verdict,
            reason,
        });
    }

    pub(crate) fn report(&self) -> EgressReport {
        let tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        EgressReport {
            policy: (*self.policy()).clone(),
            open_connections: u64::from(self.limits.connections.get())
                .saturating_sub(self.connections.available_permits() as u64),
            sent_bytes: self.sent.total.load(Ordering::Relaxed),
            received_bytes: self.received.total.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            tries: tries.iter().cloned().collect(),
        }
    }
}
