//! The messages. Each is one packet of the socket pair: JSON, with file descriptors attached.
//!
//! No message contains a path, command line or name that a caller chose.

use std::{fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};
use skep_api::{
    Failure, HelperKind, TemplateId, VmId, egress::EgressReport, swarm::EngineReport, templates::GuestSize,
};

use crate::{EgressTotals, MachineMemory, OutOfMemory, VmEgress};

/// The first packet, from keeper to server. Attached are the listening sockets of the HTTP service, in the order of the
/// settings, and then that of the API for VMs, if there is one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerSetup {
    /// The settings of the server, opaque to the keeper.
    pub settings: serde_json::Value,
    /// The first admin key of the data directory, without its secret.
    pub admin_key: Option<AdminKey>,
    pub swarm: SwarmAvailability,
    /// Whether this server replaces one that still runs. It reports [`Request::Ready`] then, otherwise [`Request::Serving`].
    pub succeeds: bool,
}

/// Hash and prefix of the admin key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdminKey {
    /// SHA-256 of the whole key, 64 hex digits.
    pub sha256: String,
    /// The key up to its 8th hex digit.
    pub prefix: String,
}

/// Whether this machine can run VMs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwarmAvailability {
    Able {
        /// The engine and why it was selected.
        engine: EngineReport,
        /// Limit of concurrent VMs.
        max_vms: u32,
        /// Memory for VMs, in MiB.
        memory_mb: u64,
        /// Memory that VMs may be promised in total, in MiB.
        promises_mb: u64,
        /// Memory of a guest of the base template, in MiB.
        guest_memory_mb: u64,
        /// Memory of each VM in addition to its guest's, in MiB.
        overhead_mb: u64,
    },
    Unable {
        /// The cause, and what to do about it.
        reason: String,
    },
}

/// A request or an answer, with a number that relates them. Several requests may be in progress.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Chosen by the server and repeated in the answer.
    pub id: u64,
    pub body: T,
}

/// A request of the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a VMM in a jail of its own. The server loads the guest state afterwards.
    Launch {
        /// The id of the new VM.
        vm: VmId,
        /// The template to restore it from.
        template: TemplateId,
        /// The address that it gets. `None`: a free one.
        ip: Option<Ipv4Addr>,
    },
    /// Keep an address for a VM that is paused to disk, until the reservation ends or the server does.
    ReserveAddress { ip: Ipv4Addr },
    /// End a reservation. A VM that has the address keeps it.
    EndReservation { ip: Ipv4Addr },
    /// End a VMM and remove its resources: process, tap, cgroup, sockets, disk layer. Answered when they are removed.
    End { vm: VmId },
    /// Report the current resource usage of a VMM.
    Usage { vm: VmId },
    /// Report the memory of the machine.
    Memory,
    /// Mark the VM as owned, so that it outlives this server. Uncommitted VMs end with their server.
    Commit { vm: VmId },
    /// Allow the guest of a VM to reach the API at the bridge's address, until the VM ends.
    AdmitToApi { vm: VmId },
    /// Set what the guest of a VM may connect to outside. Answered when that holds.
    SetEgress { vm: VmId, egress: VmEgress },
    /// Report what the guest of a VM may connect to, and what it tried.
    EgressReport { vm: VmId },
    /// Report the sums over the connections of all VMs.
    EgressTotals,
    /// List the running VMs in the order of their ids, one page at a time.
    List {
        /// Only VMs with greater ids. `None` for the first page.
        after: Option<VmId>,
    },
    /// Get the certificate and key of the HTTP service, if newer than `seen`.
    Tls {
        /// The edition received last, initially 0.
        seen: u64,
        /// The edition that the HTTP service uses, 0 if none yet.
        serving: u64,
    },
    /// Start a new helper process, which starts programs for callers. It ends when its stream closes.
    Helper { kind: HelperKind },
    /// Replace this server by a new one with the current settings. Answered when the new server is ready, before this
    /// one ends.
    Restart,
    /// The successor is ready. Answered when its predecessor has ended and its VMs can be attached.
    Ready,
    /// The server, which has no predecessor, answers requests. The keeper sends no answer.
    Serving,
    /// The successor cannot start and ends.
    Unable {
        /// Shown to the user who requested the restart.
        reason: String,
    },
    /// Open new streams to a VM that an earlier server controlled.
    Attach { vm: VmId },
    /// Build a template from the disk of another one. Answered at once; [`Request::TemplateStatus`] reports the outcome.
    BuildTemplate { template: TemplateId, parent: TemplateId, size: GuestSize },
    /// Boot a guest from the disk of a snapshot, without its memory, and make it a template with this id that is not listed. VMs
    /// can be launched from it, and it is removed when none needs it. Answered at once; [`Request::TemplateStatus`] reports
    /// the outcome.
    BootDisk { template: TemplateId, snapshot: TemplateId },
    /// Report the state of a template.
    TemplateStatus { template: TemplateId },
    /// List the templates in the order of their ids, one page at a time.
    ListTemplates {
        /// Only templates with greater ids. `None` for the first page.
        after: Option<TemplateId>,
    },
    /// Remove a template that no VM uses, with its files, or end its build. Answered when its files are removed.
    RemoveTemplate { template: TemplateId },
    /// Create the file into which the VMM of a VM saves its devices, for a capture with this id. If the
    /// VM runs on afterwards, also copy its memory once while it runs.
    PrepareCapture { vm: VmId, capture: TemplateId, then: AfterCapture },
    /// Copy memory and disk of the VM, whose processors are stopped and whose devices are saved. VMs can be launched from the
    /// capture by its id until it is dropped, or until the server ends.
    Capture { capture: TemplateId },
    /// Store a capture on disk, as a template with its id. Answered when it is written.
    StoreCapture { capture: TemplateId, purpose: StorePurpose },
    /// Free a capture. VMs that were launched from it run on. Answered as well if there is none.
    DropCapture { capture: TemplateId },
}

