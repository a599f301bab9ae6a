//! The VMs of a measurement: boots them, runs commands in them and ends them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{anyhow, bail};
use futures_util::future::join_all;
use serde_json::{Map, Value};
use skep_api::{
    ErrorCode,
    exec::ExecRequest,
    swarm::{BASE_TEMPLATE, BootRequest, PoolState, SwarmStatus, Vm},
};
use skep_client::{Answered, Client};
use tokio::{
    sync::RwLock,
    time::{sleep, sleep_until},
};

use crate::percentiles::rounded;

/// Name of the metadata field that identifies the measurement to which a VM belongs.
const MEASUREMENT_KEY: &str = "skep-bench";
/// Lifetime of the VMs, in case the measurement is killed.
const TTL_MS: u64 = 30 * 60 * 1000;
/// Time limit for the pool to fill up.
const POOL_TIMEOUT: Duration = Duration::from_secs(180);
const POOL_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// VMs of a page, the most that the API allows.
const PAGE: u32 = 1_000;

/// Boots VMs and ends those that are left over.
pub(crate) struct Fleet {
    client: Client,
    template: Option<String>,
    mark: String,
    /// Held by each boot until it is answered: the server completes a boot even if its caller disconnects.
    pending_boots: Arc<RwLock<()>>,
}

/// A VM with the time from the boot request to the result of its first command, in milliseconds.
pub(crate) struct Booted {
    pub(crate) vm: Vm,
    pub(crate) tti_ms: Result<f64, String>,
}

impl Fleet {
    pub(crate) fn new(client: Client, template: Option<String>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            client,
            template,
            mark: format!("{}-{}", std::process::id(), now.as_micros()),
            pending_boots: Arc::default(),
        }
    }

    pub(crate) async fn status(&self) -> anyhow::Result<Answered<SwarmStatus>> {
        Ok(self.client.swarm().await?)
    }

    /// The pool of the template.
    pub(crate) async fn pool(&self) -> anyhow::Result<PoolState> {
        let name = self.template.as_deref().unwrap_or(BASE_TEMPLATE);
        let pool = self.status().await?.pool.get(name).copied();
        Ok(pool.unwrap_or(PoolState { ready: 0, target: 0 }))
    }

    /// Waits until the pool is full.
    pub(crate) async fn wait_for_pool(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let PoolState { ready, target } = self.pool().await?;
            if ready >= target {
                return Ok(());
            }
            if begun.elapsed() > POOL_TIMEOUT {
                bail!(
                    "{ready} of {target} VMs are ready after {POOL_TIMEOUT:?}; does another client boot VMs meanwhile?"
                );
            }
            sleep(POOL_POLL_INTERVAL).await;
        }
    }

    /// Boots VMs by one request and runs a first command in each.
    pub(crate) async fn boot_batch(&self, count: u32) -> Vec<Result<Booted, String>> {
        let request = BootRequest {
            count: Some(count),
            template: self.template.clone(),
            ttl_ms: Some(TTL_MS),
            metadata: Some(Map::from_iter([(MEASUREMENT_KEY.to_owned(), Value::String(self.mark.clone()))])),
            ..BootRequest::default()
        };
        let client = self.client.clone();
        let under_way = Arc::clone(&self.pending_boots).read_owned().await;
        let sent = Instant::now();
        let boot = tokio::spawn(async move {
            let _under_way = under_way;
            client.boot(&request).await.map_err(|error| error.to_string())
        });
        match boot.await.map_err(|error| error.to_string()).flatten() {
            Ok(answer) => {
                let used = answer.value.vms.into_iter().map(|vm| async move {
                    let tti_ms = self.command(&vm).await.map(|()| milliseconds(sent.elapsed()));
                    Ok(Booted { vm, tti_ms })
                });
                join_all(used).await
            }
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    /// Boots VMs by one request each, at a fixed interval, and runs a first command in each.
    pub(crate) async fn boot_staggered(&self, count: u32, every: Duration) -> Vec<Result<Booted, String>> {
        let begun = tokio::time::Instant::now();
        let one = |number: u32| async move {
            sleep_until(begun + every * number).await;
            self.boot_batch(1).await
        };
        join_all((0..count).map(one)).await.into_iter().flatten().collect()
    }

    /// Runs a command that does nothing.
    pub(crate) async fn command(&self, vm: &Vm) -> Result<(), String> {
        let request = ExecRequest { command: "true".to_owned(), ..ExecRequest::default() };
        match self.client.exec_in(&vm.id.to_string(), &request).await {
            Ok(outcome) if outcome.exit_code == Some(0) => Ok(()),
            Ok(outcome) => Err(format!("`true` in VM {} ended with {:?}", vm.id, outcome.value)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Ends VMs concurrently and returns the failures.
    pub(crate) async fn end(&self, vms: impl IntoIterator<Item = Vm>) -> Vec<String> {
        let ends = vms.into_iter().map(|vm| async move {
            let ended = self.client.end_vm(&vm.id.to_string()).await;
            ended.err().map(|error| format!("VM {} could not be ended: {error}", vm.id))
        });
        join_all(ends).await.into_iter().flatten().collect()
    }

    /// Waits for pending boots and ends all VMs of this measurement.
    pub(crate) async fn end_all(&self) -> anyhow::Result<()> {
        let _answered = self.pending_boots.write().await;
        let ends = self.own_vms().await?.map(|vm| async move {
            let ended = self.client.end_vm(&vm.id.to_string()).await;
            // An end that the measurement requested before it was stopped may be over by now.
            let failure = ended.err().filter(|error| !error.has_code(ErrorCode::UnknownVm));
            failure.map(|error| anyhow!("VM {} could not be ended: {error}", vm.id))
        });
        join_all(ends).await.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// The VMs of this measurement that have not ended.
    async fn own_vms(&self) -> anyhow::Result<impl Iterator<Item = Vm>> {
        let is_own = |vm: &Vm| vm.metadata.get(MEASUREMENT_KEY).and_then(Value::as_str) == Some(&self.mark);
        // By id, because a VM that ends while the pages are read can be on two of them.
        let mut vms = BTreeMap::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = self.client.vms(PAGE, cursor.as_deref()).await?.value;
            vms.extend(page.vms.into_iter().filter(is_own).map(|vm| (vm.id, vm)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(vms.into_values());
            }
        }
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}
