//! The messages. Each is one packet of the socket pair: JSON, and the descriptors that belong to it.
//!
//! No path, command line or name made by a caller stands in any of them, but a template's name, which is checked on
//! both sides.

use std::{fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};
use skep_api::{Failure, HelperKind, VmId, swarm::EngineReport};

/// The first packet, from keeper to server. With it come the listening sockets: those of the HTTP service, in the order of the
/// settings, then, where there is one, that of the API for VMs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Welcome {
    /// The settings that the server needs, as the binary wrote them for itself.
    pub settings: serde_json::Value,
    /// The first admin key, where this data directory has one. Its secret stays with the keeper.
    pub admin_key: Option<AdminKey>,
    /// Whether VMs can be launched, or why not.
    pub swarm: SwarmAbility,
    /// Whether another server serves still, whose place this one takes once it is ready.
    pub succeeds: bool,
}

/// What the server may know of the admin key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdminKey {
    /// SHA-256 of the whole key, 64 hex digits.
    pub sha256: String,
    /// The key up to its 8th hex digit.
    pub prefix: String,
}

/// Whether VMs can be launched.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwarmAbility {
    /// They can.
    Able {
        /// The engine and why it was chosen.
        engine: EngineReport,
        /// VMs that this machine can hold at the same time.
        max_vms: u32,
        /// Memory for VMs, in MiB.
        memory_mb: u64,
        /// Memory that each VM takes besides its guest's, in MiB.
        overhead_mb: u64,
    },
    /// They cannot.
    Unable {
        /// Why, and what to do about it.
        reason: String,
    },
}

/// What the server asks, with a number that the answer repeats. Several may be under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// The number of the request.
    pub id: u64,
    /// The request or its answer.
    pub body: T,
}

/// What the server may ask.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a VMM in a jail of its own, its guest not yet loaded.
    Launch {
        /// The id of the new VM.
        vm: VmId,
        /// The template's name: `[a-z0-9][a-z0-9-]{0,62}`.
        template: String,
    },
    /// End a VMM and clear away all that belongs to it: process, tap, cgroup, sockets, layer. Answered when it is gone.
    End {
        /// The VM.
        vm: VmId,
    },
    /// What a VMM uses now.
    Usage {
        /// The VM.
        vm: VmId,
    },
    /// Whom this VM belongs to is settled: it outlives this server. Until then it ends with it.
    Commit {
        /// The VM.
        vm: VmId,
    },
    /// Let the guest of a VM reach the API at the bridge's address, until the VM ends.
    AdmitToApi {
        /// The VM.
        vm: VmId,
    },
    /// The VMs that the keeper holds, in the order of their ids, a part at a time.
    List {
        /// Only later ones than this.
        after: Option<VmId>,
    },
    /// The certificate and key of the HTTP service, where they are newer than what was seen.
    Tls {
        /// The edition that came last; 0 at first.
        seen: u64,
        /// The edition that is shown to callers; 0 where none is yet.
        serving: u64,
    },
    /// A process that starts programs for callers, at the other end of a stream: a new one for each request. It ends when
    /// the stream closes.
    Helper {
        /// What it starts.
        kind: HelperKind,
    },
    /// Another server in the place of this one, by the settings as they are now. Answered when they were found to be good,
    /// before anything ends.
    Restart,
    /// A server that succeeds another serves. Answered when nothing is left of that one, and its VMs can be had.
    Ready,
    /// A server that succeeds another cannot serve, and ends.
    Unable {
        /// Why, in words for whoever asked for the restart.
        reason: String,
    },
    /// New streams to a VM that an earlier server drove.
    Attach {
        /// The VM.
        vm: VmId,
    },
}

/// The most VMs of one answer to [`Request::List`]: they fit into a packet.
pub const LIST_PART: usize = 100;

/// What the keeper answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A VMM waits for its guest. With it come, in this order: the VMM's pidfd, connected streams of monitor, agent
    /// channel and console, and the template's device state opened for reading.
    Launched(Launched),
    /// Nothing of the VM is left.
    Ended {
        /// Whether the kernel killed it for memory.
        out_of_memory: bool,
    },
    /// What a VMM uses now.
    Usage(Usage),
    /// It outlives this server.
    Committed,
    /// Its guest reaches the API.
    Admitted,
    /// VMs that the keeper holds: [`LIST_PART`] of them where there may be more.
    List {
        /// In the order of their ids.
        vms: Vec<HeldVm>,
    },
    /// What was asked of the certificate. `None`: nothing newer.
    Tls {
        /// The newer one.
        pair: Option<TlsPair>,
    },
    /// The process that starts programs. With it comes a stream to it.
    Helper,
    /// This server is asked to end as soon as the answer is sent, and another follows it.
    Restarting,
    /// This server is what the restart that is under way brought: it serves, and none follows it.
    Restarted,
    /// Nothing is left of the server before this one.
    Alone,
    /// A VM to be driven further. With it come, in this order: the VMM's pidfd, and connected streams of monitor, agent
    /// channel and console.
    Attached(Launched),
    /// It was not done.
    Refused(Failure),
}

/// The most bytes of a certificate with its chain, and of a key: both fit into a packet, with their line ends escaped.
pub const MAX_PEM_BYTES: usize = 24 << 10;

/// A certificate and its private key as their files have them. Nobody has looked at what stands in them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsPair {
    /// Grows with each change.
    pub edition: u64,
    /// The certificate with its chain, in PEM.
    pub certificate: String,
    /// The private key, in PEM.
    pub key: String,
}

/// The key stays out of logs.
impl fmt::Debug for TlsPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPair").field("edition", &self.edition).finish_non_exhaustive()
    }
}

/// A VMM that waits for its guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launched {
    /// The VM.
    pub vm: VmId,
    /// The VMM's process id on this machine.
    pub pid: u32,
    /// The guest's address.
    pub ip: Ipv4Addr,
    /// Length of the network's prefix.
    pub prefix_len: u8,
    /// The host's side of the network.
    pub gateway: Ipv4Addr,
    /// The guest's hardware address.
    pub mac: [u8; 6],
    /// The hash of the template's inputs.
    pub template_key: String,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
}

/// A VM that the keeper holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldVm {
    /// What was told at its launch.
    pub launched: Launched,
    /// The name of its template.
    pub template: String,
    /// Whether it outlives its server: it is somebody's.
    pub committed: bool,
}

/// What a VMM uses now.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Usage {
    /// Memory charged to its cgroup, in bytes.
    pub memory_bytes: u64,
    /// Processor time of all its threads, in microseconds.
    pub cpu_us: u64,
    /// Space that its private disk layer takes, in bytes.
    pub disk_bytes: u64,
}
