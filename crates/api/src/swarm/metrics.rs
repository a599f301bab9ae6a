//! What a VM uses, and its limits.

use serde::{Deserialize, Serialize};

/// What a VM uses, and its limits. Answer of `GET /api/swarm/vm/{pid}/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmMetrics {
    /// The processors.
    pub cpu: CpuMetrics,
    /// The memory on the server's machine.
    pub memory: MemoryMetrics,
    /// The VM's own disk layer.
    pub disk: DiskMetrics,
    /// The network interface.
    pub network: NetworkMetrics,
    /// What the guest reports; null if it is paused or does not answer in time.
    pub guest: Option<GuestMetrics>,
}

/// Use of processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CpuMetrics {
    /// The processor time since the restore, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 1200))]
    pub used_ms: u64,
    /// The number of virtual processors.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub vcpus: u32,
}

/// Use of memory on the server's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryMetrics {
    /// The memory that the end of the VM would free, in MiB. Memory that VMs of a template share is not included.
    #[cfg_attr(feature = "openapi", schema(example = 61))]
    pub held_mb: u64,
    /// The memory that the VM is promised, in MiB: that of its guest, and the overhead of its VMM.
    /// `memory_promised_mb` of the capacity is the sum over all VMs.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub promised_mb: u64,
    /// The memory charged to the VM, in MiB. Shared memory is charged to the first VM that used it.
    #[cfg_attr(feature = "openapi", schema(example = 90))]
    pub charged_mb: u64,
    /// The limit of the charged memory, in MiB. A VM that exceeds it ends as `out_of_memory`.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub limit_mb: u64,
}

/// Use of a VM's own disk layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskMetrics {
    /// The space on the server's disk, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub used_mb: u64,
    /// The size of the layer, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 10240))]
    pub size_mb: u64,
    /// What the guest read and wrote; null if that could not be read yet.
    pub traffic: Option<DiskTrafficMetrics>,
}

/// What a guest read from and wrote to its own disk layer since the restore, by its disk device. While the VM does not
/// answer, these are the last known values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskTrafficMetrics {
    /// The bytes that the guest read.
    #[cfg_attr(feature = "openapi", schema(example = 65_536))]
    pub read_bytes: u64,
    /// The bytes that the guest wrote.
    #[cfg_attr(feature = "openapi", schema(example = 1_048_576))]
    pub written_bytes: u64,
    /// The read operations.
    #[cfg_attr(feature = "openapi", schema(example = 9))]
    pub reads: u64,
    /// The write operations.
    #[cfg_attr(feature = "openapi", schema(example = 40))]
    pub writes: u64,
    /// The requests of the guest to write caches to the disk.
    #[cfg_attr(feature = "openapi", schema(example = 4))]
    pub flushes: u64,
}

/// Traffic of a VM since the restore, link-layer headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkMetrics {
    /// The bytes that the VM received.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub received_bytes: u64,
    /// The bytes that the VM sent.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub sent_bytes: u64,
}

/// What only the guest knows. The guest is not trusted, so these values may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuestMetrics {
    /// Processes of programs. The guest's kernel and its agent do not count: it is 0 in a VM that runs no program.
    #[cfg_attr(feature = "openapi", schema(example = 4))]
    pub processes: u32,
    /// The memory that the guest's kernel manages, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 970))]
    pub memory_mb: u64,
    /// The memory that programs in the guest can still take, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 910))]
    pub memory_available_mb: u64,
}
