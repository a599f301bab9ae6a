//! The state of the machine and the server.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    Scope,
    endpoint::{Access, Endpoint, Method, Route, Success},
    swarm::{Capacity, EngineReport, PoolState},
};

/// Reads the state of the machine: `GET /api/system`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadSystem {}

impl Endpoint for ReadSystem {
    const ROUTE: Route = Route {
        tag: "server",
        summary: "Read the state of the machine",
        description: "Returns versions, uptime, the space of the data directory's disk, the memory of the machine, and \
                      over all accounts the VMs, the pool and the damaged templates.",
        success: Success::Done("The machine and the server"),
        ..Route::new(Method::Get, "/api/system", "system", Access::AccountKey(&[Scope::ServerAdmin]))
    };
    type Path = ();
    type Answer = System;
}

/// The machine and the server. Answer of `GET /api/system`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct System {
    /// The versions of the server's parts.
    pub versions: Versions,
    /// When this server process started. A restart begins anew.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub started_at: Timestamp,
    /// Seconds since then.
    #[cfg_attr(feature = "openapi", schema(example = 3600.5))]
    pub uptime: f64,
    /// The file system of the data directory.
    pub disk: DiskSpace,
    /// The memory of the machine.
    pub memory: MachineMemory,
    /// The state of the swarm; null if this server runs no VMs.
    pub swarm: Option<SwarmState>,
    /// Why this server runs no VMs; null if it does.
    pub swarm_unavailable: Option<String>,
}

/// The versions of the server's parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Versions {
    /// The version of skep.
    #[cfg_attr(feature = "openapi", schema(example = "0.1.0"))]
    pub skep: String,
    /// The version of the API.
    #[cfg_attr(feature = "openapi", schema(example = "1.0"))]
    pub api: String,
    /// The kernel of the machine.
    #[cfg_attr(feature = "openapi", schema(example = "Linux 6.1.0-32-amd64"))]
    pub kernel: String,
    /// The VM engine, with its version; null if this server runs no VMs.
    #[cfg_attr(feature = "openapi", schema(example = "qemu 7.2.22"))]
    pub engine: Option<String>,
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskSpace {
    /// The size, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 107_374_182_400_u64))]
    pub size_bytes: u64,
    /// The space that the server can still use, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 53_687_091_200_u64))]
    pub free_bytes: u64,
}

/// The memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MachineMemory {
    /// All memory, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 32_000))]
    pub total_mb: u64,
    /// The memory that programs can still use without swapping, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 24_000))]
    pub available_mb: u64,
}

/// The state of the swarm over all accounts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = SystemSwarm))]
pub struct SwarmState {
    /// The VM engine.
    pub engine: EngineReport,
    /// The capacity of the machine.
    pub capacity: Capacity,
    /// The pools of VMs restored in advance, by template.
    pub pool: BTreeMap<String, PoolState>,
    /// The number of VMs of all accounts.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub vms: u32,
    /// The memory that the ends of all VMs, parked ones included, would free, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 512))]
    pub memory_held_mb: u64,
    /// The templates of all accounts that are damaged, so that no VM is restored from them.
    pub damaged_templates: Vec<DamagedTemplate>,
}

/// A template that cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DamagedTemplate {
    /// `base`, or the id of another template.
    #[cfg_attr(feature = "openapi", schema(example = "base"))]
    pub template: String,
    /// What is wrong with it, in one sentence.
    pub message: String,
}
