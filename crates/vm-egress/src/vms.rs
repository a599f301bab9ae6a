//! What the process knows of each VM: its policy, limits, counters and last tries.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
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
use skep_keeper_protocol::{EgressRefusal, EgressTotals};
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
    /// Those of VMs that ended.
    ended: Mutex<EgressTotals>,
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
    noted: Mutex<Noted>,
    /// The addresses of names that were looked up.
    names: Mutex<HashSet<Ipv4Addr>>,
}

/// The tries of a VM.
#[derive(Debug, Default)]
struct Noted {
    refused: BTreeMap<EgressRefusal, u64>,
    /// The last ones, oldest first.
    tries: VecDeque<EgressTry>,
}

/// The outcome of a try, with the reason.
#[derive(Debug)]
pub(crate) enum Outcome {
    Allowed,
    Refused(EgressRefusal, String),
    Failed(String),
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
        Self { limits, ..Self::default() }
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
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            vm.add_to(&mut ended);
            ended.open_connections = 0;
        }
    }

    /// The sums over all VMs, with those that ended.
    pub(crate) fn totals(&self) -> EgressTotals {
        let mut totals = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.vms().values().for_each(|vm| vm.add_to(&mut totals));
        totals
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
            noted: Mutex::default(),
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
    pub(crate) fn note(&self, target: &Target, outcome: Outcome) {
        let mut noted = self.noted();
        let (verdict, reason) = match outcome {
            Outcome::Allowed => (EgressVerdict::Allowed, None),
            Outcome::Refused(refusal, reason) => {
                *noted.refused.entry(refusal).or_default() += 1;
                (EgressVerdict::Refused, Some(reason))
            }
            Outcome::Failed(reason) => (EgressVerdict::Failed, Some(reason)),
        };
        if noted.tries.len() == MAX_TRIES {
            noted.tries.pop_front();
        }
        noted.tries.push_back(EgressTry {
            at: Timestamp::now(),
            name: target.name.as_deref().map(str::to_owned),
            address: target.address,
            port: target.port,
            verdict,
            reason,
        });
    }

    /// Counts a refusal without a try, for what a VM can do so often that it would fill the list of tries.
    pub(crate) fn count_refusal(&self, refusal: EgressRefusal) {
        *self.noted().refused.entry(refusal).or_default() += 1;
    }

    pub(crate) fn report(&self) -> EgressReport {
        let noted = self.noted();
        EgressReport {
            policy: (*self.policy()).clone(),
            open_connections: self.open_connections(),
            sent_bytes: self.sent.total.load(Ordering::Relaxed),
            received_bytes: self.received.total.load(Ordering::Relaxed),
            refused: noted.refused.values().sum(),
            tries: noted.tries.iter().cloned().collect(),
        }
    }

    fn add_to(&self, totals: &mut EgressTotals) {
        totals.open_connections += self.open_connections();
        totals.sent_bytes += self.sent.total.load(Ordering::Relaxed);
        totals.received_bytes += self.received.total.load(Ordering::Relaxed);
        for (refusal, count) in &self.noted().refused {
            *totals.refused.entry(*refusal).or_default() += count;
        }
    }

    fn open_connections(&self) -> u64 {
        u64::from(self.limits.connections.get()).saturating_sub(self.connections.available_permits() as u64)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_keep_what_ended_vms_did() {
        let vms = Vms::new(Limits::default());
        let addresses = [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3)];
        let target = Target { name: None, address: None, port: Some(443) };
        for address in addresses {
            vms.set(address, EgressPolicy::All);
            let vm = vms.find(address).unwrap();
            vm.note(&target, Outcome::Refused(EgressRefusal::Policy, "a reason".to_owned()));
            vm.note(&target, Outcome::Allowed);
            vm.sent.total.fetch_add(7, Ordering::Relaxed);
        }
        let before = vms.totals();
        assert_eq!((before.sent_bytes, &before.refused), (14, &BTreeMap::from([(EgressRefusal::Policy, 2)])));
        vms.forget(addresses[0]);
        assert_eq!(vms.totals(), before);
    }
}
