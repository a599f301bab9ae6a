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

/// Connections of a VM, including those for DNS.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// New connections of a VM in a second, and at once.
const CONNECTION_RATE: NonZeroU32 = NonZeroU32::new(200).unwrap();
const CONNECTION_BURST: NonZeroU32 = NonZeroU32::new(1000).unwrap();
/// Queries of a VM in a second.
const QUERY_RATE: NonZeroU32 = NonZeroU32::new(200).unwrap();
/// Different names that a VM may look up.
const MAX_NAMES: usize = 4096;
/// Tries that are kept for a VM.
const MAX_TRIES: usize = 100;

/// All VMs, by address.
#[derive(Debug, Default)]
pub(crate) struct Vms(Mutex<HashMap<Ipv4Addr, Arc<Vm>>>);

#[derive(Debug)]
pub(crate) struct Vm {
    policy: watch::Sender<Arc<EgressPolicy>>,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) connection_rate: DefaultDirectRateLimiter,
    pub(crate) query_rate: DefaultDirectRateLimiter,
    pub(crate) sent: Arc<AtomicU64>,
    pub(crate) received: Arc<AtomicU64>,
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

impl Vms {
    /// `None` if the VM has no policy yet.
    pub(crate) fn find(&self, vm: Ipv4Addr) -> Option<Arc<Vm>> {
        self.vms().get(&vm).cloned()
    }

    pub(crate) fn set(&self, vm: Ipv4Addr, policy: EgressPolicy) {
        let policy = Arc::new(policy);
        let vm = Arc::clone(self.vms().entry(vm).or_insert_with(|| Arc::new(Vm::new())));
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vm {
    fn new() -> Self {
        let connection_rate = Quota::per_second(CONNECTION_RATE).allow_burst(CONNECTION_BURST);
        Self {
            policy: watch::Sender::default(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            connection_rate: RateLimiter::direct(connection_rate),
            query_rate: RateLimiter::direct(Quota::per_second(QUERY_RATE)),
            sent: Arc::default(),
            received: Arc::default(),
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
            open_connections: (MAX_CONNECTIONS - self.connections.available_permits()) as u64,
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            tries: tries.iter().cloned().collect(),
        }
    }
}
