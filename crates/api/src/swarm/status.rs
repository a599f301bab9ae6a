//! The status of the swarm: the engine, the capacity of the machine, and the pools.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Vm;

/// How VMs are isolated from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Isolation {
    /// By hardware virtualization.
    Hardware,
    /// By an emulator that runs as an ordinary process.
    Emulated,
}

/// The VM engine in use, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EngineReport {
    /// The name and version, such as `qemu 7.2.22`.
    #[cfg_attr(feature = "openapi", schema(example = "qemu 7.2.22"))]
    pub name: String,
    /// The accelerator: `kvm` or `tcg`.
    #[cfg_attr(feature = "openapi", schema(example = "tcg"))]
    pub accel: String,
    /// The isolation that the engine provides.
    pub isolation: Isolation,
    /// The measurements on which the choice is based.
    #[cfg_attr(feature = "openapi", schema(example = "/dev/kvm is missing"))]
    pub reason: String,
}

/// The capacity of the machine for VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// The maximum number of VMs at the same time.
    #[cfg_attr(feature = "openapi", schema(example = 64))]
    pub max_vms: u32,
    /// The memory that VMs may be promised in total, in MiB: the memory for VMs times the setting `memory_overcommit`.
    #[cfg_attr(feature = "openapi", schema(example = 65536))]
    pub memory_mb: u64,
    /// The memory promised to existing VMs, in MiB: of their guests, and the overhead of their VMMs.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub memory_used_mb: u64,
    /// The same as `memory_used_mb`.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub memory_promised_mb: u64,
    /// The memory that VMs really take, in MiB: of their VMMs, and of the templates and copies that they share.
    #[cfg_attr(feature = "openapi", schema(example = 104))]
    pub memory_held_mb: u64,
    /// The memory of the machine that is still available, in MiB. Less than a tenth of it, or 512 MiB, is not given to
    /// further VMs. Null until it is measured.
    #[cfg_attr(feature = "openapi", schema(example = 20000))]
    pub memory_available_mb: Option<u64>,
}

/// The pool of VMs restored in advance from one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolState {
    /// The number of VMs that are ready.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub ready: u32,
    /// The number of VMs that the pool keeps ready.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub target: u32,
}

/// The account's VMs and the state of the machine. Answer of `GET /api/swarm/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwarmStatus {
    /// The account's VMs that run or are paused in memory, oldest first. If there are more than 1,000, it has 1,000 of them, and
    /// running ones come before paused ones. `GET /api/vms` lists all VMs in pages, also those on disk.
    pub vms: Vec<Vm>,
    /// The number of all VMs of the account that have not ended, also of those that are not in `vms`.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub count: u32,
    /// The disk space of the account's templates, its VMs on disk and the disk layers of its other VMs, in MiB. For an account
    /// with a limit (`max_disk_mb`), the files in its workspace are included.
    #[cfg_attr(feature = "openapi", schema(example = 120))]
    #[serde(default)]
    pub disk_used_mb: u64,
    /// The pools of VMs restored in advance, by template.
    pub pool: BTreeMap<String, PoolState>,
    /// The capacity of the machine.
    pub capacity: Capacity,
    /// The VM engine in use; null if VMs are not available.
    pub engine: Option<EngineReport>,
}
