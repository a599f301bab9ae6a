//! What the process knows of each VM: its policy, limits, counters and last tries.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use jiff::Timestamp;
use serde::Serialize;
use skep_api::{
    AccountId,
    egress::{EgressPolicy, EgressReport, EgressTry, EgressVerdict, MAX_TRIES},
};
use skep_keeper_protocol::{EgressRefusal, EgressTotals, VmEgress};
use tokio::sync::{Semaphore, watch};

use crate::{
    limits::{Bucket, Limits},
    names::{self, ChosenBy, Names},
    transfer::MAX_LARGE_OF_VM,
};

/// How many seconds' new connections a VM may open at once.
const CONNECTION_BURST: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Queries of a VM in a second.
const QUERY_RATE: NonZeroU32 = NonZeroU32::new(200).unwrap();
/// Different names that a VM may look up.
pub(crate) const MAX_NAMES: usize = 4096;
/// Connections of a VM to the DNS forwarder.
const MAX_DNS_CONNECTIONS: usize = 16;
/// The largest report, in bytes of JSON. A packet to the keeper has at most 64 KiB.
const MAX_REPORT_BYTES: usize = 48 << 10;

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
    /// Unset as long as only the policy of an earlier release is known.
    account: OnceLock<AccountId>,
    limits: Limits,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) dns_connections: Arc<Semaphore>,
    pub(crate) large_buffers: Arc<Semaphore>,
    pub(crate) connection_rate: DefaultDirectRateLimiter,
    pub(crate) query_rate: DefaultDirectRateLimiter,
    pub(crate) sent: Direction,
    pub(crate) received: Direction,
    log: Mutex<ConnectionLog>,
    /// The placeholder addresses of names that it looked up or connected to, with their generations.
    names: Mutex<HashMap<Ipv4Addr, u32>>,
}

/// The tries of a VM.
#[derive(Debug, Default)]
struct ConnectionLog {
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

