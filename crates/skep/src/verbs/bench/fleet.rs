//! The VMs of a measurement: booted, used once, ended.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use futures_util::future::join_all;
use serde_json::{Map, Value};
use skep_api::{
    exec::ExecRequest,
    swarm::{BASE_TEMPLATE, BootRequest, PoolState, SwarmStatus, Vm},
};
use skep_client::{Answered, Client};
use tokio::{
    sync::RwLock,
    time::{sleep, sleep_until},
};

use super::figures::rounded;

/// By this name the records of our VMs carry which measurement they belong to.
const MARK: &str = "skep-bench";
/// A measurement that was killed leaves its VMs no longer than this.
const TTL_MS: u64 = 30 * 60 * 1000;
/// How long the pool may take to be full again.
const POOL_PATIENCE: Duration = Duration::from_secs(180);
const POOL_LOOK: Duration = Duration::from_millis(50);

/// What boots VMs and knows them again.
pub(super) struct Fleet {
    client: Client,
    template: Option<String>,
    mark: String,
    /// Held by each boot that is not answered yet: a server finishes it though its caller has gone.
    under_way: Arc<RwLock<()>>,
}

/// A VM, and when the answer of its first command was there, in milliseconds since the boot was sent.
pub(super) struct Booted {
    pub(super) vm: Vm,
    pub(super) tti_ms: Result<f64, String>,
}

impl Fleet {
    pub(super) fn new(client: Client, template: Option<String>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            client,
            template,
            mark: format!("{}-{}", std::process::id(), now.as_micros()),
            under_way: Arc::default(),
        }
    }

    pub(super) async fn status(&self) -> anyhow::Result<Answered<SwarmStatus>> {
        Ok(self.client.swarm().await?)
    }

    /// What is kept ready of the template.
    pub(super) async fn pool(&self) -> anyhow::Result<PoolState> {
        let name = self.template.as_deref().unwrap_or(BASE_TEMPLATE);
        let pool = self.status().await?.pool.get(name).copied();
        Ok(pool.unwrap_or(PoolState { ready: 0, target: 0 }))
    }

    /// Waits until as many VMs are ready as there should be.
    pub(super) async fn wait_for_pool(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let PoolState { ready, target } = self.pool().await?;
            if ready >= target {
                return Ok(());
            }
            if begun.elapsed() > POOL_PATIENCE {
                bail!(
                    "{ready} of {target} VMs are ready after {POOL_PATIENCE:?}; does another client boot VMs meanwhile?"
                );
            }
            sleep(POOL_LOOK).await;
        }
    }

    /// Boots VMs by one request, and runs a first command in each.
    pub(super) async fn together(&self, count: u32) -> Vec<Result<Booted, String>> {
        let request = BootRequest {
            count: Some(count),
            name: None,
            template: self.template.clone(),
            ttl_ms: Some(TTL_MS),
            metadata: Some(Map::from_iter([(MARK.to_owned(), Value::String(self.mark.clone()))])),
            env: None,
            ticket: None,
            command: None,
            keep_vm: None,
        };
        let (client, under_way) = (self.client.clone(), Arc::clone(&self.under_way).read_owned().await);
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

    /// The same with a request for each, this far apart.
    pub(super) async fn staggered(&self, count: u32, every: Duration) -> Vec<Result<Booted, String>> {
        let begun = tokio::time::Instant::now();
        let one = |number: u32| async move {
            sleep_until(begun + every * number).await;
            self.together(1).await
        };
        join_all((0..count).map(one)).await.into_iter().flatten().collect()
    }

    /// Runs the command that does nothing.
    pub(super) async fn command(&self, vm: &Vm) -> Result<(), String> {
        let request = ExecRequest { command: "true".to_owned(), ..ExecRequest::default() };
        match self.client.exec_in(&vm.id.to_string(), &request).await {
            Ok(outcome) if outcome.exit_code == Some(0) => Ok(()),
            Ok(outcome) => Err(format!("`true` in VM {} ended with {:?}", vm.id, outcome.value)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Ends VMs, all at the same time. What goes wrong is told.
    pub(super) async fn end(&self, vms: impl IntoIterator<Item = Vm>) -> Vec<String> {
        let ends = vms.into_iter().map(|vm| async move {
            let ended = self.client.end_vm(&vm.id.to_string()).await;
            ended.err().map(|error| format!("VM {} could not be ended: {error}", vm.id))
        });
        join_all(ends).await.into_iter().flatten().collect()
    }

    /// Ends whatever is left of this measurement, once the boots under way are answered.
    pub(super) async fn end_all(&self) -> anyhow::Result<()> {
        let _answered = self.under_way.write().await;
        let ours = |vm: &Vm| vm.metadata.get(MARK).and_then(Value::as_str) == Some(&self.mark);
        let vms: Vec<Vm> = self.status().await?.value.vms.into_iter().filter(ours).collect();
        match self.end(vms).await.first() {
            None => Ok(()),
            Some(failure) => bail!("{failure}"),
        }
    }
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}
