//! `GET /api/health`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::extract::State;
use skep_api::{
    ErrorCode,
    health::{CheckHealth, Health, HealthChecks, HealthStatus},
};
use skep_store::HealthStore;

use super::{
    Answer, Routes,
    handle::{self, Operation},
};
use crate::{error::Refusal, json::Json, openapi::endpoint::describe, swarm_handle::SwarmHandle};

/// How long the store may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Free space below which the check warns: the disks of a few VMs would fill it.
const LOW_DISK_BYTES: u64 = 1 << 30;
const OK: &str = "ok";

/// The sources of the health check.
#[derive(Clone)]
pub(crate) struct HealthState {
    pub store: Arc<dyn HealthStore>,
    pub vms: SwarmHandle,
    pub data_dir: PathBuf,
    pub started: Instant,
}

pub(crate) fn routes(state: HealthState) -> Routes {
    vec![handle::route::<CheckHealth, _, _, _>(describe::<CheckHealth>(), health, state)]
}

async fn health(State(vitals): State<HealthState>, _: Operation<CheckHealth>) -> Answer<Health> {
    if let Err(error) = vitals.store.ping(PING_TIMEOUT).await {
        tracing::warn!(%error, "health: the store is unavailable");
        return Err(Refusal::new(ErrorCode::StoreUnavailable, "the store is unavailable; try again later"));
    }
    let engine = engine_check(&vitals.vms);
    let disk = tokio::task::spawn_blocking(move || (disk_check(&vitals.data_dir), vitals.started));
    let (disk, started) = disk.await.map_err(|error| Refusal::internal(error.to_string()))?;
    let is_healthy = [&engine, &disk].iter().all(|check| *check == OK);
    Ok(Json(Health {
        status: if is_healthy { HealthStatus::Ok } else { HealthStatus::Degraded },
        uptime: started.elapsed().as_secs_f64(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        checks: HealthChecks { store: OK.to_owned(), engine, disk },
    }))
}

/// The answer is public, so the reason, which may contain paths, is only in the log and in the output of `skep doctor`.
fn engine_check(vms: &SwarmHandle) -> String {
    let working = vms.swarm_now().map_err(|failure| failure.message).and_then(|swarm| swarm.health());
    match working {
        Ok(()) => OK.to_owned(),
        Err(reason) => {
            tracing::debug!(reason, "health: no VM can be booted");
            "no VM can be booted; `skep doctor` says why".to_owned()
        }
    }
}

fn disk_check(data_dir: &Path) -> String {
    match rustix::fs::statvfs(data_dir) {
        Ok(disk) => match disk.f_bavail.saturating_mul(disk.f_frsize) {
            free if free < LOW_DISK_BYTES => {
                format!("only {} MiB are free where the data lies; free some space", free >> 20)
            }
            _ => OK.to_owned(),
        },
        Err(error) => format!("the data directory cannot be looked at: {error}"),
    }
}