    pub(crate) fn set(&self, vm: Ipv4Addr, egress: VmEgress) {
        let VmEgress { policy, account } = egress;
        if self.find(vm).is_some_and(|known| account.is_some_and(|account| known.is_of_another(account))) {
            // Another VM has the address, and the end of the one before was not told.
            self.forget(vm);
        }
        let vm = Arc::clone(self.vms().entry(vm).or_insert_with(|| Arc::new(Vm::new(self.limits))));
        if let Some(account) = account {
            vm.account.get_or_init(|| account);
        }
        vm.policy.send_replace(Arc::new(policy));
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

    pub(crate) fn all(&self) -> Vec<Arc<Vm>> {
        self.vms().values().cloned().collect()
    }

    fn vms(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Arc<Vm>>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vm {
    fn new(limits: Limits) -> Self {
        let burst = limits.new_connections.saturating_mul(CONNECTION_BURST);
        let connection_rate = Quota::per_second(limits.new_connections).allow_burst(burst);
        let direction = || Direction { total: AtomicU64::new(0), rate: Bucket::new(limits.mbit) };
        Self {
            limits,
            policy: watch::Sender::default(),
            account: OnceLock::new(),
            connections: Arc::new(Semaphore::new(limits.connections.get() as usize)),
            dns_connections: Arc::new(Semaphore::new(MAX_DNS_CONNECTIONS)),
            large_buffers: Arc::new(Semaphore::new(MAX_LARGE_OF_VM)),
            connection_rate: RateLimiter::direct(connection_rate),
            query_rate: RateLimiter::direct(Quota::per_second(QUERY_RATE)),
            sent: direction(),
            received: direction(),
            log: Mutex::default(),
            names: Mutex::default(),
        }
    }

    pub(crate) fn policy(&self) -> Arc<EgressPolicy> {
        Arc::clone(&self.policy.borrow())
    }

    /// `None` as long as it is not known.
    pub(crate) fn account(&self) -> Option<AccountId> {
        self.account.get().copied()
    }

    /// Waits until the policy does not satisfy a condition.
    pub(crate) async fn policy_forbids(&self, permits: impl Fn(&EgressPolicy) -> bool) {
        // The sender lives as long as `self`, so this never fails.
        let _ = self.policy.subscribe().wait_for(|policy| !permits(policy)).await;
    }

    fn is_of_another(&self, account: AccountId) -> bool {
        self.account().is_some_and(|own| own != account)
    }

    /// The placeholder address of a name that the policy permits, which the VM uses from now on.
    pub(crate) fn use_name(&self, names: &Names, name: &str) -> Result<Ipv4Addr, names::Error> {
        // The limit of the VM is checked before a new name takes one of the addresses that all VMs share.
        let mut used = self.names();
        let is_used = names.find(name).is_some_and(|address| used.contains_key(&address));
        if !is_used && used.len() >= MAX_NAMES {
            return Err(names::Error::VmFull);
        }
        let chosen = if self.policy().lists_name(name) { ChosenBy::Policy } else { ChosenBy::Guest };
        let (address, generation) = names.address(name, self.account(), chosen)?;
        used.insert(address, generation);
        Ok(address)
    }

    /// The name of a placeholder address that the VM connects to. `None` if no name has it, or if the VM may mean another one.
    pub(crate) fn name_of(&self, names: &Names, address: Ipv4Addr) -> Option<Arc<str>> {
        match self.names().get(&address) {
            Some(generation) => names.name(address, *generation),
            None => names.known_name(address, self.account()),
        }
    }

    /// Calls a function with the placeholder addresses of names that the VM uses.
    pub(crate) fn with_names(&self, call: impl FnOnce(&HashMap<Ipv4Addr, u32>)) {
        call(&self.names());
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, u32>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a try to the report.
    pub(crate) fn record(&self, target: &Target, outcome: Outcome) {
        let mut log = self.log();
        let (verdict, reason) = match outcome {
            Outcome::Allowed => (EgressVerdict::Allowed, None),
            Outcome::Refused(refusal, reason) => {
                *log.refused.entry(refusal).or_default() += 1;
                (EgressVerdict::Refused, Some(reason))
            }
            Outcome::Failed(reason) => (EgressVerdict::Failed, Some(reason)),
        };
        if log.tries.len() == MAX_TRIES {
            log.tries.pop_front();
        }
        log.tries.push_back(EgressTry {
            at: Timestamp::now(),
            name: target.name.as_deref().map(str::to_owned),
            address: target.address,
            port: target.port,
            verdict,
            reason,
            git_relay: false,
        });
    }

    /// Counts a refusal without a try, for what a VM can do so often that it would fill the list of tries.
    pub(crate) fn count_refusal(&self, refusal: EgressRefusal) {
        *self.log().refused.entry(refusal).or_default() += 1;
    }

    /// What the VM tried. Without the oldest tries if the report would be too large otherwise.
    pub(crate) fn report(&self) -> EgressReport {
        let log = self.log();
        let mut report = EgressReport {
            policy: (*self.policy()).clone(),
            open_connections: self.open_connections(),
            sent_bytes: self.sent.total.load(Ordering::Relaxed),
            received_bytes: self.received.total.load(Ordering::Relaxed),
            refused: log.refused.values().sum(),
            tries: Vec::new(),
        };
        let mut bytes = json_bytes(&report);
        let newest = log.tries.iter().rev().take_while(|tried| {
            // With a comma.
            bytes += json_bytes(tried) + 1;
            bytes <= MAX_REPORT_BYTES
        });
        report.tries = newest.cloned().collect();
        report.tries.reverse();
        report
    }

    fn add_to(&self, totals: &mut EgressTotals) {
        totals.open_connections += self.open_connections();
        totals.sent_bytes += self.sent.total.load(Ordering::Relaxed);
        totals.received_bytes += self.received.total.load(Ordering::Relaxed);
        for (refusal, count) in &self.log().refused {
            *totals.refused.entry(*refusal).or_default() += count;
        }
    }

    fn open_connections(&self) -> u64 {
        u64::from(self.limits.connections.get()).saturating_sub(self.connections.available_permits() as u64)
    }

    fn log(&self) -> MutexGuard<'_, ConnectionLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The size of a value as JSON. One that cannot be serialized is too large for every limit.
fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 2, |json| json.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Vms {
        /// Sets the policy of a VM of no account.
        pub(crate) fn set_policy(&self, vm: Ipv4Addr, policy: EgressPolicy) {
            self.set(vm, VmEgress { policy, account: None });
        }
    }

    #[test]
    fn the_largest_report_is_limited_and_keeps_the_newest_tries() {
        let vms = Vms::new(Limits::default());
        let address = Ipv4Addr::new(10, 77, 0, 2);
        let long = |number: usize| format!("{number:03}.{}.example", vec!["n".repeat(59); 4].join("."));
        // 16 KiB of policy, and tries with the longest name and a reason of a guest.
        let policy: Vec<String> = (0..62).map(long).collect();
        vms.set_policy(address, EgressPolicy::listing(&policy).unwrap());
        let vm = vms.find(address).unwrap();
        let record = |number: usize, reason: &str| {
            let target = Target {
                name: Some(long(number).into()),
                address: Some([0xffff; 8].into()),
                port: Some(u16::MAX),
            };
            vm.record(&target, Outcome::Refused(EgressRefusal::OtherHost, reason.to_owned()));
        };
        (0..MAX_TRIES).for_each(|number| record(number, &"\u{10fffd}".repeat(64)));
        let report = vm.report();
        assert!(json_bytes(&report) <= MAX_REPORT_BYTES, "{}", json_bytes(&report));
        // Another try would not have fitted.
        assert!(json_bytes(&report) + 1000 > MAX_REPORT_BYTES && report.tries.len() < MAX_TRIES);
        assert_eq!(report.tries.last().unwrap().name, Some(long(MAX_TRIES - 1)));
        assert_eq!(report.refused, MAX_TRIES as u64);
        // The control: usual tries are all reported.
        vms.set_policy(address, EgressPolicy::All);
        let target = Target { name: Some("api.example.com".into()), address: None, port: None };
        for _ in 0..MAX_TRIES {
            vm.record(
                &target,
                Outcome::Refused(EgressRefusal::Policy, "the policy does not allow it".to_owned()),
            );
        }
        assert_eq!(vm.report().tries.len(), MAX_TRIES);
    }

    #[test]
    fn a_vm_of_another_account_gets_nothing_of_the_vm_that_had_its_address() {
        let vms = Vms::new(Limits::default());
        let (vm, accounts) = (Ipv4Addr::new(10, 77, 0, 2), [AccountId::generate(), AccountId::generate()]);
        // The account of a policy of an earlier release becomes known later.
        vms.set_policy(vm, EgressPolicy::All);
        let first = vms.find(vm).unwrap();
        vms.set(vm, VmEgress::new(accounts[0], EgressPolicy::All));
        assert!(Arc::ptr_eq(&first, &vms.find(vm).unwrap()));
        vms.set(vm, VmEgress::new(accounts[1], EgressPolicy::All));
        let second = vms.find(vm).unwrap();
        assert_eq!((first.account(), second.account()), (Some(accounts[0]), Some(accounts[1])));
        assert_eq!(*first.policy(), EgressPolicy::None, "its connections end");
    }

    #[test]
    fn the_sums_keep_what_ended_vms_did() {
        let vms = Vms::new(Limits::default());
        let addresses = [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3)];
        let target = Target { name: None, address: None, port: Some(443) };
        for address in addresses {
            vms.set_policy(address, EgressPolicy::All);
            let vm = vms.find(address).unwrap();
            vm.record(&target, Outcome::Refused(EgressRefusal::Policy, "a reason".to_owned()));
            vm.record(&target, Outcome::Allowed);
            vm.sent.total.fetch_add(7, Ordering::Relaxed);
        }
        let before = vms.totals();
        assert_eq!((before.sent_bytes, &before.refused), (14, &BTreeMap::from([(EgressRefusal::Policy, 2)])));
        vms.forget(addresses[0]);
        assert_eq!(vms.totals(), before);
    }
}
