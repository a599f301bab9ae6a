//! `GET /api/system`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use skep_api::{
    TemplateId,
    system::{DamagedTemplate, DiskSpace, MachineMemory, ReadSystem, System, Versions},
    templates::TemplateState,
};
use skep_store::{KnownTemplate, Store};

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
};
use crate::{error::Refusal, request::API_VERSION, swarm_handle::SwarmHandle};

#[derive(Clone)]
pub(crate) struct SystemState {
    pub vms: SwarmHandle,
    pub store: Arc<dyn Store>,
    pub data_dir: PathBuf,
    pub started: Instant,
    pub started_at: Timestamp,
}

pub(crate) fn routes(state: &SystemState) -> Routes {
    endpoints![state; ReadSystem]
}

impl Handle<SystemState> for ReadSystem {
    async fn handle(self, state: SystemState, _: Request<()>) -> Result<System, Refusal> {
        let SystemState { vms, store, data_dir, started, started_at } = state;
        let damaged = store.known_templates().await?.into_iter().filter_map(damage).collect();
        let (swarm, swarm_unavailable) = match vms.swarm_now() {
            Ok(swarm) => (Some(swarm.state(damaged)), None),
            Err(failure) => (None, Some(failure.message)),
        };
        let read =
            tokio::task::spawn_blocking(move || Ok::<_, io::Error>((disk(&data_dir)?, memory()?))).await;
        let read = read.map_err(|error| Refusal::internal(error.to_string()))?;
        let (disk, memory) = read.map_err(|error| Refusal::internal(error.to_string()))?;
        Ok(System {
            versions: Versions {
                skep: env!("CARGO_PKG_VERSION").to_owned(),
                api: API_VERSION.to_owned(),
                kernel: kernel(),
                engine: swarm.as_ref().map(|swarm| swarm.engine.name.clone()),
            },
            started_at,
            uptime: started.elapsed().as_secs_f64(),
            disk,
            memory,
            swarm,
            swarm_unavailable,
        })
    }
}

/// The damage of a template, if it is damaged.
fn damage(template: KnownTemplate) -> Option<DamagedTemplate> {
    if template.state != TemplateState::Damaged {
        return None;
    }
    let id = template.id;
    let named = if id == TemplateId::BASE { template.name.to_string() } else { id.to_string() };
    Some(DamagedTemplate { template: named, message: template.reason.unwrap_or_default() })
}

fn disk(data_dir: &Path) -> io::Result<DiskSpace> {
    let disk = rustix::fs::statvfs(data_dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Ok(DiskSpace { size_bytes: bytes(disk.f_blocks), free_bytes: bytes(disk.f_bavail) })
}

fn memory() -> io::Result<MachineMemory> {
    let text = fs::read_to_string("/proc/meminfo")?;
    parse_memory(&text).ok_or_else(|| io::Error::other("/proc/meminfo cannot be parsed"))
}

fn parse_memory(meminfo: &str) -> Option<MachineMemory> {
    let megabytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kilobytes >> 10)
    };
    Some(MachineMemory { total_mb: megabytes("MemTotal")?, available_mb: megabytes("MemAvailable")? })
}

fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use skep_api::templates::TemplateSource;

    use super::*;

    #[test]
    fn damaged_templates_are_named_by_their_id_and_base_by_its_name() {
        let template = |id, name: &str, state| KnownTemplate {
            id,
            account: None,
            name: name.parse().unwrap(),
            source: TemplateSource::Base,
            state,
            reason: Some("layer.ext4 differs".to_owned()),
        };
        let (base, other) = (TemplateId::BASE, TemplateId::generate());
        for (id, name, expected) in [(base, "base", "base".to_owned()), (other, "big", other.to_string())] {
            let damaged = damage(template(id, name, TemplateState::Damaged)).unwrap();
            assert_eq!((damaged.template, damaged.message.as_str()), (expected, "layer.ext4 differs"));
            assert_eq!(damage(template(id, name, TemplateState::Outdated)), None);
        }
    }

    #[test]
    fn total_and_available_memory_are_parsed() {
        let text = "MemTotal:       24576000 kB\nMemFree:  10 kB\nMemAvailable:   12288000 kB\n";
        assert_eq!(parse_memory(text), Some(MachineMemory { total_mb: 24_000, available_mb: 12_000 }));
        for wrong in ["", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n"] {
            assert_eq!(parse_memory(wrong), None, "{wrong:?}");
        }
    }
}
