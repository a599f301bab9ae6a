//! VMs that are only records in the store.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use skep_api::{
    AccountId, TemplateId, VmId,
    swarm::{BootReceipt, BootSource},
};
use skep_store::{RecordBoots, VmBooted};

use super::Skep;

/// The report of a boot that worked.
pub fn receipt() -> BootReceipt {
    BootReceipt {
        source: BootSource::Cold,
        restore_ms: 1.0,
        identity_ms: 1.0,
        ready_ms: 1.0,
        reseeded: true,
        clock_step_ms: 0.0,
    }
}

/// The id of a new VM. It sorts after those of earlier VMs, also within a millisecond, because lists are in that order.
fn next_id() -> VmId {
    static LAST: Mutex<Option<VmId>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let id = VmId::generate_after(*last);
    *last = Some(id);
    id
}

/// The record of a new VM.
pub fn booted(account: AccountId, pid: u32) -> VmBooted {
    VmBooted {
        parent: None,
        id: next_id(),
        account,
        pid,
        ip: "10.77.0.2".to_owned(),
        template: "base".to_owned(),
        template_id: TemplateId::BASE,
        vcpus: 1,
        memory_mb: 128,
        started_at: Timestamp::now(),
        ticket: None,
        exec_id: None,
        boot: receipt(),
        attributes: Default::default(),
    }
}

impl Skep {
    /// Records boots of VMs in the store.
    pub async fn record_boots(&self, vms: Vec<VmBooted>, at: Timestamp, request_id: Option<&str>) {
        let request_id = request_id.map(str::to_owned);
        let command = RecordBoots { vms, at, request_id, attempt: None, answer: None };
        self.store.record_boots(command).await.unwrap();
    }

    /// Records boots of this many VMs by the request `boot-1`.
    pub async fn boots(&self, count: u32) {
        let vms = (1..=count).map(|pid| booted(self.account.id, pid)).collect();
        self.record_boots(vms, Timestamp::now(), Some("boot-1")).await;
    }
}