/// What becomes of a VM after its capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterCapture {
    RunsOn,
    /// It ends, and its memory is free. So the copy may take a part of the memory that is reserved.
    Ends,
}

/// What a capture is stored for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorePurpose {
    /// VMs are booted from it. As long as they run, it is needed for captures of them.
    Template,
    /// The VM itself is resumed from it, after which it is removed.
    Pause,
}

/// Page size of [`Request::List`], so that an answer fits into a packet.
pub const LIST_PAGE_SIZE: usize = 100;

/// Page size of [`Request::ListTemplates`].
pub const TEMPLATE_PAGE_SIZE: usize = 32;

/// Size limit of a text in a [`TemplateState`], in bytes, so that a page of templates fits into a packet.
pub const MAX_TEMPLATE_TEXT_BYTES: usize = 500;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A VMM runs and waits for its guest state. Attached, in this order: the VMM's pidfd, connected streams of
    /// monitor, agent channel and console, and the template's device state, open for reading.
    Launched(Launched),
    /// All resources of the VM are removed.
    Ended {
        /// Whether and why it was ended because memory ran out.
        out_of_memory: Option<OutOfMemory>,
    },
    Usage(Usage),
    Memory(MachineMemory),
    Committed,
    Admitted,
    EgressSet,
    EgressReport(EgressReport),
    EgressTotals(EgressTotals),
    /// Running VMs. A page of [`LIST_PAGE_SIZE`] VMs may be followed by another one.
    List {
        /// In the order of their ids.
        vms: Vec<HeldVm>,
    },
    /// `None` if the server has the newest pair.
    Tls {
        pair: Option<TlsPair>,
    },
    /// The helper runs. Attached is a stream to it.
    Helper,
    /// A successor is ready; this server is asked to end right after this answer.
    Restarting,
    /// This server is itself the successor of a restart in progress, which the request joins. It keeps running.
    Restarted,
    /// The predecessor of this server has ended.
    Alone,
    /// Attached, in this order: the VMM's pidfd, and connected streams of monitor, agent channel and console.
    Attached(Launched),
    /// The build is queued or runs.
    Building,
    Template(TemplateStatus),
    /// Templates. A page of [`TEMPLATE_PAGE_SIZE`] templates may be followed by another one.
    Templates {
        /// In the order of their ids.
        templates: Vec<TemplateStatus>,
    },
    /// The files of the template are removed.
    TemplateRemoved,
    /// Attached is the file for the devices, open for writing only.
    CapturePrepared,
    Captured,
    CaptureDropped,
    AddressReserved,
    ReservationEnded,
    Refused(Failure),
}

/// A template that the keeper has, builds, or failed to build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateStatus {
    pub template: TemplateId,
    /// `None` for `base`.
    pub parent: Option<TemplateId>,
    pub size: GuestSize,
    pub state: TemplateState,
    /// Space that its files occupy, in bytes, in every state. 0 if it is not known, for example while it is built.
    pub size_bytes: u64,
    /// The part of `size_bytes` without the files that it shares with the template that it was made from, in bytes.
    pub own_bytes: u64,
}

/// The state of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateState {
    Building {
        /// What is being done.
        step: String,
    },
    Ready {
        /// The hash of its inputs.
        key: String,
    },
    Failed {
        failure: Failure,
    },
    /// Its files do not match their checksums. It is being built again, unless it is a snapshot of a VM.
    Damaged {
        reason: String,
    },
    /// Its inputs changed. It is being built again, unless it is a snapshot of a VM.
    Outdated {
        reason: String,
    },
}

/// Size limit of a certificate with its chain, and of a key, so that both fit into a packet with escaped line ends.
pub const MAX_PEM_BYTES: usize = 24 << 10;

/// A certificate and its private key, unparsed as in their files.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsPair {
    /// Grows with each change of the files.
    pub edition: u64,
    /// The certificate with its chain, in PEM.
    pub certificate: String,
    /// The private key, in PEM.
    pub key: String,
}

/// Keeps the private key out of logs.
impl fmt::Debug for TlsPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPair").field("edition", &self.edition).finish_non_exhaustive()
    }
}

/// Description of a VM, as known since its launch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launched {
    pub vm: VmId,
    /// The VMM's process id on this machine.
    pub pid: u32,
    pub ip: Ipv4Addr,
    /// Prefix length of the VM network.
    pub prefix_len: u8,
    /// The host's address in the VM network.
    pub gateway: Ipv4Addr,
    pub mac: [u8; 6],
    /// The hash of the template's inputs.
    pub template_key: String,
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
}

/// A running VM.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldVm {
    pub launched: Launched,
    pub template: TemplateId,
    /// Whether it outlives its server.
    pub committed: bool,
    pub load: Load,
}

/// The current resource usage of a VMM.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Usage {
    pub load: Load,
    /// Memory charged to its cgroup, in bytes. Shared pages are charged to the first VM that used them.
    pub memory_bytes: u64,
    /// The limit of this memory, in bytes.
    pub memory_limit_bytes: u64,
    /// Size of its private layer, in bytes.
    pub disk_size_bytes: u64,
    /// Bytes that it received from the network.
    pub received_bytes: u64,
    /// Bytes that it sent to the network.
    pub sent_bytes: u64,
}

/// The part of the usage of a VMM that is sampled regularly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Its anonymous memory, in bytes: what its end would free.
    pub held_bytes: u64,
    /// CPU time of all its threads, in microseconds.
    pub cpu_us: u64,
    /// Disk space that its private layer occupies, in bytes.
    pub disk_bytes: u64,
}
